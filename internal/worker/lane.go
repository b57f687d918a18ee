package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// Limits of one send.
const (
	sendDeadline = 20 * time.Second // a direct send, from encrypting to the server's ack
	claimLock    = 45 * time.Second // longer than the deadline and the writes around it
	claimLimit   = 5 * time.Second
	recordLimit  = 10 * time.Second
	offlineLimit = time.Minute // the end of the offline queue is waited for no longer than this
	tidyEvery    = 15 * time.Second
	burstLimit   = 5 * time.Second // then whoever waits for the socket, and everything else, has a turn
)

// lane sends a session's messages one after the other. One commit writes what became of a frame, claims
// the next message, whose text was read with the commit before, and stores the keys that it has been
// encrypted with, so that nothing lies between a claim and its frame. At most one message is claimed at
// a time.
type lane struct {
	g       *generation
	st      *store.Store
	term    fleet.Term
	unknown atomic.Bool // some message's outcome may be unknown
	turns   turns
	held    *time.Timer // runs while a frame has to wait for its number's budget
}

func newLane(g *generation) *lane {
	l := &lane{g: g, st: g.v.w.o.Store, term: g.v.term.Fleet(), turns: turns{}}
	l.unknown.Store(true)
	return l
}

// run waits for the login, then works until the generation ends or is asked to settle.
func (l *lane) run() {
	ctx := l.g.ctx
	select {
	case <-l.g.opened:
	case <-ctx.Done():
		return
	}
	offline := time.NewTimer(offlineLimit)
	defer offline.Stop()
	tidy := time.NewTicker(tidyEvery)
	defer tidy.Stop()
	l.held = time.NewTimer(time.Hour)
	l.held.Stop()
	defer l.held.Stop()
	queueEnd := l.g.offline
	always := make(chan struct{})
	close(always)
	for look := always; ; {
		select { // stopping wins over more work
		case <-ctx.Done():
			return
		case <-l.g.settled:
			return
		default:
		}
		select {
		case <-ctx.Done():
			return
		case <-l.g.settled:
			return
		case <-look:
			if !apart(func() bool { return l.burst(ctx) }) {
				look = nil
			}
		case <-l.g.v.lane:
			look = always
		case <-l.held.C:
			look = always
		case <-queueEnd:
			queueEnd = nil
			offline.Stop()
			apart(func() bool { l.adopt(ctx); return true })
		case <-offline.C:
			queueEnd = nil
			apart(func() bool { l.adopt(ctx); return true })
		case <-tidy.C:
			if l.unknown.Load() {
				apart(func() bool { l.tidy(ctx, queueEnd == nil); return true })
			}
		}
	}
}

// burst sends what is due, message after message, and reports whether to look again at once.
func (l *lane) burst(ctx context.Context) bool {
	select {
	case l.g.socket <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-l.g.socket }()
	end := time.Now().Add(burstLimit)
	if !l.goOn(ctx, end) {
		return false
	}
	item, ok := l.next(ctx)
	if !ok {
		return false
	}
	if item != nil && !l.counted(ctx) {
		return false
	}
	var result *store.Result  // of the frame that left last
	var asked fleet.MessageID // who its recipient is
	for item != nil || result != nil {
		if item == nil || !l.goOn(ctx, end) || !l.mayLeave() {
			inTime := l.goOn(ctx, end)
			more := inTime && l.mayLeave()
			step, ok := l.commit(ctx, &store.Step{Term: l.term, Result: result, Look: more})
			if !ok || !more {
				return ok && !inTime // a lane that must wait for room is woken when there is some
			}
			result, item = nil, step.Next
			continue
		}
		first := item.ID
		if item, ok = l.turn(ctx, item, result); !ok {
			l.commit(ctx, &store.Step{Term: l.term, Result: result})
			return false
		}
		if item.Unresolved {
			if item.ID == asked {
				return false
			}
			if _, ok := l.commit(ctx, &store.Step{Term: l.term, Result: result}); !ok || !l.resolve(ctx, item.ID) {
				return false
			}
			asked = item.ID
			if item, ok = l.next(ctx); !ok {
				return false
			}
			result = nil
			continue
		}
		l.turns[item.ProjectID]++
		step, sent := l.send(ctx, item, result)
		switch {
		case step == nil:
			return false
		case !step.Claimed && step.Next != nil && (step.Next.ID == item.ID || step.Next.ID == first && first != item.ID):
			return l.suppress(ctx, item) // else it is due and not to be claimed: the next look knows more
		}
		result, item = sent, step.Next // not claimed: the message was cancelled, has expired or must wait
	}
	return false
}

// next reads what the lane should send now; false: it can't be read.
func (l *lane) next(ctx context.Context) (*store.LaneItem, bool) {
	ctx, cancel := context.WithTimeout(ctx, claimLimit)
	defer cancel()
	item, err := l.st.NextInLane(ctx, l.term.SessionID)
	if err != nil {
		l.failed(ctx, "could not read the lane", err)
		return nil, false
	}
	return item, true
}

