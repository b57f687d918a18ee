package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

type healthCmd struct {
	OpsListen string `setting:"OPS_LISTEN" default:"127.0.0.1:9090" placeholder:"HOST:PORT" group:"http" help:"Where that process was told to listen."`
}

// Run asks /readyz, so that a container needs no other program for it.
func (c *healthCmd) Run(ctx context.Context, p *program) error {
	host, port, err := net.SplitHostPort(c.OpsListen)
	if err != nil {
		return &usageError{fmt.Errorf("OPS_LISTEN is %q: use HOST:PORT", c.OpsListen)}
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	ctx, cancel := context.WithTimeout(ctx, checkTime+httpTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask whether it is ready: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // it is read
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err != nil {
		return fmt.Errorf("ask whether it is ready: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it is not ready: %s", strings.TrimSpace(string(body)))
	}
	_, err = fmt.Fprintln(p.stdout, strings.TrimSpace(string(body)))
	return err
}

// httpTime is what a request takes besides the checks.
const httpTime = time.Second
