package cluster

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	// The audit reads the rows of both databases.
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"
)

// Options of Start.
type Options struct {
	Binary   string   // what Build returned, or any program that takes wafleet's arguments
	Dir      string   // gets the logs, and the data folder of "up"
	Database string   // URL of an empty PostgreSQL database; "" = one process, "up", on a SQLite file
	Redis    string   // URL, for separate processes
	Settings []string // NAME=value of every process: the last of several values counts
	Workers  int      // how many workers, named w1, w2 …; 0 = 2
	Compose  string   // a compose file that says which processes there are, and their settings, instead of Workers
	Real     bool     // WhatsApp itself instead of a simulator
}

// Cluster is a running gateway with its simulator, clients, people and webhook receiver. Its methods may be used by
// several goroutines, but Start, Run, Restart and Close by one at a time.
type Cluster struct {
	API, Sim string   // base URLs
	Others   []string // those of more api processes
	Admin    string   // an admin key
	DB       *sql.DB
	Numbers  []*Number
	// Refused, if set before the first Send, is told of every request that was not accepted: a *RefusedError, or the
	// error of a request that got no answer. It may be called by several goroutines at once.
	Refused func(error)

	o    Options
	env  []string
	sink *sink

	mu        sync.Mutex // guards processes and what numbers and the sink have recorded
	processes map[string]*Process
	order     []string
	args      map[string][]string
	own       map[string][]string // more of a process's environment, by its name, at every start
}

// startTime bounds the start of one process.
const startTime = 90 * time.Second

// Start starts the simulator and wafleet, and waits until every process is ready. With a Database: migrate, then api,
// the workers, webhooks and scheduler as processes of these names. Without: one process named "up".
func Start(ctx context.Context, o Options) (c *Cluster, err error) {
	if o.Workers == 0 {
		o.Workers = 2
	}
	c = &Cluster{o: o, processes: map[string]*Process{}, args: map[string][]string{}, own: map[string][]string{}}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if c.sink, err = listen(ctx); err != nil {
		return c, err
	}
	port, err := freePort(ctx) // clients find the API again after its restart
	if err != nil {
		return c, err
	}
	c.API = fmt.Sprintf("http://127.0.0.1:%d", port)
	c.env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + o.Dir, "OPS_LISTEN=127.0.0.1:0", fmt.Sprintf("LISTEN=127.0.0.1:%d", port),
		"WEBHOOK_ALLOW_PRIVATE=true", "LEASE_TTL=10s", "LEASE_BEAT=2s",
	}, o.Settings...)
	if !o.Real {
		if c.Sim, err = c.startSim(ctx); err != nil {
			return c, err
		}
	}
	if o.Database == "" {
		err = c.startUp(ctx)
	} else {
		err = c.startSeparate(ctx)
	}
	if err != nil {
		return c, err
	}
	return c, c.hear(ctx)
}

