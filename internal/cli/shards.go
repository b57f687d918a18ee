package cli

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wafleet/wafleet/internal/fleet"
)

// shardWatch looks with each beat whether the registered workers cover every shard and count as this
// process does. What it finds is told in the log, by /readyz and as metrics, and stops nothing: work is
// claimed by whoever owns a session, so all that a wrong configuration costs is sessions without an owner,
// and a process that was not ready because of others would keep a rollout from ever mending it.
type shardWatch struct {
	problems   atomic.Pointer[string]
	uncovered  prometheus.Gauge
	mismatched prometheus.Gauge
	shortfall  prometheus.Gauge
}

// watchShards adds the watch.
func (pr *process) watchShards() {
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		pr.registry.MustRegister(g)
		return g
	}
	w := &shardWatch{
		uncovered:  gauge("wafleet_shards_uncovered", "Shards without a live worker, as this process counts them: their sessions are down."),
		mismatched: gauge("wafleet_shards_mismatched_workers", "Live workers with another SHARD_COUNT than this process."),
		shortfall:  gauge("wafleet_workers_shortfall_sessions", "Sessions that would find no owner if the worker went whose loss costs most; above 0 the others are too few or too small."),
	}
	pr.ready.warnings = append(pr.ready.warnings, check{"shards", func(context.Context) error {
		if text := w.problems.Load(); text != nil && *text != "" {
			return errors.New(*text)
		}
		return nil
	}})
	pr.add("shard watch", stageBack, func(ctx context.Context) error {
		w.run(ctx, pr)
		return nil
	})
}

// shardPatience is how many looks in a row must find the same before it is told as an error: processes
// that start together do not see each other at first.
const shardPatience = 2

func (w *shardWatch) run(ctx context.Context, pr *process) {
	beat := time.NewTicker(pr.cfg.LeaseBeat)
	defer beat.Stop()
	var told, last string
	seen, short := 0, 0
	for {
		coverage, err := w.look(ctx, pr)
		if err == nil {
			if text := coverage.Problems(); text != last {
				last, seen = text, 1
			} else {
				seen++
			}
			// A mismatch is told at once: no start mends it.
			if last != told && (seen >= shardPatience || len(coverage.Mismatched) > 0) {
				if told = last; told == "" {
					pr.log.InfoContext(ctx, "shards are covered, and every worker counts them alike")
				} else {
					pr.log.ErrorContext(ctx, "shards are not as they should be", slog.String("problem", told))
				}
			}
			if (coverage.Shortfall > 0) != (short > 0) {
				if coverage.Shortfall > 0 {
					pr.log.WarnContext(ctx, "if this worker went, the others could not take all of its sessions: add a worker, or raise WORKER_MAX_SESSIONS",
						slog.String("worker", coverage.Worst), slog.Int("sessions", coverage.Shortfall))
				}
				short = coverage.Shortfall
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
		}
	}
}

func (w *shardWatch) look(ctx context.Context, pr *process) (fleet.Coverage, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	workers, err := pr.store.Workers(ctx)
	if err != nil {
		pr.log.DebugContext(ctx, "workers can't be read; looking again", slog.Any("err", err))
		return fleet.Coverage{}, err
	}
	coverage := fleet.Cover(pr.cfg.Shards(), workers, pr.cfg.LeaseTTL)
	text := coverage.Problems()
	w.problems.Store(&text)
	w.uncovered.Set(float64(len(coverage.Uncovered)))
	w.mismatched.Set(float64(len(coverage.Mismatched)))
	w.shortfall.Set(float64(coverage.Shortfall))
	return coverage, nil
}
