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
	claimLock    = 45 * time.Second // longer than the deadline and the write of the outcome
	claimLimit   = 5 * time.Second  // with the send and its record still shorter than the lock
	recordLimit  = 10 * time.Second
	offlineLimit = time.Minute // the end of the offline queue is waited for no longer than this
	tidyEvery    = 15 * time.Second
)

// lane sends a session's messages one after the other: claim, send, record. It claims one at a
// time, and nothing slow lies between claim and frame.
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
	for {
		select { // stopping wins over more work
		case <-ctx.Done():
			return
		case <-l.g.settled:
			return
		default:
		}
		if l.sendDue(ctx) {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-l.g.settled:
			return
		case <-l.g.v.lane:
		case <-queueEnd:
			queueEnd = nil
			offline.Stop()
			l.adopt(ctx)
		case <-offline.C:
			queueEnd = nil
			l.adopt(ctx)
		case <-tidy.C:
			l.tidy(ctx, queueEnd == nil)
		}
	}
}

// sendDue sends the next due message and reports whether to look again at once.
func (l *lane) sendDue(ctx context.Context) bool {
	select {
	case l.g.socket <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-l.g.socket }()
	select {
	case <-l.g.settled:
		return false
	default:
	}
	rctx, cancel := context.WithTimeout(ctx, claimLimit)
	item, err := l.st.NextInLane(rctx, l.term.SessionID)
	cancel()
	if err != nil {
		l.failed(ctx, "could not read the lane", err)
		return false
	}
	if item == nil {
		return false
	}
	return l.send(ctx, item)
}

// send claims one message, sends its frame, and records what came of it.
func (l *lane) send(ctx context.Context, item *store.LaneItem) bool {
	log := l.g.log.With(slog.String("message_id", string(item.ID)), slog.Bool("repeat", item.Repeat))
	payload, kind := item.Payload, fleet.AttemptRepeat
	if !item.Repeat {
		var err error
		if payload, err = wa.BuildText(item.Text); err != nil {
			log.ErrorContext(ctx, "message can't be built", slog.Any("err", err))
			return l.refuse(ctx, item, err)
		}
		kind = fleet.AttemptSend
	}
	claimed, again := l.claim(ctx, store.Claim{ID: item.ID, Payload: payload, Kind: kind, LockFor: claimLock})
	if !claimed {
		return again
	}
	if plant.NewID && item.Repeat {
		item.WAID = fleet.NewWAID()
	}
	sctx, cancel := context.WithTimeout(ctx, sendDeadline)
	_, err := l.g.sock.Send(sctx, wa.Outgoing{JID: item.ToJID, WAID: item.WAID, Payload: payload})
	cancel()
	res := outcome(item, err, time.Now())
	log.InfoContext(ctx, "frame settled", slog.String("outcome", string(res.Outcome)), slog.Int("wa_code", res.Code), slog.Any("err", err))
	l.g.v.w.metrics.sends.WithLabelValues(string(res.Outcome)).Inc()
	if res.Outcome == fleet.OutcomeUnknown {
		l.unknown = true
	}
	return l.record(ctx, res)
}

// claim reports whether the frame may leave, and if not, whether to look again at once: the message was
// cancelled, expired or settled meanwhile. A claim that was not answered may stand all the same. Then
// the row says "sending" of a frame that never left, and only taking it over gets it out of there.
func (l *lane) claim(ctx context.Context, c store.Claim) (claimed, again bool) {
	cctx, cancel := context.WithTimeout(ctx, claimLimit)
	defer cancel()
	claimed, err := l.st.ClaimMessage(cctx, l.term, c)
	if err != nil {
		l.unknown = true
		l.failed(ctx, "could not claim a message", err)
		return false, false
	}
	return claimed, true
}

// refuse ends a message that can't be turned into a frame: claimed first, so that one path records.
func (l *lane) refuse(ctx context.Context, item *store.LaneItem, cause error) bool {
	if claimed, again := l.claim(ctx, store.Claim{ID: item.ID, Kind: fleet.AttemptSend, LockFor: claimLock}); !claimed {
		return again
	}
	return l.record(ctx, store.Result{ID: item.ID, Outcome: fleet.OutcomeRefused, ErrorCode: "MESSAGE_INVALID", Detail: cause.Error(), At: time.Now()})
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

// record writes an outcome. It goes on after the generation's end, since what happened must not be
// forgotten, but never under another term: the statement is fenced.
func (l *lane) record(ctx context.Context, res store.Result) bool {
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordLimit)
	defer cancel()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := l.st.RecordOutcome(rctx, l.term, res)
		if err == nil {
			l.g.v.w.nudge(rctx, bus.TopicWebhooks, "")
			l.g.v.w.nudge(rctx, bus.TopicMessage, string(res.ID))
			return true
		}
		if errors.Is(err, fleet.ErrLeaseLost) || rctx.Err() != nil {
			// The row says "sending": whoever owns the session treats it as unknown.
			l.failed(ctx, "outcome of a send not written", err)
			l.unknown = true
			return false
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-rctx.Done():
			t.Stop()
		}
	}
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
	if !l.unknown {
		return
	}
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
