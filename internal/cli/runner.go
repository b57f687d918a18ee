package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// stopLimit bounds a stop. A direct send in flight has 20 s to settle.
const stopLimit = 25 * time.Second

// The stages of a stop, in order.
const (
	stageFront = iota
	stageWork
	stageBack
	stages
)

// part is something that runs until its context ends.
type part struct {
	name  string
	stage int
	run   func(ctx context.Context) error
}

type partEnd struct {
	part
	err error
}

// errStopping is why a part's context ends in a stop.
var errStopping = errors.New("process is stopping")

// runParts runs parts until ctx ends or one of them does, then stops them stage by stage, within limit. onStop
// is called when the stop begins. A part that ends before is an error.
func runParts(ctx context.Context, log *slog.Logger, limit time.Duration, parts []part, onStop func()) error {
	ends := make(chan partEnd, len(parts))
	left := make([]int, stages)
	running := map[string]bool{}
	var cancels [stages]context.CancelCauseFunc
	for stage := range stages {
		sctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		defer cancel(errStopping)
		cancels[stage] = cancel
		for _, pt := range parts {
			if pt.stage != stage {
				continue
			}
			left[stage]++
			running[pt.name] = true
			go func() { ends <- partEnd{pt, pt.run(sctx)} }()
		}
	}
	var failed error
	ended := func(e partEnd, early bool) {
		left[e.stage]--
		delete(running, e.name)
		switch {
		case e.err != nil && (early || !errors.Is(e.err, context.Canceled)):
			failed = errors.Join(failed, fmt.Errorf("%s: %w", e.name, e.err))
		case early:
			failed = errors.Join(failed, fmt.Errorf("%s ended by itself", e.name))
		}
	}
	select {
	case <-ctx.Done():
		log.InfoContext(ctx, "stopping", slog.Duration("at_most", limit))
	case e := <-ends:
		ended(e, true)
		log.ErrorContext(ctx, "a part ended, so the process stops", slog.String("part", e.name), slog.Any("err", e.err))
	}
	onStop()
	start := time.Now()
	late := time.NewTimer(limit)
	defer late.Stop()
	for stage := range stages {
		cancels[stage](errStopping)
		for left[stage] > 0 {
			select {
			case e := <-ends:
				ended(e, false)
			case <-late.C:
				var names []string
				for name := range running {
					names = append(names, name)
				}
				return errors.Join(failed, fmt.Errorf("stop took longer than %s; still running: %s", limit, strings.Join(names, ", ")))
			}
		}
	}
	log.InfoContext(ctx, "stopped", slog.Duration("took", time.Since(start)))
	return failed
}
