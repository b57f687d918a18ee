package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/plant"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/wa"
	"github.com/wafleet/wafleet/internal/wastore"
)

// resultWait is how long a frame's result may wait to be committed with the claim of the next frame. That comes after
// its encryption, which takes a millisecond, or as long as WhatsApp takes to answer when the recipient's keys are not known.
const resultWait = 50 * time.Millisecond

// overlapTries is how often in a row a message is encrypted because the Signal sessions changed before its claim. Then it
// is queued again, as after any send of which no frame left.
const overlapTries = 5

// send takes one message to WhatsApp. earlier is what became of the frame before, nil if that is written. It returns the
// step that decided about the message, nil if the lane can't go on, and, if it was claimed, what became of its frame.
// earlier is committed with it, or given up as commit gives it up.
func (l *lane) send(ctx context.Context, item *store.LaneItem, earlier *store.Result) (*store.Step, *store.Result) {
	a := l.newAttempt(item, earlier)
	err := a.build()
	if err == nil {
		if plant.NewID && item.Repeat {
			item.WAID = fleet.NewWAID()
		}
		stop := a.recordSoon(ctx)
		sctx, cancel := context.WithTimeout(ctx, sendDeadline)
		for try := 1; ; try++ { // a message that came in may have changed the keys while this one was encrypted with them
			_, err = l.g.sock.Send(sctx, wa.Outgoing{JID: item.ToJID, WAID: item.WAID, Payload: item.Payload, Claim: a.claimed})
			if try == overlapTries || !errors.Is(err, wastore.ErrOverlap) {
				break
			}
		}
		cancel()
		stop()
	}
	step := a.decided(ctx)
	if step == nil || !step.Claimed {
		return step, nil
	}
	res := outcome(item, err, time.Now())
	l.g.log.InfoContext(ctx, "frame settled", slog.String("message_id", string(item.ID)), slog.Bool("repeat", item.Repeat),
		slog.String("outcome", string(res.Outcome)), slog.Int("wa_code", res.Code), slog.Any("err", err))
	l.g.v.w.metrics.sends.WithLabelValues(string(res.Outcome)).Inc()
	l.account(item, &res)
	l.stranger(ctx, item, &res)
	if res.Outcome == fleet.OutcomeUnknown {
		l.unknown.Store(true)
	}
	return step, &res
}

// attempt is one message between the lane and the wire. Its claim is asked for by the key store, on a goroutine of
// whatsmeow's, when the message is encrypted.
type attempt struct {
	l       *lane
	item    *store.LaneItem
	claim   *store.Claim
	earlier *store.Result // of the frame before, nil if there is none

	asked   atomic.Bool      // for the claim, or it is too late to ask
	answer  chan *store.Step // one slot: what was committed, nil if that failed
	pending chan pending     // one slot, empty while the result of the frame before is being committed by itself
}

// pending is a result that still has to be committed, or nil and whether committing it by itself succeeded.
type pending struct {
	result *store.Result
	ok     bool
}

func (l *lane) newAttempt(item *store.LaneItem, earlier *store.Result) *attempt {
	a := &attempt{
		l: l, item: item, claim: &store.Claim{ID: item.ID, Kind: fleet.AttemptRepeat, LockFor: claimLock},
		earlier: earlier, answer: make(chan *store.Step, 1), pending: make(chan pending, 1),
	}
	if !item.Repeat {
		a.claim.Kind = fleet.AttemptSend
	}
	a.pending <- pending{earlier, true}
	return a
}

// build makes what will leave. A repeat has it from the first time.
func (a *attempt) build() error {
	if a.item.Repeat {
		return nil
	}
	payload, err := wa.BuildText(a.item.Text)
	if err != nil {
		return notBuiltError{err}
	}
	a.item.Payload, a.claim.Payload = payload, payload
	return nil
}

// notBuiltError says that a message can't be turned into a frame.
type notBuiltError struct{ error }

// recordSoon lets the result of the frame before be committed by itself if the claim does not come soon. The returned
// function ends the wait.
func (a *attempt) recordSoon(ctx context.Context) (stop func() bool) {
	if a.earlier == nil {
		return func() bool { return true }
	}
	return time.AfterFunc(resultWait, func() {
		p := <-a.pending
		if p.result != nil {
			_, ok := a.l.commit(ctx, &store.Step{Term: a.l.term, Result: p.result})
			p = pending{nil, ok}
		}
		a.pending <- p
	}).Stop
}

// takeResult returns what whoever calls it now has to commit.
func (a *attempt) takeResult() pending {
	p := <-a.pending
	a.pending <- pending{nil, p.ok}
	return p
}

// claimed is wa.Outgoing's Claim: the frame may leave if it returns nil.
func (a *attempt) claimed(ctx context.Context, keys any) error {
	if !a.asked.CompareAndSwap(false, true) {
		return wastore.ErrWithdrawn
	}
	written, ok := keys.(store.Keys)
	earlier := a.takeResult()
	if !ok || !earlier.ok {
		a.answer <- nil
		return wastore.ErrWithdrawn
	}
	ctx, cancel := context.WithTimeout(ctx, claimLimit)
	defer cancel()
	step := &store.Step{Term: a.l.term, Result: earlier.result, Claim: a.claim, Keys: written, Look: true}
	if err := a.l.try(ctx, step); err != nil {
		// It may stand all the same, and then only taking it over gets the message out of there.
		a.l.unknown.Store(true)
		a.l.failed(ctx, "could not claim a message", err)
		a.answer <- nil
		return err
	}
	a.answer <- step
	if !step.Claimed {
		return wastore.ErrWithdrawn
	}
	return nil
}

// decided returns the step that decided about the message, nil if the lane can't go on. When nobody asked for the claim
// no frame has left; then the message is claimed all the same, so that one path records what came of it.
func (a *attempt) decided(ctx context.Context) *store.Step {
	if a.asked.CompareAndSwap(false, true) {
		earlier := a.takeResult()
		if !earlier.ok {
			return nil
		}
		step := &store.Step{Term: a.l.term, Result: earlier.result}
		if ctx.Err() == nil {
			step.Claim, step.Look = a.claim, true
		}
		if step, ok := a.l.commit(ctx, step); ok && step.Claim != nil {
			return step
		}
		return nil
	}
	select {
	case step := <-a.answer:
		if step != nil {
			return step
		}
	default: // it is still under way, and the generation is over
	}
	// Whether the frame before was recorded with it nobody knows. Recording it twice changes nothing.
	a.l.commit(ctx, &store.Step{Term: a.l.term, Result: a.earlier})
	return nil
}

// outcome turns a send's error into what is stored. An error that says nothing is unknown, never a refusal.
func outcome(item *store.LaneItem, err error, now time.Time) store.Result {
	res := store.Result{ID: item.ID, Outcome: fleet.OutcomeSent, At: now}
	if err == nil {
		return res
	}
	res.Outcome, res.Detail = fleet.OutcomeUnknown, err.Error()
	if _, ok := errors.AsType[notBuiltError](err); ok {
		res.Outcome, res.ErrorCode = fleet.OutcomeRefused, "MESSAGE_INVALID"
	}
	if se, ok := errors.AsType[*wa.SendError](err); ok {
		res.Outcome, res.Code, res.ErrorCode = se.Outcome, se.Code, se.Reason
		if se.Outcome == fleet.OutcomeRefused {
			res.Detail = se.Cause()
		}
	}
	if res.Outcome == fleet.OutcomeNothing {
		res.RetryIn = jitter(min(time.Second<<min(item.Attempts, 6), time.Minute))
	}
	return res
}
