package cluster

import (
	"context"
	"fmt"
	"net"
	"time"
)

// Until calls check, at growing distances up to 100 ms, until it returns nil, and returns its last error when the time is
// over or ctx ends.
func Until(ctx context.Context, within time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := check()
		if err == nil {
			return nil
		}
		if Pause(ctx, pause) != nil {
			return fmt.Errorf("not within %s: %w", within, err)
		}
	}
}

// Pause waits, or returns the error of a context that ended first.
func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// freePort finds a loopback port that nobody listens on now.
func freePort(ctx context.Context) (int, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer ln.Close() //nolint:errcheck // it accepted nothing
	addr, ok := ln.Addr().(*net.TCPAddr)
	if !ok {
		return 0, fmt.Errorf("find a free port: listening on %s", ln.Addr())
	}
	return addr.Port, nil
}
