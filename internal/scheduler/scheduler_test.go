package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
)

// start runs a scheduler until stop is called or the test ends.
func start(t *testing.T, s *store.Store, holder string, jobs ...Job) (stop func()) {
	t.Helper()
	return startLogged(t, s, holder, slog.New(slog.DiscardHandler), jobs...)
}

func startLogged(t *testing.T, s *store.Store, holder string, log *slog.Logger, jobs ...Job) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		if err := New(Options{Store: s, Holder: holder, Jobs: jobs, Log: log, Registerer: prometheus.NewRegistry()}).Run(ctx); err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		done.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// count is a job that counts its runs.
func count(n *atomic.Int64, every time.Duration) Job {
	return Job{Name: "job", Every: every, Hold: every, Run: func(context.Context) (int, error) {
		n.Add(1)
		return 1, nil
	}}
}

func TestTwoSchedulersRunEachSlotOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		url := storetest.SQLiteURL(t)
		var n atomic.Int64
		stopA := start(t, storetest.Open(t, url), "a", count(&n, 10*time.Second))
		stopB := start(t, storetest.Open(t, url), "b", count(&n, 10*time.Second))
		time.Sleep(10*time.Minute + time.Second)
		if got := n.Load(); got != 61 {
			t.Errorf("%d runs in 10 minutes at one per 10 s, want 61 with the first", got)
		}
		stopA()
		stopB()
	})
}

func TestANudgeMakesASlotDueAtOnceAlsoWhileItIsWorkedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		url := storetest.SQLiteURL(t)
		b := bus.NewLocal()
		defer func() { _ = b.Close() }()
		var n, other atomic.Int64
		hold := make(chan struct{}, 10)
		job := Job{Name: "job", Every: time.Hour, Hold: time.Hour, Wake: "look", Run: func(context.Context) (int, error) {
			n.Add(1)
			<-hold
			return 1, nil
		}}
		unnudged := Job{Name: "other", Every: time.Hour, Hold: time.Hour, Run: func(context.Context) (int, error) {
			other.Add(1)
			return 1, nil
		}}
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		for _, holder := range []string{"a", "b"} {
			s := New(Options{Store: storetest.Open(t, url), Bus: b, Holder: holder, Jobs: []Job{job, unnudged}, Log: slog.New(slog.DiscardHandler)})
			done.Go(func() {
				if err := s.Run(ctx); err != nil {
					t.Errorf("Run = %v, want nil", err)
				}
			})
		}
		ran := func(want int64) {
			t.Helper()
			time.Sleep(time.Millisecond) // fake: everybody has done what there is to do
			if got := n.Load(); got != want {
				t.Errorf("%d runs, want %d", got, want)
			}
		}
		nudge := func() {
			if err := b.Publish(t.Context(), "look", ""); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(10 * time.Second)
		ran(1) // the first slot
		nudge()
		ran(1)
		hold <- struct{}{}
		ran(2) // once the first was through
		hold <- struct{}{}
		ran(2)
		nudge()
		ran(3)
		close(hold)
		time.Sleep(time.Minute)
		// The scheduler that did not run it may have been slow to write what it heard, and has it run once more.
		if got := n.Load(); got != 3 && got != 4 {
			t.Errorf("%d runs after the last nudge, want 3, or 4", got)
		}
		if got := other.Load(); got != 1 {
			t.Errorf("%d runs of the job that nobody nudged, want 1", got)
		}
		cancel()
		done.Wait()
	})
}

