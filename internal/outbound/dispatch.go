package outbound

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
	"github.com/wafleet/wafleet/internal/router"
	"github.com/wafleet/wafleet/internal/store"
)

// dispatchTime bounds the routing of one person's messages.
const dispatchTime = 10 * time.Second

// Dispatch gives messages that have no session which could send them to one that can, for up to limit people: those
// that are due now, those that WhatsApp refused on one number because the recipient is a stranger there, and those whose
// session can't send any more. All of a person's messages go together and in their order, and none while a frame
// of an earlier one may be on its way. What no session can take now stays where it is and is looked at again.
// It returns how many messages moved.
func (o *Outbound) Dispatch(ctx context.Context, limit int) (int, error) {
	strays, err := o.store.Strays(ctx, limit)
	if err != nil {
		return 0, err
	}
	moved := 0
	seen := map[store.Stray]bool{}
	for _, stray := range strays {
		if seen[stray] {
			continue
		}
		seen[stray] = true
		if ctx.Err() != nil {
			return moved, context.Cause(ctx)
		}
		dctx, cancel := context.WithTimeout(ctx, dispatchTime)
		n, err := o.dispatch(dctx, stray)
		cancel()
		moved += n
		if err != nil {
			if errors.Is(err, fleet.ErrUnavailable) {
				return moved, err
			}
			o.log.WarnContext(ctx, "stray messages not dispatched", slog.String("session_id", string(stray.SessionID)), slog.Any("err", err))
		}
	}
	return moved, nil
}

// dispatch moves one person's messages to the session that takes the first of them.
func (o *Outbound) dispatch(ctx context.Context, stray store.Stray) (int, error) {
	messages, err := o.store.StrayMessages(ctx, stray)
	if err != nil {
		return 0, err
	}
	var to fleet.SessionID
	for i := range messages {
		m := &messages[i]
		send := router.Send{Org: m.OrgID, Project: m.ProjectID, Key: m.ContactKey, Wait: time.Until(m.ExpiresAt), Only: to}
		if m.Exempt { // it answers what somebody wrote to this number
			send.Only = m.SessionID
		}
		if m.Hops > 0 {
			send.Avoid = m.SessionID
		}
		took, ok, err := o.reroute(ctx, m, send)
		if err != nil || !ok {
			return i, err
		}
		to = took
	}
	return len(messages), nil
}

// reroute reserves for a stray anew and moves it. It reports where to, and whether it went.
func (o *Outbound) reroute(ctx context.Context, m *fleet.Message, send router.Send) (fleet.SessionID, bool, error) {
	var err error
	if send.Held, err = ledger.ParseReservation(m.Reservation); err != nil {
		return "", false, err
	}
	// The row gives it up first: then nobody else can settle what the new one takes over.
	if ok, err := o.store.TakeReservation(ctx, m); err != nil || !ok {
		return "", false, err
	}
	choice, err := o.router.Route(ctx, send)
	if err != nil {
		return "", false, o.stays(ctx, m, send.Held, err)
	}
	moved, err := o.store.MoveMessage(ctx, m, store.Move{
		To: choice.Session.ID, Reservation: choice.Reservation.String(), Generation: choice.Reservation.Generation,
		Opened: choice.NewChat, TouchChat: choice.ChatStale,
	})
	if err != nil {
		return "", false, err // it may be committed: what it took lapses if not
	}
	if !moved {
		// It was claimed or ended meanwhile, and its row holds nothing; or the ledger is another one now.
		return "", false, o.ledger.Settle(ctx, ledger.Settlement{Reservation: choice.Reservation})
	}
	o.nudge(ctx, bus.TopicSend, string(choice.Session.ID))
	o.log.InfoContext(ctx, "message routed again", slog.String("message_id", string(m.ID)), slog.String("from", string(m.SessionID)),
		slog.String("session_id", string(choice.Session.ID)))
	return choice.Session.ID, true, nil
}

// stays gives a stray back what it held, because no session takes it now. One that was refused and has no other
// number to go to has failed.
func (o *Outbound) stays(ctx context.Context, m *fleet.Message, held ledger.Reservation, why error) error {
	coded, refused := errors.AsType[*fleet.CodedError](why)
	none := refused && (coded.Code == "NO_SESSIONS" || coded.Code == "NONE_ELIGIBLE")
	if m.Hops > 0 && none {
		failed, err := o.store.FailStray(ctx, m)
		if err != nil {
			return err
		}
		if failed {
			o.nudge(ctx, bus.TopicWebhooks, string(m.OrgID))
			o.nudge(ctx, bus.TopicMessage, string(m.ID))
		}
		return nil
	}
	put, err := o.store.PutReservation(ctx, m)
	if err == nil && !put && !held.IsZero() {
		err = o.ledger.Settle(ctx, ledger.Settlement{Reservation: held})
	}
	switch {
	case err != nil:
		return fmt.Errorf("%w, and: %w", why, err)
	case refused && !errors.Is(why, fleet.ErrUnavailable), none, refused && coded.Code == "CLIENT_OUTDATED":
		return nil // an answer: it is looked at again
	default:
		return why
	}
}

// Rebase tells the ledger how many messages wait, so that what it has too many of is taken off.
func (o *Outbound) Rebase(ctx context.Context) (int, error) {
	backlogs, err := o.store.Backlogs(ctx)
	if err != nil {
		return 0, err
	}
	return 0, o.ledger.Rebase(ctx, backlogs)
}

// WarmLedger rebuilds a ledger that was lost, before a send has to wait for it.
func (o *Outbound) WarmLedger(ctx context.Context) (int, error) { return 0, o.ledger.Warm(ctx) }
