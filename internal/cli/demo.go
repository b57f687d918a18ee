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

	"github.com/alecthomas/kong"

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
	if err := freshFolder(c.Folder); err != nil {
		return err
	}
	logPath := filepath.Join(c.Folder, "wafleet.log")
	logFile, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600) //nolint:gosec // the caller names the folder
	if err != nil {
		return fmt.Errorf("open the demo's log: %w", err)
	}
	defer func() { err = errors.Join(err, logFile.Close()) }()

	cfg, err := demoConfig(c.Folder)
	if err != nil {
		return err
	}
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
	if cfg.Listen, err = freeAddress(ctx, c.Listen); err != nil {
		sim.Close()
		return err
	}
	if cfg.OpsListen, err = freeAddress(ctx, cfg.OpsListen); err != nil {
		sim.Close()
		return err
	}

	hooks, err := receiveHooks(ctx)
	if err != nil {
		sim.Close()
		return err
	}
	defer hooks.close()

	// The story runs beside the gateway and decides when a --once ends.
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
	fmt.Fprintln(p.stdout, "Starting the WhatsApp simulator and a gateway that believes it.")
	err = runParts(ctx, log, []part{
		{"simulator", stageBack, func(ctx context.Context) error {
			stop := context.AfterFunc(ctx, sim.Close)
			defer stop()
			return sim.Serve(simListener)
		}},
		{"gateway", stageFront, func(ctx context.Context) error {
			return quiet.up(ctx, cfg, upOptions{command: "demo", mode: store.ModeSimulated, network: network, ready: begin, quiet: true})
		}},
	}, func() {})
	select {
	case storyErr := <-told:
		return errors.Join(storyErr, err)
	default:
		return err // stopped by a signal in the middle of the story, or never begun
	}
}

// demoConfig is every setting's default, whatever the environment says, in the demo's own folder.
func demoConfig(folder string) (*config.Config, error) {
	cfg := &config.Config{}
	parser, err := kong.New(cfg, config.Groups())
	if err != nil {
		return nil, err
	}
	if _, err := parser.Parse(nil); err != nil {
		return nil, err
	}
	cfg.DataDir, cfg.WebhookAllowPrivate = folder, true // the story's endpoint is on loopback
	return cfg, nil
}

// freshFolder empties a folder that a demo made, or makes one. It refuses any other folder.
func freshFolder(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("demo folder: %w", err)
	}
	if len(entries) > 0 {
		if _, err := os.Stat(filepath.Join(dir, demoMark)); err != nil {
			return &usageError{&config.Error{Setting: "--folder", Problem: fmt.Sprintf("%s is not empty and no demo made it: name another folder", dir)}}
		}
		for _, e := range entries {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("empty the demo folder: %w", err)
			}
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the demo folder: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, demoMark), nil, 0o600); err != nil {
		return fmt.Errorf("make the demo folder: %w", err)
	}
	return nil
}

// listenOrAny listens on addr, or on any free port of its host if that one is taken.
func listenOrAny(ctx context.Context, addr string) (net.Listener, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err == nil {
		return ln, nil
	}
	host, _, splitErr := net.SplitHostPort(addr)
	if splitErr != nil {
		return nil, fmt.Errorf("%s is not HOST:PORT: %w", addr, splitErr)
	}
	if ln, err = (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, "0")); err != nil {
		return nil, fmt.Errorf("%s can't be listened on: %w", addr, err)
	}
	return ln, nil
}

// freeAddress returns addr if its port is free now, else the host with a port that is.
func freeAddress(ctx context.Context, addr string) (string, error) {
	ln, err := listenOrAny(ctx, addr)
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}
