package worker

import (
	"context"
	"sync"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/plant"
	"github.com/wafleet/wafleet/internal/store"
)

// budgetKeep is how long a session's budget is used before it is read again.
const budgetKeep = time.Minute

// frameCap counts a session's frames on the wire and says when the next one may leave, so that there are
// never more of them than the budget in any 60 seconds, hour and day. First frames have been reserved for,
// and the ledger counts them until they left: for them this is never shorter than what they waited for
// already, unless repeats, which nobody reserves for, or a smaller budget came in between.
//
// It belongs to a term: what left before is read from the attempts.
type frameCap struct {
	mu     sync.Mutex // never held while anything waits
	budget fleet.Budget
	readAt time.Time // zero = never
	left   []int64   // when frames left or were answered, unix ms, oldest first: no more than the largest window needs
}

// read brings the budget up to date, and at first what left before. A frame counts from when its answer was
// there: it left before that.
func (c *frameCap) read(ctx context.Context, s *store.Store, id fleet.SessionID, now time.Time) error {
	c.mu.Lock()
	first, stale := c.readAt.IsZero(), now.Sub(c.readAt) >= budgetKeep
	c.mu.Unlock()
	if !stale && !first {
		return nil
	}
	session, err := s.SessionByID(ctx, id)
	if err != nil {
		return err
	}
	var before []time.Duration
	if first {
		if before, err = s.FrameAges(ctx, id, 24*time.Hour); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.budget, c.readAt = session.EffectiveBudget(now), now
	if first {
		earlier := make([]int64, 0, len(before))
		for _, age := range before {
			earlier = append(earlier, now.Add(-age).UnixMilli())
		}
		c.left = append(earlier, c.left...)
	}
	return nil
}

// count notes that a frame left, now at the latest.
func (c *frameCap) count(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = append(c.left, now.UnixMilli())
	if most := max(c.budget.PerMinute, c.budget.PerHour, c.budget.PerDay, 1); len(c.left) >= 2*most || len(c.left)%1024 == 0 {
		c.forget(now, most)
	}
}

// forget drops what no window needs any more.
func (c *frameCap) forget(now time.Time, most int) {
	from := max(0, len(c.left)-most)
	for from < len(c.left) && now.UnixMilli()-c.left[from] > (25*time.Hour).Milliseconds() {
		from++
	}
	c.left = append(c.left[:0], c.left[from:]...)
}

// wait is how long the next frame must wait; 0 = it may leave now.
func (c *frameCap) wait(now time.Time) time.Duration {
	if plant.NoLaneCap {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var wait time.Duration
	for _, w := range []struct {
		most int
		span time.Duration
	}{{c.budget.PerMinute, time.Minute}, {c.budget.PerHour, time.Hour}, {c.budget.PerDay, 24 * time.Hour}} {
		switch {
		case w.most == 0:
			wait = max(wait, budgetKeep)
		case len(c.left) >= w.most:
			// In any window that this frame is in, there are most-1 others at most.
			free := c.left[len(c.left)-w.most] + w.span.Milliseconds() + 1
			wait = max(wait, time.Duration(free-now.UnixMilli())*time.Millisecond)
		}
	}
	if wait > 0 {
		c.readAt = now.Add(-budgetKeep) // the budget may have grown when it is asked again
	}
	return wait
}
