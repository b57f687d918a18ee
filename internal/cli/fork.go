package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/config"
)

// childEnv carries a child's place, as JSON. It is between parent and child only, and no setting.
const childEnv = "WAFLEET_SHARD_CHILD"

// opsFile is the number under which a child inherits the listener of its ops answers.
const opsFile = 3

// place is which shard a child is for, and under what name.
type place struct {
	Index    int    `json:"index"`
	Count    int    `json:"count"`
	WorkerID string `json:"workerId"`
	Nonce    string `json:"nonce"`
}

func (p place) owner() string { return p.WorkerID + "/" + p.Nonce }

// readPlace returns the place of this process if it is a child.
func readPlace(environ []string) (*place, error) {
	for _, kv := range environ {
		text, ok := strings.CutPrefix(kv, childEnv+"=")
		if !ok {
			continue
		}
		var p place
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			return nil, fmt.Errorf("%s can't be read: %w", childEnv, err)
		}
		return &p, nil
	}
	return nil, nil //nolint:nilnil // not a child
}

// settle makes the settings those of the child: its shard, its name, and its part of what is for all.
func (p *place) settle(cfg *config.Config) {
	cfg.ShardIndex, cfg.WorkerID = &p.Index, p.WorkerID
	cfg.DatabasePoolMax = max(cfg.DatabasePoolMax/p.Count, 2)
}

// listener is the one that the parent opened for this child.
func (*place) listener() (net.Listener, error) {
	f := os.NewFile(opsFile, "ops listener")
	defer f.Close() //nolint:errcheck // the listener has its own
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("take over the ops listener: %w", err)
	}
	return ln, nil
}

// whileParent returns a context that ends when the parent does, or wants this child to stop: nothing is
// ever written to the pipe that is standard input here.
func whileParent(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() { // ends with the process: a read can't be called off
		var b [1]byte
		for {
			if _, err := os.Stdin.Read(b[:]); err != nil {
				cancel()
				return
			}
		}
	}()
	return ctx, cancel
}

// forked runs one worker process per shard below this one, which holds no session and serves one ops
// listener for all of them.
type forked struct {
	pr       *process
	p        *program
	children []*child
}

// child is the process of one shard, however often it is started.
type child struct {
	index int
	log   *slog.Logger
	ops   atomic.Pointer[string] // URL of the ops listener of the present process
}

const (
	crashPause = time.Second      // before a child that ended by itself is started again
	crashMost  = 30 * time.Second // and at most, after many ends
	crashCalm  = time.Minute      // a child that lived so long begins anew

	// A child keeps stopLimit by itself. One that does not is killed, and what it held given away, in the seconds after.
	killAfter   = stopLimit + 2*time.Second
	forkedLimit = stopLimit + 4*time.Second
)

// fork runs the children until ctx ends.
func (p *program) fork(ctx context.Context, s *server) error {
	cfg := s.Config
	cfg.DatabasePoolMax = 2 // the children have the rest
	pr, err := p.open(ctx, &cfg, openOptions{command: "worker", mode: s.mode()})
	if err != nil {
		return err
	}
	defer pr.close()
	pr.stopIn = forkedLimit
	f := &forked{pr: pr, p: p}
	for i := range cfg.Shards() {
		c := &child{index: i, log: pr.log.With(slog.Int("shard", i))}
		f.children = append(f.children, c)
		pr.ready.checks = append(pr.ready.checks, check{"shard " + strconv.Itoa(i), c.ready})
		pr.add("shard "+strconv.Itoa(i), stageWork, func(ctx context.Context) error { return f.keep(ctx, c) })
	}
	mux := http.NewServeMux()
	mux.Handle("/", opsHandler(&pr.ready, pr.versions, pr.registry))
	mux.HandleFunc("GET /metrics", f.metrics)
	if err := pr.addOpsOf(ctx, mux, nil); err != nil {
		return err
	}
	pr.log.InfoContext(ctx, "one worker process per shard", slog.Int("shards", cfg.Shards()), slog.String("worker_id", cfg.Name()))
	return pr.run(ctx)
}

// keep starts the child, and starts it again whenever it ends by itself, until ctx ends.
func (f *forked) keep(ctx context.Context, c *child) error {
	for failures := 0; ; failures++ {
		begun := time.Now()
		at := place{Index: c.index, Count: len(f.children), WorkerID: f.pr.cfg.Name() + "-" + strconv.Itoa(c.index)}
		var nonce [4]byte
		_, _ = rand.Read(nonce[:])
		at.Nonce = hex.EncodeToString(nonce[:])
		err := f.once(ctx, c, at)
		c.ops.Store(nil)
		if ctx.Err() != nil {
			if err != nil { // it may have ended holding sessions
				lctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forkedLimit-killAfter-time.Second)
				f.bury(lctx, c, at.owner())
				cancel()
			}
			return err
		}
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == exitUsage {
			return fmt.Errorf("shard %d refused its settings", c.index)
		}
		if time.Since(begun) >= crashCalm {
			failures = 0
		}
		pause := min(crashPause<<min(failures, 10), crashMost)
		c.log.ErrorContext(ctx, "a shard's process ended by itself; its sessions are given away and it is started again",
			slog.Any("err", err), slog.Duration("after", pause))
		f.bury(ctx, c, at.owner())
		if !sleepFor(ctx, pause) {
			return nil
		}
	}
}

