package pairing

import (
	"math"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
)

// phase is where a number is on its way to being linked.
type phase string

const (
	phaseStarting phase = "starting" // asked for, nothing to scan yet
	phaseScan     phase = "scan"     // a QR is shown
	phaseType     phase = "type"     // a code to type on the phone is shown
	phaseLinking  phase = "linking"  // the phone said yes, the first login is under way
	phaseDone     phase = "done"     // linked
	phaseUnlinked phase = "unlinked" // was linked, and has no login any more
	phaseOver     phase = "over"     // came to nothing, and its slot is free again
	phaseGone     phase = "gone"     // deleted by the operator
)

// final says that nothing follows by itself.
func (p phase) final() bool {
	return p == phaseDone || p == phaseUnlinked || p == phaseOver || p == phaseGone
}

// phaseOf says where a number is. What a code shows counts only while a live owner shows it: a code that
// is over must not be on any page, or phones hang on it.
func phaseOf(n *fleet.InviteNumber, now time.Time) phase {
	switch asked := n.Pair.Status == fleet.CommandPending || n.Pair.Status == fleet.CommandRunning; {
	case n.End != "":
		return phaseOver
	case n.Desired == fleet.DesiredDeleted:
		return phaseGone
	case n.CanLogin() && n.Ever():
		return phaseDone
	case n.CanLogin():
		return phaseLinking
	case n.Over:
		return phaseOver
	case asked && now.Before(n.Pair.ExpiresAt):
		return phaseStarting
	case n.Observed == fleet.ObservedPairing && n.LeaseLive && n.Epoch == n.LeaseEpoch:
		if !now.Before(n.Pairing.ExpiresAt) {
			return phaseStarting // the next one is on its way
		}
		if n.Pairing.Method == fleet.PairCode {
			return phaseType
		}
		return phaseScan
	case n.Ever():
		return phaseUnlinked
	default:
		return phaseStarting
	}
}

// row is a number in the list of a link.
type row struct {
	ID     fleet.SessionSlug
	Last4  string // "" until it is linked
	State  string // key of its text, and class of its dot
	Open   bool   // it is being linked: there is a page to go on with
	Relink bool
}

func rowOf(n *fleet.InviteNumber, now time.Time) row {
	r := row{ID: n.Slug}
	switch at := phaseOf(n, now); at {
	case phaseDone:
		r.Last4, r.State = last4(n.Phone), linkedState(n)
	case phaseUnlinked:
		r.Last4, r.State, r.Relink = last4(n.Phone), "unlinked", true
	case phaseLinking:
		r.State, r.Open = "linking", true
	default:
		r.State, r.Open = "waiting", true
		if n.Ever() {
			r.Last4 = last4(n.Phone)
		}
	}
	return r
}

// linkedState is what a client is told of a number that is linked.
func linkedState(n *fleet.InviteNumber) string {
	switch {
	case n.Desired == fleet.DesiredStopped:
		return "stopped"
	case !n.LeaseLive:
		return "reconnecting"
	}
	switch n.Observed {
	case fleet.ObservedConnected:
		if n.Epoch == n.LeaseEpoch {
			return "connected"
		}
		return "reconnecting"
	case fleet.ObservedTempBanned, fleet.ObservedBanned, fleet.ObservedLocked:
		return "restricted"
	case fleet.ObservedConflict, fleet.ObservedFailed, fleet.ObservedClientOutdated:
		return "attention"
	default:
		return "reconnecting"
	}
}

// last4 is all of a phone number that a link shows.
func last4(phone string) string {
	if len(phone) < 8 {
		return "" // the rest would be guessed too easily
	}
	return phone[len(phone)-4:]
}

// linkView is the page of a link, and its live part.
type linkView struct {
	frame
	Rows      []row
	Used, Max int
	Full      bool
	Notice    string // key of a text: what just went wrong
}

// busy says that something is under way, so a page without scripts loads itself again.
func (v *linkView) busy() bool {
	for _, r := range v.Rows {
		if r.Open {
			return true
		}
	}
	return false
}

// numberView is the page of one number, and its live part.
type numberView struct {
	frame
	ID      fleet.SessionSlug
	Phase   phase
	Last4   string
	QR      markup    // the picture
	Code    []string  // the two halves to type
	Expires time.Time // of the QR or code
	Why     string    // key of a text: why it is over
	Left    bool      // the link has a slot for another
	Relink  bool      // it was linked before: the same number again
}

// Seconds until the code shown is over, for the countdown.
func (v *numberView) Seconds() int {
	return max(0, int(math.Ceil(time.Until(v.Expires).Seconds())))
}
