package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

// bareProcess talks to the bare side.
type bareProcess struct {
	cmd     *exec.Cmd
	in      io.Writer
	answers *bufio.Scanner
	ground  ground
}

// startBare starts this program as the bare side and waits until its sessions are paired. It ends with its standard input,
// and so with this process.
func startBare(ctx context.Context, b bareSettings) (p *bareProcess, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	settings, err := json.Marshal(b)
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.CommandContext(ctx, self) //nolint:gosec // this program itself
	cmd.Env, cmd.Stderr = append(os.Environ(), bareEnv+"="+string(settings)), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	stop = func() { _, _ = in.Close(), cmd.Wait() }
	p = &bareProcess{cmd: cmd, in: in, answers: bufio.NewScanner(out)}
	ready, err := p.answer()
	if err != nil {
		stop()
		return nil, nil, err
	}
	p.ground = ready.Ground
	return p, stop, nil
}

func (p *bareProcess) cpu() (time.Duration, error) { return cluster.CPUOf(p.cmd.Process.Pid) }

func (p *bareProcess) answer() (loadDone, error) {
	if !p.answers.Scan() {
		return loadDone{}, errors.Join(p.answers.Err(), errors.New("it ended"))
	}
	var done loadDone
	err := json.Unmarshal(p.answers.Bytes(), &done)
	return done, err
}

func (p *bareProcess) send(_ context.Context, l load) (posted, error) {
	if err := json.NewEncoder(p.in).Encode(l); err != nil {
		return posted{}, err
	}
	done, err := p.answer()
	if err == nil && done.Errors > 0 {
		err = fmt.Errorf("%d sends failed: %s", done.Errors, done.Error)
	}
	return posted{first: done.First}, err
}
