package router

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
	"github.com/wafleet/wafleet/internal/plant"
	"github.com/wafleet/wafleet/internal/store"
)

// Options of New.
type Options struct {
	Store  *store.Store
	Ledger ledger.Ledger
	// FleetRate bounds how fast all organizations together may ask for messages.
	FleetRate fleet.Rate
	// Keep is how long rows are used again; 0 = two seconds, negative = never.
	Keep time.Duration
	// WarmFor is how long who wrote to a number is no stranger to it; 0 = fleet.WarmFor.
	WarmFor time.Duration
}

// Router picks sessions. Its methods are safe for use by several goroutines.
type Router struct {
	store   *store.Store
	ledger  ledger.Ledger
	fleet   ledger.Rate
	keep    time.Duration
	warmFor time.Duration

	mu        sync.Mutex // never held while anything waits
	snapshots map[fleet.OrgID]*snapshot
}

const (
	defaultKeep = 2 * time.Second
	// settleSlack is how much longer than its message's life a reservation is held: the last claim's send.
	settleSlack = 2 * time.Minute
	staleTries  = 4
)

// New returns a router over the sessions of this database.
func New(o Options) *Router {
	return &Router{
		store: o.Store, ledger: o.Ledger, fleet: rate(o.FleetRate), keep: cmp.Or(o.Keep, defaultKeep), warmFor: cmp.Or(o.WarmFor, fleet.WarmFor),
		snapshots: map[fleet.OrgID]*snapshot{},
	}
}

// Send is a message that wants a session.
type Send struct {
	Org     fleet.OrgID
	Project fleet.ProjectID
	Key     string        // match key of the recipient
	Wait    time.Duration // how long the message may wait for its frame

	// Avoid are sessions that must not be chosen: WhatsApp refused the message there.
	Avoid fleet.SessionID
	// Only is the one session that may be chosen; "" = any.
	Only fleet.SessionID
	// Held is what the message holds already, on another session or of limits alone. It passes on to the new reservation.
	Held ledger.Reservation
}

// Choice is the router's answer.
type Choice struct {
	Session     fleet.Session      // zero with an error
	Head        fleet.SessionSlug  // of the organization: what its consumers see, whichever session sends
	Reservation ledger.Reservation // zero with an error
	Pinned      bool               // the person has been hearing from this number
	NewChat     bool               // it opens the chat
	ChatStale   bool               // the chat should be touched when the message is stored
	Trails      bool               // what waits for the same person may be on another session
	Skipped     []Skip             // in list order
}

// Route picks the session that sends and reserves what the message needs of it and of its project's
// limits. Without one nothing is taken, and it returns a *fleet.CodedError
//
//	NO_SESSIONS        the organization has none
//	NONE_ELIGIBLE      none can send now, whatever its budget
//	CLIENT_OUTDATED    the same, because WhatsApp refuses this version
//	RATE_LIMITED       every number that could is exhausted; RetryAfter is when the first one is not
//	API_RATE_LIMITED, QUOTA_EXCEEDED, BACKLOG_FULL   the project's limits
//	LEDGER_COLD        what was sent has to be read again first
//
// and a Choice that says why each session was skipped.
func (r *Router) Route(ctx context.Context, send Send) (Choice, error) {
	chats, err := r.store.Chats(ctx, send.Key)
	if err != nil {
		return Choice{}, fmt.Errorf("route for %s: %w", send.Org, err)
	}
	again := false
	for range staleTries {
		snap, fresh, err := r.snapshot(ctx, send.Org, again)
		if err != nil {
			return Choice{}, fmt.Errorf("route for %s: %w", send.Org, err)
		}
		if !fresh && snap.lacks(send) {
			again = true
			continue
		}
		now := time.Now()
		f := snap.field(now, send, chats, r.warmFor)
		if len(f.candidates) == 0 {
			if !fresh { // look again before saying no
				again = true
				continue
			}
			return f.choice(snap), f.refusal(now)
		}
		answer, err := r.ledger.Reserve(ctx, r.request(snap, send, f))
		if err != nil {
			return f.choice(snap), fmt.Errorf("route for %s: %w", send.Org, err)
		}
		c := f.choice(snap)
		switch answer.Verdict {
		case ledger.Taken:
			won := f.candidates[answer.Winner]
			c.Session, c.Reservation, c.Pinned = *won.session, answer.Reservation, answer.Pinned
			c.NewChat, c.ChatStale = won.newChat, won.chatStale
			c.Trails = trails(chats, won.session.ID, answer.Pinned) && !plant.Overtake
			return c, nil
		case ledger.Stale:
			again = true
		default:
			c.Skipped = f.skipped(answer.Why)
			return c, limited(answer, c.Skipped, now, snap.TimeZone)
		}
	}
	return Choice{}, errChanging
}

