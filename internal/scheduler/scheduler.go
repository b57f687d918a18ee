// Package scheduler runs the periodic jobs of a fleet, each once per slot however many schedulers run.
//
// There is no leader. A job has a row in schedules; whoever takes its due slot holds it for a while,
// does the work and finishes it, and only finishing moves the schedule on:
//
//	due ──take──► held ──finish──► due again on the next beat
//	 ▲              │
//	 └── released: the job failed (after a pause), or its scheduler is stopping (at once)
//	 └── the hold ended: its scheduler died
//
// So a slot may be begun twice and is never lost; what keeps two from working at once is that a job's
// context ends before its hold does. Every job is therefore safe to begin again: it looks at what is
// due now, in batches until there is no more.
//
// The scheduler only closes what has no live owner. It never sends and never repeats a message.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/store"
)

const (
	lookMost   = 5 * time.Second // a change of the schedules is seen this late at most
	lookAgain  = time.Second     // after a failed look
	failPause  = 5 * time.Second // before a failed slot may be taken again
	finishTime = 5 * time.Second // for the last write of a slot, also when stopping
)

// Job is one periodic piece of work.
type Job struct {
	Name  string
	Every time.Duration
	// Hold is how long a slot is held at most. Run's context ends a tenth of it earlier.
	Hold time.Duration
	// Wake is a topic of the bus whose nudges make a slot due at once; "" = none.
	Wake string
	// Run does what is due now and returns how many rows it changed.
	Run func(ctx context.Context) (int, error)
}

// Options of New.
type Options struct {
	Store      *store.Store
	Bus        bus.Bus // nil: nobody nudges
	Holder     string  // unique per process and start
	Jobs       []Job
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
}

// Scheduler runs jobs.
type Scheduler struct {
	Options
	metrics *metrics
}

// New returns a scheduler; Run starts it.
func New(o Options) *Scheduler {
	return &Scheduler{Options: o, metrics: newMetrics(o.Registerer)}
}

