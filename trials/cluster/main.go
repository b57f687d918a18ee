package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// ErrShort says that a goal was not reached; the trial's last line has told so.
var ErrShort = errors.New("short of a goal")

// Main is the main function of a trial: SIGINT and SIGTERM end run's context, and an error of run is told under the
// trial's name and makes the exit code 1.
func Main(name string, run func(context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err == nil {
		return
	}
	if !errors.Is(err, ErrShort) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	}
	os.Exit(1)
}
