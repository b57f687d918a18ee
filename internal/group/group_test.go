package group_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/group"
)

// log is what a committer was given, batch by batch.
type log struct {
	mu      sync.Mutex
	batches [][]int
}

func (l *log) add(steps []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.batches = append(l.batches, steps)
}

func TestWhoComesDuringACommitSharesTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got log
		c := group.New(time.Minute, func(_ context.Context, steps []int) error {
			got.add(steps)
			time.Sleep(time.Second)
			return nil
		})
		start := time.Now()
		for i := range 5 {
			go func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				if err := c.Do(t.Context(), i); err != nil {
					t.Errorf("Do(%d) = %v", i, err)
				}
			}()
		}
		time.Sleep(10 * time.Millisecond)
		c.Wait()
		if diff := cmp.Diff([][]int{{0}, {1, 2, 3, 4}}, got.batches); diff != "" {
			t.Errorf("batches (-want +got):\n%s", diff)
		}
		if d := time.Since(start); d != 2*time.Second {
			t.Errorf("five steps took %v, want two commits: 2s", d)
		}
	})
}

func TestWhoComesBeforeACommitCanBeginSharesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got log
		c := group.New(time.Minute, func(_ context.Context, steps []int) error {
			got.add(steps)
			return nil
		})
		c.Ready = func(context.Context) { time.Sleep(time.Second) }
		gone, leave := context.WithCancel(t.Context())
		for i, ctx := range []context.Context{t.Context(), gone, t.Context()} {
			go func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				if err := c.Do(ctx, i); !errors.Is(err, ctx.Err()) {
					t.Errorf("Do(%d) = %v, want %v", i, err, ctx.Err())
				}
			}()
		}
		time.Sleep(500 * time.Millisecond)
		leave()
		time.Sleep(time.Second)
		c.Wait()
		if diff := cmp.Diff([][]int{{0, 2}}, got.batches); diff != "" {
			t.Errorf("batches (-want +got):\n%s", diff)
		}
	})
}

func TestAPoisonStepFailsAlone(t *testing.T) {
	for name, fail := range map[string]func() error{
		"rejected": func() error { return group.Rejected(errors.New("poison")) },
		"panic":    func() error { panic("poison") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := group.New(time.Minute, func(_ context.Context, steps []int) error {
					time.Sleep(time.Second)
					if slices.Contains(steps, 2) {
						return fail()
					}
					return nil
				})
				var wg sync.WaitGroup
				for i := range 5 {
					wg.Go(func() {
						if err := c.Do(t.Context(), i); (err != nil) != (i == 2) {
							t.Errorf("Do(%d) = %v, want an error of step 2 only", i, err)
						}
					})
				}
				wg.Wait()
			})
		})
	}
}

func TestAnErrorThatSaysNothingOfTheStepsGoesToAllOfThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		commits := 0
		c := group.New(time.Minute, func(context.Context, []int) error {
			commits++
			time.Sleep(time.Second)
			return errors.New("the database is away")
		})
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				if err := c.Do(t.Context(), i); err == nil {
					t.Errorf("Do(%d) = nil, want the error", i)
				}
			})
		}
		wg.Wait()
		if commits < 1 || commits > 2 { // whoever came before the first began goes with it
			t.Errorf("%d commits, want 2 at most: nothing is tried again", commits)
		}
	})
}

func TestACallerLeavesWhenItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got log
		c := group.New(time.Minute, func(_ context.Context, steps []int) error {
			got.add(steps)
			time.Sleep(time.Second)
			return nil
		})
		start := time.Now()
		var wg sync.WaitGroup
		for i, limit := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, time.Hour} {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				err := c.Do(ctx, i)
				if want := limit < time.Second; errors.Is(err, context.DeadlineExceeded) != want || time.Since(start) > 3*time.Second {
					t.Errorf("Do(%d) = %v after %v", i, err, time.Since(start))
				}
			})
			synctest.Wait() // one after the other
		}
		wg.Wait()
		c.Wait()
		// The first was under way and goes on; the second had not begun and never does.
		if diff := cmp.Diff([][]int{{0}, {2}}, got.batches); diff != "" {
			t.Errorf("batches (-want +got):\n%s", diff)
		}
	})
}

func TestACommitEndsAtItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := group.New(5*time.Second, func(ctx context.Context, _ []int) error {
			<-ctx.Done()
			return ctx.Err()
		})
		start := time.Now()
		if err := c.Do(t.Context(), 1); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 5*time.Second {
			t.Errorf("Do = %v after %v, want the limit's error after 5s", err, time.Since(start))
		}
	})
}

func TestAVeryLongQueueIsCommittedInPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got log
		c := group.New(time.Minute, func(_ context.Context, steps []int) error {
			got.add(steps)
			time.Sleep(time.Second)
			return nil
		})
		var wg sync.WaitGroup
		for i := range 2*group.Most + 2 {
			wg.Go(func() {
				if err := c.Do(t.Context(), i); err != nil {
					t.Errorf("Do(%d) = %v", i, err)
				}
			})
		}
		wg.Wait()
		var sizes []string
		for _, b := range got.batches[1:] {
			sizes = append(sizes, fmt.Sprint(len(b)))
		}
		n := 0
		for _, b := range got.batches {
			n += len(b)
			if len(b) > group.Most {
				t.Errorf("a batch of %d, want at most %d", len(b), group.Most)
			}
		}
		if n != 2*group.Most+2 {
			t.Errorf("%d steps committed in batches of %v, want all %d once", n, sizes, 2*group.Most+2)
		}
	})
}

func TestAStepInNoHurryGoesWithTheNextThatIsOrAfterItsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got log
		c := group.New(time.Minute, func(_ context.Context, steps []int) error {
			got.add(steps)
			return nil
		})
		start := time.Now()
		do := func(step int, wait, want time.Duration) {
			if err := c.DoWithin(t.Context(), step, wait); err != nil || time.Since(start) != want {
				t.Errorf("DoWithin(%d, %v) = %v after %v, want it after %v", step, wait, err, time.Since(start), want)
			}
		}
		var wg sync.WaitGroup
		wg.Go(func() { do(1, 10*time.Millisecond, 4*time.Millisecond) })
		time.Sleep(2 * time.Millisecond)
		wg.Go(func() { do(2, 10*time.Millisecond, 4*time.Millisecond) })
		time.Sleep(2 * time.Millisecond)
		wg.Go(func() { do(3, 0, 4*time.Millisecond) })
		wg.Wait()
		wg.Go(func() { do(4, 10*time.Millisecond, 14*time.Millisecond) })
		wg.Wait()
		if diff := cmp.Diff([][]int{{1, 2, 3}, {4}}, got.batches); diff != "" {
			t.Errorf("batches (-want +got):\n%s", diff)
		}
	})
}