func (c *Cluster) startSim(ctx context.Context) (string, error) {
	p, err := c.spawn("sim", c.o.Binary, c.env, "sim", "--listen=127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return p.Find(ctx, simURL)
}

func (c *Cluster) startUp(ctx context.Context) (err error) {
	data := filepath.Join(c.o.Dir, "data")
	if err := c.Run(ctx, "up", "up", "--data-dir="+data); err != nil {
		return err
	}
	admin, err := os.ReadFile(filepath.Join(data, "admin.key")) //nolint:gosec // a folder of ours
	if err != nil {
		return err
	}
	c.Admin = strings.TrimSpace(string(admin))
	file := url.URL{Scheme: "file", Opaque: filepath.Join(data, "wafleet.db"), RawQuery: "_pragma=busy_timeout(10000)&_pragma=query_only(1)"}
	c.DB, err = sql.Open("sqlite", file.String())
	return err
}

func (c *Cluster) startSeparate(ctx context.Context) (err error) {
	vars := map[string]string{ // of a database that lives minutes
		"DATA_KEY": strings.Repeat("ab", 32), "LOOKUP_KEY": strings.Repeat("cd", 32), "POSTGRES_PASSWORD": "x", "DOMAIN": "wafleet.example",
	}
	c.env = append(c.env, "DATABASE_URL="+c.o.Database, "REDIS_URL="+c.o.Redis, "DATA_KEY="+vars["DATA_KEY"], "LOOKUP_KEY="+vars["LOOKUP_KEY"])
	if _, err := c.Command(ctx, "migrate"); err != nil {
		return err
	}
	admin, err := c.Command(ctx, "keys", "create", "--admin")
	if err != nil {
		return err
	}
	c.Admin = strings.TrimSpace(admin)
	if c.DB, err = sql.Open("pgx", c.o.Database); err != nil {
		return err
	}
	c.DB.SetMaxOpenConns(4)
	if c.o.Compose != "" {
		err = c.startCompose(ctx, vars)
	} else {
		start := func(name string, args ...string) error { return c.begin(name, c.o.Binary, nil, args...) }
		err = errors.Join(start("api", "api"), start("webhooks", "webhooks"), start("scheduler", "scheduler"))
		for i := range c.o.Workers {
			name := fmt.Sprintf("w%d", i+1)
			err = errors.Join(err, start(name, "worker", "--worker-id="+name))
		}
	}
	if err != nil {
		return err
	}
	for _, name := range c.Names() {
		if err := c.ready(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// Worker starts one more worker of this name and waits until it is ready.
func (c *Cluster) Worker(ctx context.Context, name string) error {
	return c.Run(ctx, name, "worker", "--worker-id="+name)
}

// SecondAPI starts one more api under this name and returns its base URL.
func (c *Cluster) SecondAPI(ctx context.Context, name string) (url string, err error) {
	port, err := freePort(ctx)
	if err != nil {
		return "", err
	}
	listen := fmt.Sprintf("127.0.0.1:%d", port)
	return "http://" + listen, c.RunWith(ctx, name, []string{"LISTEN=" + listen}, "api")
}

// Run starts a process of wafleet under a name and waits until it is ready. A process that has this name must have ended.
func (c *Cluster) Run(ctx context.Context, name string, args ...string) error {
	return c.RunWith(ctx, name, nil, args...)
}

// RunWith is Run with more of an environment, for this start only.
func (c *Cluster) RunWith(ctx context.Context, name string, env []string, args ...string) error {
	if err := c.begin(name, c.o.Binary, env, args...); err != nil {
		return err
	}
	return c.ready(ctx, name)
}

// Restart starts a process that has ended again, with its arguments and env added to its environment for this start,
// and waits until it is ready.
func (c *Cluster) Restart(ctx context.Context, name string, env ...string) error {
	c.mu.Lock()
	args := c.args[name]
	c.mu.Unlock()
	return c.RunWith(ctx, name, env, args...)
}

// Begin starts a process that has ended again, from another binary if one is named, and waits for nothing.
func (c *Cluster) Begin(name, binary string, env ...string) error {
	c.mu.Lock()
	args := c.args[name]
	c.mu.Unlock()
	return c.begin(name, cmp.Or(binary, c.o.Binary), env, args...)
}

func (c *Cluster) begin(name, binary string, env []string, args ...string) error {
	c.mu.Lock()
	c.args[name] = args
	own := c.own[name]
	c.mu.Unlock()
	args = slices.Clone(args)
	if c.Sim != "" {
		args = append(args, "--simulator="+c.Sim)
	}
	_, err := c.spawn(name, binary, slices.Concat(c.env, own, env), args...)
	return err
}

func (c *Cluster) spawn(name, binary string, env []string, args ...string) (*Process, error) {
	p, err := StartProcess(ProcessOptions{Path: binary, Args: args, Env: env, Log: filepath.Join(c.o.Dir, name+".log"), Dir: c.o.Dir})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.processes[name] == nil {
		c.order = append(c.order, name)
	}
	c.processes[name] = p
	return p, nil
}

func (c *Cluster) ready(ctx context.Context, name string) error {
	if name == "sim" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if _, err := c.Process(name).Ready(ctx); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	return nil
}

// Command runs a command of wafleet that ends by itself and returns what it printed to stdout.
func (c *Cluster) Command(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.o.Binary, args...) //nolint:gosec // the trial names it
	cmd.Env, cmd.Dir = c.env, c.o.Dir
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%v: %w\n%s", args, err, errs.String())
	}
	return string(out), nil
}

// Process is the newest process of a name, nil if there was none.
func (c *Cluster) Process(name string) *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.processes[name]
}

// Names lists the processes in the order they were first started.
func (c *Cluster) Names() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.order)
}

// Stop ends every process of wafleet as an operator does, by SIGTERM, the simulator last. It fails when one does not end
// with exit code 0.
func (c *Cluster) Stop() (err error) {
	names := c.Names()
	slices.SortStableFunc(names, func(a, b string) int { return boolInt(a == "sim") - boolInt(b == "sim") })
	var all sync.WaitGroup
	errs := make([]error, len(names))
	for i, name := range names {
		p := c.Process(name)
		stop := func() {
			select {
			case <-p.Done(): // it was ended before, on purpose
				return
			default:
			}
			if code, err := p.Stop(syscall.SIGTERM, time.Minute); err != nil || code != 0 {
				errs[i] = errors.Join(err, fmt.Errorf("%s ended with %d after SIGTERM (log: %s)", name, code, p.LogPath()))
			}
		}
		if name == "sim" {
			all.Wait()
			stop()
			continue
		}
		all.Go(stop)
	}
	all.Wait()
	return errors.Join(errs...)
}

// Close kills what still runs and closes what was opened.
func (c *Cluster) Close() {
	for _, name := range slices.Backward(c.Names()) {
		c.Process(name).Kill()
	}
	if c.DB != nil {
		_ = c.DB.Close()
	}
	if c.sink != nil {
		c.sink.close()
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