// suppress ends a message that can't be claimed because its recipient opted out, and reports whether that was it.
func (l *lane) suppress(ctx context.Context, item *store.LaneItem) bool {
	sctx, cancel := context.WithTimeout(ctx, recordLimit)
	defer cancel()
	did, err := l.st.Suppress(sctx, l.term, item.ID)
	if err != nil {
		l.failed(ctx, "opt-out not recorded", err)
		return false
	}
	if did {
		l.g.log.InfoContext(ctx, "message not sent: the recipient opted out", slog.String("message_id", string(item.ID)))
		l.g.v.w.nudge(ctx, bus.TopicWebhooks, "")
		l.g.v.w.nudge(ctx, bus.TopicMessage, string(item.ID))
	}
	return did
}

// counted reads what the session may send, and at first what it sent before.
func (l *lane) counted(ctx context.Context) bool {
	rctx, cancel := context.WithTimeout(ctx, claimLimit)
	defer cancel()
	if err := l.g.v.frames.read(rctx, l.st, l.term.SessionID, time.Now()); err != nil {
		l.failed(ctx, "could not read what the session may send", err)
		return false
	}
	return true
}

// mayLeave reports whether the number's budget has room for a frame. If not, the lane looks again when it has.
func (l *lane) mayLeave() bool {
	wait := l.g.v.frames.wait(time.Now())
	if wait > 0 {
		l.held.Reset(wait)
	}
	return wait <= 0
}

// goOn reports whether another message may be claimed.
func (l *lane) goOn(ctx context.Context, end time.Time) bool {
	select {
	case <-l.g.settled:
		return false
	default:
		return ctx.Err() == nil && time.Now().Before(end)
	}
}

// commit commits a step. A result is written also after the generation's end, since what happened must
// not be forgotten, but never under another term: the commit is fenced. It is tried again for a while;
// a claim is not, because one that was not answered may stand all the same. Then the row says "sending"
// of a frame that never left, and only taking it over gets it out of there. The step that it returns
// is the one that was committed.
func (l *lane) commit(ctx context.Context, step *store.Step) (*store.Step, bool) {
	if step.Result == nil && step.Claim == nil {
		return step, true
	}
	cctx, limit := ctx, claimLimit
	if step.Result != nil {
		cctx, limit = context.WithoutCancel(ctx), recordLimit
	}
	cctx, cancel := context.WithTimeout(cctx, limit)
	defer cancel()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := l.try(cctx, step)
		if err == nil {
			return step, true
		}
		l.unknown.Store(true)
		switch {
		case step.Result == nil:
			l.failed(ctx, "could not claim a message", err)
			return nil, false
		case errors.Is(err, fleet.ErrLeaseLost) || cctx.Err() != nil:
			// The row says "sending": whoever owns the session treats it as unknown.
			l.failed(ctx, "outcome of a send not written", err)
			return nil, false
		}
		step = &store.Step{Term: l.term, Result: step.Result}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-cctx.Done():
			t.Stop()
		}
	}
}

// try commits a step once, and lets those know who wait for its result.
func (l *lane) try(ctx context.Context, step *store.Step) error {
	if err := l.st.Commit(ctx, step); err != nil {
		return err
	}
	if r := step.Result; r != nil {
		l.g.v.w.nudges.soon(nudge{bus.TopicWebhooks, ""}, nudge{bus.TopicMessage, string(r.ID)})
		if r.Hop {
			l.g.v.w.nudges.soon(nudge{bus.TopicDispatch, ""})
		}
	}
	return nil
}

// adopt takes over sends whose outcome nobody recorded: T0 is now, the end of the offline queue or later.
func (l *lane) adopt(ctx context.Context) {
	if !l.unknown.Load() {
		return
	}
	n, err := l.st.AdoptUnknown(ctx, l.term)
	if err != nil {
		l.failed(ctx, "could not look for unknown outcomes", err)
		return
	}
	if n > 0 {
		l.g.log.DebugContext(ctx, "sends with unknown outcome", slog.Int("messages", n))
	}
}

// tidy takes over, tells of, and in the end closes outcomes that stay unknown.
func (l *lane) tidy(ctx context.Context, queueEnded bool) {
	open, err := l.st.HasUnknown(ctx, l.term.SessionID)
	if err == nil && !open {
		l.unknown.Store(false)
		return
	}
	if queueEnded {
		l.adopt(ctx)
	}
	told, closed := 0, 0
	if err == nil {
		told, err = l.st.TellUnknown(ctx, l.term)
	}
	if err == nil {
		closed, err = l.st.CloseOwnUnconfirmed(ctx, l.term)
	}
	if err != nil {
		l.failed(ctx, "could not settle unknown outcomes", err)
		return
	}
	if told+closed > 0 {
		l.g.v.w.nudge(ctx, bus.TopicWebhooks, "")
	}
}

// failed handles an error of the store: a lost lease ends the term, anything else is tried again
// with the next look.
func (l *lane) failed(ctx context.Context, what string, err error) {
	switch {
	case err == nil || ctx.Err() != nil && !errors.Is(err, fleet.ErrLeaseLost):
	case errors.Is(err, fleet.ErrLeaseLost):
		l.g.log.WarnContext(ctx, what, slog.Any("err", err)) //nolint:sloglint // one of a handful of constants above
		l.g.v.term.Lose(fleet.ErrLeaseLost)
	default:
		l.g.log.WarnContext(ctx, what, slog.Any("err", err)) //nolint:sloglint // one of a handful of constants above
	}
}