func TestTwoSchedulersOnPostgresRunEachSlotOnce(t *testing.T) {
	url := storetest.PostgresURL(t)
	var mu sync.Mutex
	slots := map[int64]int{}
	s := storetest.Open(t, url)
	job := Job{Name: "job", Every: 100 * time.Millisecond, Hold: 5 * time.Second, Run: func(ctx context.Context) (int, error) {
		var at int64
		if err := s.DB().QueryRow(ctx, `SELECT next_at FROM schedules WHERE name='job'`).Scan(&at); err != nil {
			return 0, err
		}
		mu.Lock()
		defer mu.Unlock()
		slots[at]++
		return 1, nil
	}}
	start(t, storetest.Open(t, url), "a", job)
	start(t, storetest.Open(t, url), "b", job)
	testkit.Eventually(t, 20*time.Second, func() error {
		mu.Lock()
		defer mu.Unlock()
		if len(slots) < 10 {
			return errors.New("fewer than ten slots")
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	for at, times := range slots {
		if times != 1 {
			t.Errorf("slot %d ran %d times, want once", at, times)
		}
	}
}

func TestASchedulerThatDiesInASlotLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		url := storetest.SQLiteURL(t)
		s := storetest.Open(t, url)
		if err := s.EnsureSchedule(t.Context(), "job", time.Hour); err != nil {
			t.Fatal(err)
		}
		// The dead one took the slot and was never seen again.
		if _, ok, err := s.DueSlot(t.Context(), "job", "dead", time.Minute); !ok || err != nil {
			t.Fatal(ok, err)
		}
		var n atomic.Int64
		stop := start(t, storetest.Open(t, url), "alive", Job{Name: "job", Every: time.Hour, Hold: time.Minute, Run: func(context.Context) (int, error) {
			n.Add(1)
			return 0, nil
		}})
		time.Sleep(59 * time.Second)
		if n.Load() != 0 {
			t.Error("the slot ran while the dead one may still have been at it")
		}
		time.Sleep(2 * time.Second)
		if n.Load() != 1 {
			t.Errorf("the slot of the dead one ran %d times after its hold, want once", n.Load())
		}
		stop()
	})
}

func TestASlotOfADeadSchedulerRunsOnceOnPostgresThoughTwoTakeOver(t *testing.T) {
	url := storetest.PostgresURL(t)
	s := storetest.Open(t, url)
	if err := s.EnsureSchedule(t.Context(), "job", time.Hour); err != nil {
		t.Fatal(err)
	}
	dead, ok, err := s.DueSlot(t.Context(), "job", "dead", time.Second)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	var n atomic.Int64
	var ends atomic.Int64
	job := Job{Name: "job", Every: time.Hour, Hold: time.Minute, Run: func(ctx context.Context) (int, error) {
		now, err := s.Now(ctx)
		ends.Store(now.UnixMilli())
		n.Add(1)
		return 1, err
	}}
	began, err := s.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stopA, stopB := start(t, storetest.Open(t, url), "a", job), start(t, storetest.Open(t, url), "b", job)
	testkit.Eventually(t, 20*time.Second, func() error {
		waits, err := s.SlotWaits(t.Context())
		if err == nil && waits["job"] < 30*time.Minute {
			err = errors.New("the slot is not finished")
		}
		return err
	})
	stopA()
	stopB()
	if n.Load() != 1 {
		t.Errorf("the slot of the dead one ran %d times, want once", n.Load())
	}
	if took := time.UnixMilli(ends.Load()).Sub(began); took < 500*time.Millisecond {
		t.Errorf("it ran %v after the dead one took it, which may still have been at it", took)
	}
	if ok, err := s.FinishSlot(t.Context(), dead); ok || err != nil {
		t.Errorf("FinishSlot by one that comes back from the dead = %v, %v, want false", ok, err)
	}
}

func TestSlotsThatPassedWhileNoneRanAreMadeUpByOneRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		url := storetest.SQLiteURL(t)
		var n atomic.Int64
		start(t, storetest.Open(t, url), "first", count(&n, 10*time.Second))()
		time.Sleep(time.Hour)
		ran := n.Load()
		stopA := start(t, storetest.Open(t, url), "a", count(&n, 10*time.Second))
		stopB := start(t, storetest.Open(t, url), "b", count(&n, 10*time.Second))
		time.Sleep(time.Millisecond)
		if got := n.Load() - ran; got != 1 {
			t.Errorf("%d runs after an hour without a scheduler, want 1", got)
		}
		time.Sleep(time.Minute)
		if got := n.Load() - ran; got != 7 {
			t.Errorf("%d runs a minute later, want 7: the beat goes on", got)
		}
		stopA()
		stopB()
	})
}

func TestAStoppedSchedulerGivesItsSlotBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		url := storetest.SQLiteURL(t)
		var began, finished atomic.Int64
		job := func(block bool) Job {
			return Job{Name: "job", Every: time.Hour, Hold: 10 * time.Minute, Run: func(ctx context.Context) (int, error) {
				began.Add(1)
				if block {
					<-ctx.Done()
					return 0, ctx.Err()
				}
				finished.Add(1)
				return 0, nil
			}}
		}
		stop := start(t, storetest.Open(t, url), "first", job(true))
		time.Sleep(time.Second)
		stop()
		stopSecond := start(t, storetest.Open(t, url), "second", job(false))
		time.Sleep(time.Second)
		if began.Load() != 2 || finished.Load() != 1 {
			t.Errorf("began %d and finished %d, want 2 and 1", began.Load(), finished.Load())
		}
		stopSecond()
	})
}

func TestAJobEndsBeforeItsHoldDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		url := storetest.SQLiteURL(t)
		var working, most atomic.Int64
		slow := Job{Name: "job", Every: time.Second, Hold: 20 * time.Second, Run: func(ctx context.Context) (int, error) {
			most.Store(max(most.Load(), working.Add(1)))
			defer working.Add(-1)
			<-ctx.Done()
			return 0, ctx.Err()
		}}
		stopA := start(t, storetest.Open(t, url), "a", slow)
		stopB := start(t, storetest.Open(t, url), "b", slow)
		time.Sleep(10 * time.Minute)
		if most.Load() != 1 {
			t.Errorf("%d schedulers worked on one slot at once, want 1", most.Load())
		}
		stopA()
		stopB()
	})
}

func TestAFailedSlotIsTriedAgainAfterAPauseAndOtherJobsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storetest.SQLite(t)
		var fails, others atomic.Int64
		reg := prometheus.NewRegistry()
		sched := New(Options{Store: s, Holder: "a", Log: slog.New(slog.DiscardHandler), Registerer: reg, Jobs: []Job{
			{Name: "bad", Every: time.Hour, Hold: time.Minute, Run: func(context.Context) (int, error) {
				if fails.Add(1) < 4 {
					return 0, errors.New("not today")
				}
				return 3, nil
			}},
			{Name: "good", Every: 10 * time.Second, Hold: time.Minute, Run: func(context.Context) (int, error) {
				others.Add(1)
				return 0, nil
			}},
		}})
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { _ = sched.Run(ctx) })
		time.Sleep(time.Minute + time.Second)
		if fails.Load() != 4 || others.Load() != 7 {
			t.Errorf("the bad job ran %d times and the good one %d, want 4 and 7", fails.Load(), others.Load())
		}
		if got := counter(t, reg, "wafleet_scheduler_slots_total", "bad", "failed"); got != 3 {
			t.Errorf("failed slots = %v, want 3", got)
		}
		if got := counter(t, reg, "wafleet_scheduler_rows_total", "bad"); got != 3 {
			t.Errorf("rows = %v, want 3", got)
		}
		cancel()
		done.Wait()
	})
}

func TestTheSchedulerWaitsForADatabaseThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		url := storetest.SQLiteURL(t)
		s := storetest.Open(t, url)
		if _, err := s.DB().Exec(t.Context(), `ALTER TABLE schedules RENAME TO away`); err != nil {
			t.Fatal(err)
		}
		var n atomic.Int64
		stop := start(t, storetest.Open(t, url), "a", count(&n, time.Minute))
		time.Sleep(time.Minute)
		if n.Load() != 0 {
			t.Fatal("ran without a schedule")
		}
		if _, err := s.DB().Exec(t.Context(), `ALTER TABLE away RENAME TO schedules`); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if n.Load() != 1 {
			t.Errorf("ran %d times after the database came back, want once", n.Load())
		}
		stop()
	})
}

func TestBatchesLoopUntilNothingIsLeft(t *testing.T) {
	left := 3*batchSize + 7
	batches := 0
	n, err := drain(t.Context(), func(_ context.Context, limit int) (int, error) {
		batches++
		n := min(limit, left)
		left -= n
		return n, nil
	})
	if n != 3*batchSize+7 || batches != 4 || err != nil {
		t.Errorf("drain = %d rows in %d batches, %v", n, batches, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	n, err = drain(ctx, func(_ context.Context, limit int) (int, error) {
		cancel()
		return limit, nil
	})
	if n != batchSize || !errors.Is(err, context.Canceled) {
		t.Errorf("drain of a stopping scheduler = %d, %v, want one batch and its cancellation", n, err)
	}
}

// counter reads a counter by its label values, in the order of the label names.
func counter(t *testing.T, reg *prometheus.Registry, name string, labels ...string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var have []string
			for _, l := range m.GetLabel() {
				have = append(have, l.GetValue())
			}
			if slices.Equal(have, labels) {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}