const chatAccuracy = time.Hour // of a chat's last times

// trails reports whether a person may have been written to last from another session than the one chosen. Whom affinity
// keeps where the last message went never has.
func trails(chats []fleet.Chat, chosen fleet.SessionID, pinned bool) bool {
	var here time.Time
	for i := range chats {
		if pinned && chats[i].SessionID == chosen {
			here = chats[i].LastOutAt
		}
	}
	for i := range chats {
		if c := &chats[i]; c.SessionID != chosen && !c.LastOutAt.IsZero() && !c.LastOutAt.Add(chatAccuracy).Before(here) {
			return true
		}
	}
	return false
}

var errChanging = &fleet.CodedError{
	Code: "CONFIGURATION_CHANGING", Detail: "the organization is being changed: try again", RetryAfter: time.Second, Err: fleet.ErrUnavailable,
}

// Take takes from the project's limits alone, for a message that gets its session later. Errors are those
// of Route.
func (r *Router) Take(ctx context.Context, send Send) (Choice, error) {
	for try := range staleTries {
		snap, fresh, err := r.snapshot(ctx, send.Org, try > 0)
		if err != nil {
			return Choice{}, fmt.Errorf("take for %s: %w", send.Org, err)
		}
		if !fresh && snap.lacks(send) {
			continue
		}
		if len(snap.Sessions) == 0 {
			return Choice{}, errNoSessions()
		}
		answer, err := r.ledger.Reserve(ctx, r.request(snap, send, &field{}))
		switch {
		case err != nil:
			return Choice{}, fmt.Errorf("take for %s: %w", send.Org, err)
		case answer.Verdict == ledger.Taken:
			return Choice{Head: snap.Head, Reservation: answer.Reservation, Session: snap.Sessions[0]}, nil
		case answer.Verdict != ledger.Stale:
			return Choice{}, limited(answer, nil, time.Now(), snap.TimeZone)
		}
	}
	return Choice{}, errChanging
}

// GiveBack gives a reservation back that no stored message has. It is for what was certainly not stored:
// what may have been lapses by itself.
func (r *Router) GiveBack(ctx context.Context, held ledger.Reservation) error {
	if held.IsZero() {
		return nil
	}
	return r.ledger.Settle(ctx, ledger.Settlement{Reservation: held, Unstored: true})
}

func (r *Router) request(snap *snapshot, send Send, f *field) ledger.Request {
	req := ledger.Request{
		Org: send.Org, Key: send.Key, AffinityTTL: snap.AffinityTTL, Strategy: snap.Strategy,
		Rand: rand.Float64(), //nolint:gosec // which number sends is no secret
		Hold: send.Wait + settleSlack, Version: snap.version, Move: send.Held, Bound: send.Only != "",
	}
	for _, c := range f.candidates {
		req.Candidates = append(req.Candidates, c.ask)
	}
	// What is moved holds its part of the limits.
	if send.Held.IsZero() {
		e := snap.Projects[send.Project]
		req.Limits = &ledger.Limits{
			Project: send.Project, ProjectRate: rate(fleet.Rate{PerMinute: int(e.RateMinute), Burst: int(e.RateBurst)}),
			OrgRate: rate(snap.Rate), FleetRate: r.fleet, Backlog: e.MaxBacklog, Quota: e.MonthlyQuota,
		}
		if e.MonthlyQuota > 0 {
			req.Limits.Month, _ = fleet.Month(time.Now(), snap.TimeZone)
		}
	}
	return req
}

func rate(r fleet.Rate) ledger.Rate {
	if r.PerMinute <= 0 {
		return ledger.Rate{}
	}
	return ledger.Rate{PerSecond: float64(r.PerMinute) / 60, Burst: float64(cmp.Or(r.Burst, r.PerMinute))}
}