// bury gives away what a child that is gone has held: it can't act any more, so nobody needs to wait for
// its leases to run out. A database that does not answer lets them run out.
func (f *forked) bury(ctx context.Context, c *child, owner string) {
	limit := time.Now().Add(f.pr.cfg.LeaseTTL)
	for {
		sctx, cancel := context.WithTimeout(ctx, checkTime)
		n, err := f.pr.store.ReleaseOwner(sctx, owner)
		if err == nil {
			err = f.pr.store.RemoveWorker(sctx, owner)
		}
		cancel()
		if err == nil {
			c.log.InfoContext(ctx, "sessions of an ended process are free", slog.Int("sessions", len(n)))
			for _, id := range n {
				_ = f.pr.bus.Publish(ctx, bus.TopicUnassigned, string(id)) // lost, they are found by looking
			}
			return
		}
		if time.Now().After(limit) || !sleepFor(ctx, crashPause) {
			return
		}
	}
}

func sleepFor(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// once runs the child's process. When ctx ends it is asked to stop, by the end of its pipe, and waited for.
func (f *forked) once(ctx context.Context, c *child, at place) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0") // asked by the parent only
	if err != nil {
		return fmt.Errorf("open the ops listener of shard %d: %w", c.index, err)
	}
	tcp, ok := ln.(*net.TCPListener)
	if !ok {
		return fmt.Errorf("ops listener of shard %d is a %T", c.index, ln)
	}
	file, err := tcp.File()
	url := "http://" + ln.Addr().String()
	_ = ln.Close() // the file is the same listener
	if err != nil {
		return fmt.Errorf("pass the ops listener of shard %d on: %w", c.index, err)
	}
	text, err := json.Marshal(at)
	if err != nil {
		return err
	}
	cmd := exec.Command(self, f.p.args...) //nolint:gosec,noctx // this program with its own arguments; ended by its pipe
	cmd.Env = append(append([]string{}, f.p.environ...), childEnv+"="+string(text))
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		cmd.Env = append(cmd.Env, "GOMEMLIMIT="+strconv.FormatInt(limit/int64(at.Count), 10))
	}
	cmd.Stdout, cmd.Stderr = f.p.stdout, f.p.stderr
	cmd.ExtraFiles = []*os.File{file}
	pipe, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	_ = file.Close()
	if err != nil {
		return fmt.Errorf("start shard %d: %w", c.index, err)
	}
	c.ops.Store(&url)
	c.log.InfoContext(ctx, "shard's process started", slog.Int("pid", cmd.Process.Pid), slog.String("owner", at.owner()))
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err == nil {
			err = errors.New("it ended without being asked to")
		}
		return err
	case <-ctx.Done():
	}
	_ = pipe.Close()
	late := time.NewTimer(killAfter)
	defer late.Stop()
	select {
	case err := <-ended:
		return err
	case <-late.C:
		_ = cmd.Process.Kill()
		return errors.Join(fmt.Errorf("shard %d did not stop in time and was killed", c.index), <-ended)
	}
}

// ask gets a path of the child's ops listener.
func (c *child) ask(ctx context.Context, path string) (status int, body string, err error) {
	url := c.ops.Load()
	if url == nil {
		return 0, "", errors.New("is not running")
	}
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, *url+path, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close() //nolint:errcheck // it is read
	var b strings.Builder
	_, err = copyMost(&b, resp.Body)
	return resp.StatusCode, b.String(), err
}

func (c *child) ready(ctx context.Context) error {
	status, body, err := c.ask(ctx, "/readyz")
	if err == nil && status != http.StatusOK {
		err = errors.New(strings.TrimSpace(body))
	}
	return err
}

// metrics answers with this process's figures, and those of every child with its shard.
func (f *forked) metrics(w http.ResponseWriter, r *http.Request) {
	var all exposition
	own, err := gathered(f.pr.registry)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	all.add(own, "")
	texts := make([]string, len(f.children))
	var asked sync.WaitGroup
	ctx := r.Context()
	for i, c := range f.children {
		asked.Go(func() {
			if _, text, err := c.ask(ctx, "/metrics"); err == nil {
				texts[i] = text
			}
		})
	}
	asked.Wait()
	for i, text := range texts {
		all.add(text, `shard="`+strconv.Itoa(f.children[i].index)+`"`)
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(all.String())) // the client may have gone
}
