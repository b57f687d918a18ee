package router

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// Reason says why a session was passed over.
type Reason string

// Reasons, from a closed set: they are told to consumers and may become metric labels.
const (
	ReasonStopped      Reason = "stopped"         // the operator wants it stopped
	ReasonPaused       Reason = "paused"          // the operator holds it back; inbound goes on
	ReasonUnpaired     Reason = "unpaired"        // it has no WhatsApp number yet, or no login any more
	ReasonUnowned      Reason = "unowned"         // no worker holds it: none runs, or the last one's heartbeat stopped
	ReasonDisconnected Reason = "not_connected"   // its owner is not logged in at WhatsApp now
	ReasonOutdated     Reason = "client_outdated" // WhatsApp refuses this version of the client
)

// When to try again if no session can send.
const (
	noneRetry     = 5 * time.Second // about a reconnect
	outdatedRetry = time.Minute     // an outdated client is tried again every few minutes, or replaced by a person
)

// Skip is a session that was passed over.
type Skip struct {
	Session fleet.SessionID
	Slug    fleet.SessionSlug
	Reason  Reason
}

// Choice is the router's answer.
type Choice struct {
	Session fleet.Session     // zero with an error
	Head    fleet.SessionSlug // of the organization: what its consumers see, whichever session sends
	Skipped []Skip            // those before the chosen one in list order, or all
}

// Router picks sessions. Its methods are safe for use by several goroutines.
type Router struct{ store *store.Store }

// New returns a router over the sessions of this database.
func New(s *store.Store) *Router { return &Router{store: s} }

// Route picks the session of the organization that sends to this recipient. Without one it returns a
// *fleet.CodedError, NO_SESSIONS (the organization has none), CLIENT_OUTDATED (those that should send
// can't, because WhatsApp refuses this version) or NONE_ELIGIBLE (none can send now for other reasons),
// and a Choice that says why each was skipped.
func (r *Router) Route(ctx context.Context, org fleet.OrgID, _ fleet.Recipient) (Choice, error) {
	senders, err := r.store.Senders(ctx, org)
	if err != nil {
		return Choice{}, fmt.Errorf("route for %s: %w", org, err)
	}
	c, err := choose(senders.Sessions)
	c.Head = senders.Head
	return c, err
}

func choose(sessions []fleet.Session) (Choice, error) {
	var c Choice
	for i := range sessions {
		s := &sessions[i]
		if s.Desired == fleet.DesiredDeleted {
			continue // as good as not there
		}
		ok, reason := eligible(s)
		if ok {
			c.Session = *s
			return c, nil
		}
		c.Skipped = append(c.Skipped, Skip{s.ID, s.Slug, reason})
	}
	if len(c.Skipped) == 0 {
		return c, &fleet.CodedError{
			Code: "NO_SESSIONS", Detail: "the organization has no session: create one and pair it", Err: fleet.ErrConflict,
		}
	}
	if outdated(c.Skipped) {
		return c, &fleet.CodedError{
			Code: "CLIENT_OUTDATED", Detail: "WhatsApp refuses this version of the gateway; its operator has to upgrade it or set WA_WEB_VERSION",
			RetryAfter: outdatedRetry, Err: fleet.ErrUnavailable,
		}
	}
	return c, &fleet.CodedError{
		Code: "NONE_ELIGIBLE", Detail: "no session can send now: " + tally(c.Skipped), RetryAfter: noneRetry, Err: fleet.ErrUnavailable,
	}
}

// eligible reports whether a session may send now, and if not, the first reason.
//
// Whether the socket is alive is in the row already, and needs no clock here: its owner ends a socket
// that stays silent and writes so, and an owner that can't write loses its lease (LeaseLive, by the
// database's clock). So an idle fleet need not write down every pong.
func eligible(s *fleet.Session) (bool, Reason) {
	switch {
	case s.Desired != fleet.DesiredRunning:
		return false, ReasonStopped
	case s.Paused:
		return false, ReasonPaused
	case s.Phone == "" || !s.CanLogin():
		return false, ReasonUnpaired
	case !s.LeaseLive:
		return false, ReasonUnowned
	// This is about our version and not about the socket, so it may be an earlier owner's word.
	case s.Observed == fleet.ObservedClientOutdated:
		return false, ReasonOutdated
	// What an earlier owner saw says nothing about this one's socket.
	case s.Observed != fleet.ObservedConnected || s.Epoch != s.LeaseEpoch:
		return false, ReasonDisconnected
	default:
		return true, ""
	}
}

// outdated reports whether our version is all that keeps sending from going on: of the sessions that
// are wanted and linked, none has another trouble that may pass sooner.
func outdated(skipped []Skip) bool {
	found := false
	for _, s := range skipped {
		switch s.Reason {
		case ReasonOutdated:
			found = true
		case ReasonStopped, ReasonPaused, ReasonUnpaired: // a person's business
		case ReasonUnowned, ReasonDisconnected:
			return false
		}
	}
	return found
}

// tally counts reasons without naming sessions: consumers know no numbers but their own.
func tally(skipped []Skip) string {
	var order []Reason
	counts := map[Reason]int{}
	for _, s := range skipped {
		if counts[s.Reason]++; counts[s.Reason] == 1 {
			order = append(order, s.Reason)
		}
	}
	parts := make([]string, len(order))
	for i, reason := range order {
		parts[i] = fmt.Sprintf("%d %s", counts[reason], strings.ReplaceAll(string(reason), "_", " "))
	}
	return strings.Join(parts, ", ")
}
