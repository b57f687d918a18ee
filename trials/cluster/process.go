package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"time"
)

// ProcessOptions say what to start.
type ProcessOptions struct {
	Path string
	Args []string
	Env  []string // the whole environment; the last of several values counts
	Log  string   // file that takes what it prints; it is appended to, so restarts follow each other
	Dir  string   // working directory; "" = this process's
	User *syscall.Credential
}

// Process is a process that this package started.
type Process struct {
	o     ProcessOptions
	cmd   *exec.Cmd
	begin int64 // offset in the log where this process begins
	done  chan struct{}
}

// StartProcess starts a process in a process group of its own: Ctrl-C on the terminal is not for it.
func StartProcess(o ProcessOptions) (*Process, error) {
	log, err := os.OpenFile(o.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the process writes, not we
	at, err := log.Stat()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(o.Path, o.Args...) //nolint:gosec,noctx // ended by signals, on purpose
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = o.Env, o.Dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: o.User}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Path, err)
	}
	p := &Process{o: o, cmd: cmd, begin: at.Size(), done: make(chan struct{})}
	watch(p.PID())
	go func() {
		defer close(p.done)
		_ = cmd.Wait()
		unwatch(p.PID())
	}()
	return p, nil
}

// PID is the id of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// LogPath is the file with what it prints.
func (p *Process) LogPath() string { return p.o.Log }

// Log returns what this process has printed so far.
func (p *Process) Log() string {
	raw, err := os.ReadFile(p.o.Log)
	if err != nil || int64(len(raw)) < p.begin {
		return ""
	}
	return string(raw[p.begin:])
}

// Signal sends a signal: SIGKILL, SIGSTOP and SIGCONT among them.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("signal %s to %s: %w", sig, p.o.Log, err)
	}
	return nil
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end and returns the exit code, -1 if a signal ended it.
func (p *Process) Wait(ctx context.Context) (code int, err error) {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("wait for the end of %s: %w", p.o.Log, context.Cause(ctx))
	}
}

// Kill ends the process by SIGKILL and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stop asks the process by a signal to end, kills it when it has not within the time, and says so.
func (p *Process) Stop(sig syscall.Signal, within time.Duration) (code int, err error) {
	_ = p.cmd.Process.Signal(sig)
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-late.C:
		p.Kill()
		return -1, fmt.Errorf("%s did not end within %s and was killed", p.o.Log, within)
	}
}

// Find waits for a line in the log and returns the last group of the pattern. It fails when the process ends first.
func (p *Process) Find(ctx context.Context, pattern string) (string, error) {
	re := regexp.MustCompile(pattern)
	var found string
	ended := false
	err := Until(ctx, time.Minute, func() error {
		log := p.Log()
		if m := re.FindStringSubmatch(log); m != nil {
			found = m[len(m)-1]
			return nil
		}
		select {
		case <-p.done:
			ended = true
			return nil
		default:
			return fmt.Errorf("no %q in %s", pattern, p.o.Log)
		}
	})
	if ended {
		return "", fmt.Errorf("ended with %d and without %q:\n%s", p.cmd.ProcessState.ExitCode(), pattern, tail(p.Log(), 4000))
	}
	return found, err
}

const (
	opsURL = `ops listener is open" url=(http://\S+)`
	apiURL = `API listener is open" url=(http://\S+)`
	simURL = `simulator on (http://\S+)/sim/`
)

// Ready waits until /readyz of a wafleet process answers 200, and returns the URL of its ops listener.
func (p *Process) Ready(ctx context.Context) (ops string, err error) {
	if ops, err = p.Find(ctx, opsURL); err != nil {
		return "", err
	}
	return ops, Until(ctx, time.Minute, func() error {
		select {
		case <-p.done:
			return nil // the next step says what is wrong
		default:
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, ops+"/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close() //nolint:errcheck // it is read
		var body bytes.Buffer
		_, _ = body.ReadFrom(resp.Body)
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("/readyz of %s is %s %s", p.o.Log, resp.Status, body.String())
		}
		return nil
	})
}

var errNotLinux = errors.New("needs /proc")

func tail(s string, n int) string { return s[max(0, len(s)-n):] }