// Run runs jobs until ctx ends, then gives back what it holds and returns nil.
func (s *Scheduler) Run(ctx context.Context) error {
	if s.Holder == "" || len(s.Jobs) == 0 {
		return errors.New("scheduler: no holder or no jobs")
	}
	var running sync.WaitGroup
	defer running.Wait()
	busy := map[string]bool{}
	ended := make(chan string, len(s.Jobs))
	woken, stop := s.listen(ctx)
	defer stop()
	again := map[string]bool{} // nudged while their slot was worked on, or could not be made due
	ensured := false
	for ctx.Err() == nil {
		wait := lookAgain
		if !ensured {
			if err := s.ensure(ctx); err != nil {
				s.warn(ctx, "schedules can't be written", err)
			} else {
				ensured = true
			}
		}
		for name := range again {
			if !busy[name] && s.hasten(ctx, name) {
				delete(again, name)
			}
		}
		if ensured {
			waits, err := s.Store.SlotWaits(ctx)
			if err != nil {
				s.warn(ctx, "schedules can't be read", err)
			} else {
				wait = lookMost
				for _, job := range s.Jobs {
					left, known := waits[job.Name]
					switch {
					case busy[job.Name]: // its end wakes the loop
					case !known:
						ensured = false
					case left > 0:
						wait = min(wait, left)
					default:
						busy[job.Name] = true
						running.Go(func() {
							s.slot(ctx, job)
							ended <- job.Name
						})
					}
				}
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case name := <-ended:
			delete(busy, name)
		case name := <-woken:
			again[name] = true
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// listen gives the names of jobs that somebody nudged. What is published while a nudge waits to be heard is the
// same nudge.
func (s *Scheduler) listen(ctx context.Context) (woken <-chan string, stop func()) {
	heard := make(chan string, len(s.Jobs))
	jobs := map[string]string{}
	for _, job := range s.Jobs {
		if job.Wake != "" {
			jobs[job.Wake] = job.Name
		}
	}
	if s.Bus == nil || len(jobs) == 0 {
		return heard, func() {}
	}
	stop, err := s.Bus.Subscribe(ctx, func(topic, _ string) {
		select {
		case heard <- jobs[topic]:
		default:
		}
	}, slices.Sorted(maps.Keys(jobs))...)
	if err != nil {
		s.warn(ctx, "no nudges are heard", err)
		return heard, func() {}
	}
	return heard, stop
}

// hasten makes a job's next slot due now, and reports whether that need not be tried again.
func (s *Scheduler) hasten(ctx context.Context, name string) bool {
	err := s.Store.HastenSlot(ctx, name)
	if err != nil {
		s.warn(ctx, "slot can't be made due", err, slog.String("job", name))
	}
	return err == nil
}

func (s *Scheduler) ensure(ctx context.Context) error {
	for _, job := range s.Jobs {
		if err := s.Store.EnsureSchedule(ctx, job.Name, job.Every); err != nil {
			return err
		}
	}
	return nil
}

// slot takes a due slot, works on it and ends it.
func (s *Scheduler) slot(ctx context.Context, job Job) {
	// The deadline counts from before the hold begins, so it ends before the hold does.
	work, cancel := context.WithTimeout(ctx, job.Hold-job.Hold/10)
	defer cancel()
	start := time.Now()
	slot, ok, err := s.Store.DueSlot(work, job.Name, s.Holder, job.Hold)
	if err != nil {
		s.warn(ctx, "slot can't be taken", err, slog.String("job", job.Name))
		rest(ctx, lookAgain)
		return
	}
	if !ok {
		return // another scheduler was first
	}
	rows, err := job.Run(work)
	s.metrics.rows.WithLabelValues(job.Name).Add(float64(rows))
	s.metrics.seconds.WithLabelValues(job.Name).Observe(time.Since(start).Seconds())

	last, cancelLast := context.WithTimeout(context.WithoutCancel(ctx), finishTime)
	defer cancelLast()
	if err != nil {
		pause, outcome := failPause, "failed"
		if ctx.Err() != nil {
			pause, outcome = 0, "released"
		} else {
			s.warn(ctx, "job failed", err, slog.String("job", job.Name))
		}
		if err := s.Store.ReleaseSlot(last, slot, pause); err != nil {
			s.warn(ctx, "slot can't be released", err, slog.String("job", job.Name))
		}
		s.metrics.slots.WithLabelValues(job.Name, outcome).Inc()
		return
	}
	outcome := "done"
	if ok, err := s.Store.FinishSlot(last, slot); err != nil {
		s.warn(ctx, "slot can't be finished", err, slog.String("job", job.Name))
		outcome = "failed"
	} else if !ok {
		outcome = "lost"
	}
	s.metrics.slots.WithLabelValues(job.Name, outcome).Inc()
	if rows > 0 {
		s.Log.DebugContext(ctx, "job done", slog.String("job", job.Name), slog.Int("rows", rows), slog.Duration("took", time.Since(start)))
	}
}

func (s *Scheduler) warn(ctx context.Context, msg string, err error, attrs ...slog.Attr) {
	if ctx.Err() != nil {
		return
	}
	s.Log.LogAttrs(ctx, slog.LevelWarn, msg, append(attrs, slog.Any("err", err))...) //nolint:sloglint // every caller gives a constant
}

func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// drain calls batch until it changes fewer rows than asked for.
func drain(ctx context.Context, batch func(ctx context.Context, limit int) (int, error)) (int, error) {
	total := 0
	for {
		n, err := batch(ctx, batchSize)
		total += n
		if err != nil {
			return total, err
		}
		if n < batchSize {
			return total, nil
		}
		if err := ctx.Err(); err != nil {
			return total, fmt.Errorf("stopped in the middle: %w", err)
		}
	}
}
