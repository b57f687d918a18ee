package lease

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/plant"
)

// ErrReleased is the cause of a term that was given away on purpose.
var ErrReleased = errors.New("lease released")

// errNotRenewed is why a term ended whose trust ran out; everybody else is told fleet.ErrLeaseLost.
var errNotRenewed = errors.New("lease not renewed in time")

// Term is this process's right to act for one session. It ends once.
type Term struct {
	term fleet.Term
	// The context is the term: everything done under it hangs on it, which is why it is stored.
	ctx    context.Context //nolint:containedctx // the term's lifetime
	cancel context.CancelCauseFunc
	onEnd  func(t *Term, why error)

	mu    sync.Mutex
	until time.Time // trusted before this
	ended bool
	timer *time.Timer
}

func newTerm(ctx context.Context, term fleet.Term, until time.Time, onEnd func(*Term, error)) *Term {
	t := &Term{term: term, until: until, onEnd: onEnd}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(time.Until(until), t.expire)
	return t
}

// Fleet is the term as statements carry it.
func (t *Term) Fleet() fleet.Term { return t.term }

// Context ends with the term: with cause fleet.ErrLeaseLost when it is lost, ErrReleased when it was
// given away.
func (t *Term) Context() context.Context { return t.ctx }

// Err is nil while the term is trusted and fleet.ErrLeaseLost ever after. It asks the clock and not
// only the timer, which may be late when the process was frozen. It is cheap.
func (t *Term) Err() error {
	t.mu.Lock()
	over := t.ended || past(t.until)
	t.mu.Unlock()
	why := errNotRenewed
	if !over {
		if why = context.Cause(t.ctx); why == nil {
			return nil
		}
	}
	t.end(fleet.ErrLeaseLost, why)
	return fleet.ErrLeaseLost
}

// past reports whether t is over on the monotonic clock or on the wall clock. The monotonic one
// stands still while a machine is suspended.
func past(t time.Time) bool {
	now := time.Now()
	over := !now.Before(t) || !now.Round(0).Before(t.Round(0))
	return over && !plant.NoLastGate
}

// Lose ends the term for good: for who finds out first that it is over, such as a write whose fence
// found no row. It does not wait.
func (t *Term) Lose(cause error) { t.end(cause, cause) }

// end cancels with cause; why is for the keeper's count. Only the first call does anything.
func (t *Term) end(cause, why error) {
	t.mu.Lock()
	first := !t.ended
	t.ended = true
	if first && t.timer != nil {
		t.timer.Stop()
	}
	t.mu.Unlock()
	if !first {
		// The first one may not have got there yet, and who sees an error may rely on the cancelled context.
		t.cancel(cause)
		return
	}
	t.cancel(cause)
	t.onEnd(t, why)
}

// extend prolongs the trust after an answered beat. It reports whether the term was still trusted: a
// term that has ended, or whose time had come without anybody looking, is not revived.
func (t *Term) extend(until time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || past(t.until) || t.ctx.Err() != nil {
		return false
	}
	if until.After(t.until) {
		t.until = until
		t.timer.Reset(time.Until(until))
	}
	return true
}

// expire runs when the timer fires. The trust may have been prolonged meanwhile.
func (t *Term) expire() {
	if plant.NoLastGate {
		return
	}
	t.mu.Lock()
	if !t.ended && !past(t.until) {
		t.timer.Reset(time.Until(t.until))
		t.mu.Unlock()
		return
	}
	t.mu.Unlock()
	t.end(fleet.ErrLeaseLost, errNotRenewed)
}
