package worker

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/plant"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/wa"
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

// lane sends a session's messages one after the other. One commit writes what became of a frame and
// claims the next message, whose text was read with the commit before, so that only the encryption
// lies between a claim and its frame. At most one message is claimed at a time.
type lane struct {
	g       *generation
	st      *store.Store
	term    fleet.Term
	unknown bool // some message's outcome may be unknown
}

func newLane(g *generation) *lane {
	return &lane{g: g, st: g.v.w.o.Store, term: g.v.term.Fleet(), unknown: true}
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
		case <-queueEnd:
			queueEnd = nil
			offline.Stop()
			apart(func() bool { l.adopt(ctx); return true })
		case <-offline.C:
			queueEnd = nil
			apart(func() bool { l.adopt(ctx); return true })
		case <-tidy.C:
			if l.unknown {
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
	rctx, cancel := context.WithTimeout(ctx, claimLimit)
	item, err := l.st.NextInLane(rctx, l.term.SessionID)
	cancel()
	if err != nil {
		l.failed(ctx, "could not read the lane", err)
		return false
	}
	var result *store.Result // of the frame that left last
	for item != nil || result != nil {
		step := &store.Step{Term: l.term, Result: result, Look: true}
		if !l.goOn(ctx, end) {
			_, ok := l.commit(ctx, &store.Step{Term: l.term, Result: result})
			return ok
		}
		var cause error
		if item != nil {
			step.Claim, cause = l.claim(ctx, item)
		}
		step, ok := l.commit(ctx, step)
		switch {
		case !ok:
			return false
		case step.Claimed:
			result = l.frame(ctx, item, cause)
		case item != nil && step.Next != nil && step.Next.ID == item.ID:
			return false // due and not to be claimed: the next look knows more
		default: // the message was cancelled, has expired or must wait
			result = nil
		}
		item = step.Next
	}
	return false
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

// claim builds what will leave. A message that can't be turned into a frame is claimed as well, so
// that one path records.
func (l *lane) claim(ctx context.Context, item *store.LaneItem) (*store.Claim, error) {
	c := &store.Claim{ID: item.ID, Kind: fleet.AttemptRepeat, LockFor: claimLock}
	if item.Repeat {
		return c, nil
	}
	c.Kind = fleet.AttemptSend
	var err error
	if item.Payload, err = wa.BuildText(item.Text); err != nil {
		l.g.log.ErrorContext(ctx, "message can't be built", slog.String("message_id", string(item.ID)), slog.Any("err", err))
	}
	c.Payload = item.Payload
	return c, err
}

// frame puts a claimed message on the wire, unless there is a cause not to, and says what came of it.
func (l *lane) frame(ctx context.Context, item *store.LaneItem, cause error) *store.Result {
	if cause != nil {
		return &store.Result{ID: item.ID, Outcome: fleet.OutcomeRefused, ErrorCode: "MESSAGE_INVALID", Detail: cause.Error(), At: time.Now()}
	}
	if plant.NewID && item.Repeat {
		item.WAID = fleet.NewWAID()
	}
	sctx, cancel := context.WithTimeout(ctx, sendDeadline)
	_, err := l.g.sock.Send(sctx, wa.Outgoing{JID: item.ToJID, WAID: item.WAID, Payload: item.Payload})
	cancel()
	res := outcome(item, err, time.Now())
	l.g.log.InfoContext(ctx, "frame settled", slog.String("message_id", string(item.ID)), slog.Bool("repeat", item.Repeat),
		slog.String("outcome", string(res.Outcome)), slog.Int("wa_code", res.Code), slog.Any("err", err))
	l.g.v.w.metrics.sends.WithLabelValues(string(res.Outcome)).Inc()
	if res.Outcome == fleet.OutcomeUnknown {
		l.unknown = true
	}
	return &res
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
		err := l.st.Commit(cctx, step)
		if err == nil {
			if r := step.Result; r != nil {
				l.g.v.w.nudge(cctx, bus.TopicWebhooks, "")
				l.g.v.w.nudge(cctx, bus.TopicMessage, string(r.ID))
			}
			return step, true
		}
		l.unknown = true
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

// outcome turns a send's error into what is stored. An error that says nothing is unknown, never a refusal.
func outcome(item *store.LaneItem, err error, now time.Time) store.Result {
	res := store.Result{ID: item.ID, Outcome: fleet.OutcomeSent, At: now}
	if err == nil {
		return res
	}
	res.Outcome, res.Detail = fleet.OutcomeUnknown, err.Error()
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

// adopt takes over sends whose outcome nobody recorded: T0 is now, the end of the offline queue or later.
func (l *lane) adopt(ctx context.Context) {
	if !l.unknown {
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
		l.unknown = false
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
