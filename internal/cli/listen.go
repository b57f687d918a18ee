package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

const (
	quickGrace = 2 * time.Second // requests may finish in peace
	hardGrace  = time.Second     // and end quickly when their context does
)

// What one request may take. Writing counts from the header's end, so it leaves room for a body as slow
// as readLimit allows and for the slowest answer: a request that waits for another one's key (10 s),
// then works (15 s), then waits for its message as Prefer asks (30 s).
const (
	headerLimit = 10 * time.Second
	readLimit   = time.Minute
	writeLimit  = 2 * time.Minute
)

// listener is an HTTP server whose port is taken before anything else starts.
type listener struct {
	net.Listener
	server *http.Server
	cancel context.CancelFunc
}

// listen takes the port, or with anyPort a free one if it is taken. Requests begin with serve.
func listen(ctx context.Context, setting, addr string, anyPort bool, h http.Handler, log *slog.Logger) (*listener, error) {
	take := (&net.ListenConfig{}).Listen
	if anyPort {
		take = func(ctx context.Context, _, addr string) (net.Listener, error) { return listenOrAny(ctx, addr) }
	}
	ln, err := take(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s %s can't be listened on: %w", setting, addr, err)
	}
	return serveOn(ctx, ln, h, log), nil
}

// serveOn is listen on a port that is taken already.
func serveOn(ctx context.Context, ln net.Listener, h http.Handler, log *slog.Logger) *listener {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	return &listener{ln, &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerLimit,
		ReadTimeout:       readLimit,
		WriteTimeout:      writeLimit,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return base },
	}, cancel}
}

// url is where the listener is reached from this machine.
func (l *listener) url() string {
	addr, ok := l.Addr().(*net.TCPAddr)
	if ok && addr.IP.IsUnspecified() {
		return fmt.Sprintf("http://127.0.0.1:%d", addr.Port)
	}
	return "http://" + l.Addr().String()
}

// serve answers until ctx ends. Requests then have a moment to finish; those that wait for something
// are ended.
func (l *listener) serve(ctx context.Context) error {
	defer l.cancel()
	failed := make(chan error, 1)
	go func() { failed <- l.server.Serve(l.Listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), quickGrace)
	err := l.server.Shutdown(grace)
	cancel()
	if errors.Is(err, context.DeadlineExceeded) {
		l.cancel()
		hard, cancelHard := context.WithTimeout(context.WithoutCancel(ctx), hardGrace)
		if err = l.server.Shutdown(hard); err != nil {
			err = l.server.Close()
		}
		cancelHard()
	}
	if served := <-failed; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
