package testkit

import (
	"log/slog"
	"testing"
	"time"
)

// Eventually calls check until it returns nil, at growing distances between 5 ms and 100 ms, and fails the test with
// its last error when timeout has passed. It is for what can only be watched from outside: real PostgreSQL, Redis, TCP
// and other processes. Inside a synctest bubble wait for the event itself instead.
func Eventually(t testing.TB, timeout time.Duration, check func() error) {
	t.Helper()
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	pause := 5 * time.Millisecond
	for {
		err := check()
		if err == nil {
			return
		}
		again := time.NewTimer(pause)
		select {
		case <-again.C:
		case <-t.Context().Done():
			again.Stop()
			t.Fatalf("the test ended while waiting: %v", err)
		case <-deadline.C:
			again.Stop()
			// The last pause may have been the longest one: look once more before calling it a failure.
			if err = check(); err != nil {
				t.Fatalf("not within %s: %v", timeout, err)
			}
			return
		}
		pause = min(2*pause, 100*time.Millisecond)
	}
}

// Logger returns a logger whose lines, from debug up, are part of the test's output: shown when the test fails or with
// -v. The lines carry the clock of the goroutine that logs, which is the fake one inside a synctest bubble.
func Logger(t testing.TB) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}
