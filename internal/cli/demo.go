package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/wafleet/wafleet/internal/cmdline"
	"github.com/wafleet/wafleet/internal/config"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/wa"
	"github.com/wafleet/wafleet/internal/wasim"
)

// storyLimit bounds the demo's story. It takes a few seconds.
const storyLimit = 2 * time.Minute

type demoCmd struct {
	Once      bool   `help:"End after the story: exit code 0 only if every step was seen."`
	Folder    string `default:"./data/demo" placeholder:"DIR" help:"Folder of the demo. It is emptied at every start."`
	Listen    string `default:"127.0.0.1:8080" placeholder:"HOST:PORT" help:"Where the API listens; any free port if this one is taken."`
	Simulator string `default:"127.0.0.1:7700" placeholder:"HOST:PORT" help:"Where the simulator listens; any free port if this one is taken."`
}

// demoMark in a folder says that a demo made it, so that a demo may empty it.
const demoMark = ".wafleet-demo"

// Run tells the story: a simulator, a gateway, two numbers, a message there and back.
func (c *demoCmd) Run(ctx context.Context, p *program) (err error) {
	release, err := freshFolder(c.Folder)
	if err != nil {
		return err
	}
	defer release()
	logPath := filepath.Join(c.Folder, "wafleet.log")
	logFile, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600) //nolint:gosec // the caller names the folder
	if err != nil {
		return fmt.Errorf("open the demo's log: %w", err)
	}
	defer func() { err = errors.Join(err, logFile.Close()) }()

	cfg := demoConfig(c.Folder)
	quiet := &program{environ: p.environ, stdout: logFile, stderr: logFile}
	log := newLogger(logFile, &cfg.Logging)

	sim, err := wasim.New(wasim.Options{Log: log, FewKeys: true})
	if err != nil {
		return err
	}
	simListener, err := listenOrAny(ctx, c.Simulator)
	if err != nil {
		sim.Close()
		return err
	}
	network, err := wa.SimulatedNetwork(sim.RootKey(), dialLoopback(simListener.Addr().String()))
	if err != nil {
		sim.Close()
		return err
	}
	cfg.Listen = c.Listen

	hooks, err := receiveHooks(ctx)
	if err != nil {
		sim.Close()
		return err
	}
	defer hooks.close()

	// The story runs beside the gateway and decides when a --once ends.
	stopped := ctx // by a signal
	ctx, finish := context.WithCancel(ctx)
	defer finish()
	told := make(chan error, 1)
	begin := func(u running) {
		s := &story{hooks: hooks, out: p.stdout, sim: sim, simURL: "http://" + simListener.Addr().String(), api: u.URL, ops: u.OpsURL, admin: u.AdminKey, log: logPath}
		go func() {
			sctx, cancel := context.WithTimeout(ctx, storyLimit)
			err := s.tell(sctx)
			cancel()
			told <- err
			if err != nil || c.Once {
				finish()
				return
			}
			s.invite()
			s.tellOn(ctx)
		}()
	}
	_, _ = fmt.Fprintln(p.stdout, "Starting the WhatsApp simulator and a gateway that believes it.")
	err = runParts(ctx, log, stopLimit, []part{
		{"simulator", stageBack, func(ctx context.Context) error {
			stop := context.AfterFunc(ctx, sim.Close)
			defer stop()
			return sim.Serve(simListener)
		}},
		{"gateway", stageFront, func(ctx context.Context) error {
			return quiet.up(ctx, cfg, upOptions{command: "demo", mode: store.ModeSimulated, network: network, ready: begin, quiet: true, anyPort: true})
		}},
	}, func() {})
	select {
	case storyErr := <-told:
		if storyErr != nil && stopped.Err() != nil {
			storyErr = errStoryStopped // what it waited for just then says nothing
		}
		return errors.Join(storyErr, err)
	default:
		if err == nil && c.Once {
			err = errStoryStopped
		}
		return err
	}
}

// errStoryStopped: a signal came before the story's end.
var errStoryStopped = errors.New("demo: stopped before every step was seen")

// demoConfig is every setting's default, whatever the environment says, in the demo's own folder.
func demoConfig(folder string) *config.Config {
	cfg := &config.Config{}
	cmdline.Describe(cfg)
	cfg.DataDir, cfg.WebhookAllowPrivate = folder, true // the story's endpoint is on loopback
	return cfg
}

// freshFolder empties a folder that a demo made, or makes one. It refuses any other folder, and one in
// which a demo runs: until release is called or the process ends.
func freshFolder(dir string) (release func(), err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("demo folder: %w", err)
	}
	refuse := func(problem string) (func(), error) {
		return nil, &usageError{&config.Error{Setting: "--folder", Problem: dir + " " + problem + ": name another folder"}}
	}
	mark := filepath.Join(dir, demoMark)
	if len(entries) > 0 {
		if _, err := os.Stat(mark); err != nil {
			return refuse("is not empty and no demo made it")
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the demo folder: %w", err)
	}
	release, err = lockFile(mark)
	if errors.Is(err, errLocked) {
		return refuse("is in use by another demo")
	}
	if err != nil {
		return nil, fmt.Errorf("make the demo folder: %w", err)
	}
	for _, e := range entries {
		if e.Name() == demoMark {
			continue // it is the lock
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			release()
			return nil, fmt.Errorf("empty the demo folder: %w", err)
		}
	}
	return release, nil
}

// listenOrAny listens on addr, or on any free port of its host if that one can't be had.
func listenOrAny(ctx context.Context, addr string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("%q is not HOST:PORT: %w", addr, err)
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if _, wrong := errors.AsType[*net.AddrError](err); err == nil || wrong {
		return ln, err
	}
	if ln, err = (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, "0")); err != nil {
		return nil, fmt.Errorf("%s can't be listened on: %w", addr, err)
	}
	return ln, nil
}
