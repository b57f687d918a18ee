package outbound

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
	"github.com/wafleet/wafleet/internal/router"
	"github.com/wafleet/wafleet/internal/store"
)

// reserveTries is how often a message is reserved for again because the ledger was rebuilt in between.
const reserveTries = 3

// reserveAndStore reserves what a message needs and stores it with what it got, or gives that back. A message
// for later takes from its project's limits now, and gets its session when it is due.
func (o *Outbound) reserveAndStore(ctx context.Context, a *store.Acceptance) (router.Choice, error) {
	m := &a.Message
	send := router.Send{Org: m.OrgID, Project: m.ProjectID, Key: m.ContactKey, Wait: a.TTL}
	route := o.router.Route
	if m.Parked {
		route = o.router.Take
		send.Wait += time.Until(m.SendAt)
	}
	for try := 1; ; try++ {
		choice, err := route(ctx, send)
		if err != nil {
			return choice, err
		}
		if err := o.at("routed"); err != nil {
			return choice, err
		}
		m.SessionID, m.Reservation, m.Generation = choice.Session.ID, choice.Reservation.String(), choice.Reservation.Generation
		m.Opened, a.TouchChat, a.Trails = choice.NewChat, choice.ChatStale, choice.Trails
		err = o.store.Accept(ctx, a)
		switch {
		case err == nil:
			return choice, nil
		case errors.Is(err, store.ErrReservedBefore):
			// The rebuilt ledger knows nothing of it. If it is the ledger that is of another time than the database, it is rebuilt.
			if cerr := o.ledger.Cool(ctx, choice.Reservation.Generation); cerr != nil || try == reserveTries {
				return choice, fmt.Errorf("%w: %w", errRebuilding, errors.Join(err, cerr))
			}
			continue
		case errors.Is(err, store.ErrIdempotencyLost), store.Refused(err), errors.Is(err, fleet.ErrInvalid):
			// Nothing was committed for certain. Otherwise what it took lapses by itself.
			o.unreserve(ctx, choice.Reservation)
		}
		return choice, err
	}
}

var errRebuilding = &fleet.CodedError{
	Code: "LEDGER_COLD", Detail: "what numbers have sent is being read again; try again in a moment", RetryAfter: time.Second, Err: fleet.ErrUnavailable,
}

func (o *Outbound) unreserve(ctx context.Context, held ledger.Reservation) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	if err := o.router.GiveBack(ctx, held); err != nil {
		o.log.WarnContext(ctx, "reservation not given back, it lapses", slog.String("session_slug", string(held.Session)), slog.Any("err", err))
	}
}

// giveBack gives the ledger back what an ended message held. GiveBackOwed does it if this fails.
func (o *Outbound) giveBack(ctx context.Context, id fleet.MessageID) {
	if _, err := o.settleOwed(ctx, id, 1); err != nil {
		o.log.WarnContext(ctx, "reservation of an ended message not given back yet", slog.String("message_id", string(id)), slog.Any("err", err))
	}
}

// GiveBackOwed gives the ledger back what up to limit messages hold that ended before any frame, and returns
// their number. What was taken off a message and could not be given back lapses by itself.
func (o *Outbound) GiveBackOwed(ctx context.Context, limit int) (int, error) {
	return o.settleOwed(ctx, "", limit)
}

func (o *Outbound) settleOwed(ctx context.Context, id fleet.MessageID, limit int) (int, error) {
	owed, err := o.store.TakeOwed(ctx, id, limit)
	if err != nil || len(owed) == 0 {
		return 0, err
	}
	settlements := make([]ledger.Settlement, 0, len(owed))
	for _, text := range owed {
		held, err := ledger.ParseReservation(text)
		if err != nil {
			return len(owed), err
		}
		settlements = append(settlements, ledger.Settlement{Reservation: held})
	}
	if err := o.ledger.Settle(ctx, settlements...); err != nil {
		return len(owed), fmt.Errorf("give back %d reservations: %w", len(owed), err)
	}
	return len(owed), nil
}
