package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	"github.com/wafleet/wafleet/internal/config"
	"github.com/wafleet/wafleet/internal/wasim"
)

type simCmd struct {
	config.Logging
	Listen string `default:"127.0.0.1:7700" placeholder:"HOST:PORT" help:"Where the simulator listens. It has no password: keep it on this machine."`
}

// Run runs the simulator.
func (c *simCmd) Run(ctx context.Context, p *program) error {
	log := newLogger(p.stderr, &c.Logging)
	s, err := wasim.New(wasim.Options{Log: log})
	if err != nil {
		return err
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Listen)
	if err != nil {
		s.Close()
		return fmt.Errorf("--listen %s can't be listened on: %w", c.Listen, err)
	}
	if addr, ok := ln.Addr().(*net.TCPAddr); ok && !addr.IP.IsLoopback() {
		log.WarnContext(ctx, "the simulator is open to others than this machine and asks nobody for a password", slog.String("address", addr.String()))
	}
	_, _ = fmt.Fprintf(p.stdout, "WhatsApp simulator on http://%s/sim/\nPoint a worker at it: wafleet up --simulator http://%s\n", ln.Addr(), ln.Addr())
	return runParts(ctx, log, stopLimit, []part{{"simulator", stageFront, func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, s.Close)
		defer stop()
		return s.Serve(ln)
	}}}, func() {})
}
