package router

import (
	"context"
	"fmt"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
)

// State is one session of an organization as the router sees it.
type State struct {
	Slug        fleet.SessionSlug
	Reason      Reason       // why it would be passed over; "" = it could send
	Budget      fleet.Budget // effective now
	Used        fleet.Budget // of it in the present windows, what is outstanding included
	Outstanding int          // frames that have not left
	Health      int          // 0 to 100
}

// Explanation is how a send would be decided now.
type Explanation struct {
	Choice   Choice // without a reservation
	Refusal  error  // nil: Choice.Session would send
	Sessions []State
}

// Explain decides as Route would and takes nothing. Without a Key it looks at no person: everybody is warm.
func (r *Router) Explain(ctx context.Context, send Send) (Explanation, error) {
	snap, _, err := r.snapshot(ctx, send.Org, true)
	if err != nil {
		return Explanation{}, fmt.Errorf("explain for %s: %w", send.Org, err)
	}
	var chats []fleet.Chat
	if send.Key != "" {
		if chats, err = r.store.Chats(ctx, send.Key); err != nil {
			return Explanation{}, fmt.Errorf("explain for %s: %w", send.Org, err)
		}
	}
	now := time.Now()
	f := snap.field(now, send, chats, r.warmFor)
	e := Explanation{Choice: f.choice(snap)}
	states := map[fleet.SessionID]*State{}
	for i := range snap.Sessions {
		v := &snap.Sessions[i]
		states[v.ID] = &State{Slug: v.Slug, Budget: v.EffectiveBudget(now), Health: 100}
	}
	for _, s := range f.out {
		states[s.Session].Reason = s.Reason
	}
	if len(f.candidates) == 0 {
		e.Refusal = f.refusal(now)
	} else if err := r.look(ctx, snap, send, f, &e, states); err != nil {
		return Explanation{}, fmt.Errorf("explain for %s: %w", send.Org, err)
	}
	for _, id := range f.order {
		e.Sessions = append(e.Sessions, *states[id])
	}
	return e, nil
}

// look asks the ledger for its part.
func (r *Router) look(ctx context.Context, snap *snapshot, send Send, f *field, e *Explanation, states map[fleet.SessionID]*State) error {
	req := r.request(snap, send, f)
	req.Version = 0 // it was read just now, and nothing is taken
	if send.Key == "" {
		req.Limits = nil
	}
	view, err := r.ledger.Look(ctx, req)
	if err != nil {
		return err
	}
	for i, c := range f.candidates {
		if i >= len(view.Accounts) {
			break
		}
		a, s := view.Accounts[i], states[c.session.ID]
		s.Reason, s.Outstanding, s.Health = whys[a.Why], a.Outstanding, a.Health
		s.Used = fleet.Budget{PerMinute: a.Used.PerMinute, PerHour: a.Used.PerHour, PerDay: a.Used.PerDay, NewChatsPerDay: a.Used.NewChatsPerDay}
	}
	e.Choice.Skipped = f.skipped(view.Why)
	if view.Verdict == ledger.Taken {
		won := f.candidates[view.Winner]
		e.Choice.Session, e.Choice.Pinned, e.Choice.NewChat = *won.session, view.Pinned, won.newChat
	} else {
		e.Refusal = limited(view.Answer, e.Choice.Skipped, time.Now(), snap.TimeZone)
	}
	return nil
}
