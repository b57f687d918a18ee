package worker

import (
	"math/rand/v2"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/wa"
)

// When and how often a session is dialled again.
const (
	backoffBase   = time.Second
	backoffCap    = 50 * time.Second // with jitter at most a minute
	stableAfter   = time.Minute      // an open that lasted this long resets the counters
	conflictBase  = 30 * time.Second
	conflictLimit = 4 // replaced so often within the window: park
	conflictSpan  = 15 * time.Minute
	probeOutdated = 5 * time.Minute  // a refused client version is tried again slowly
	banUnsaid     = time.Hour        // a temporary ban of which WhatsApp doesn't say how long it lasts
	banMargin     = 10 * time.Second // after a temporary ban's end, so as not to be early by a clock's error
	dropGrace     = 20 * time.Second // a drop that heals within it is told to nobody
)

// history is what a session's supervisor remembers over generations.
type history struct {
	attempts int         // failed connects in a row
	replaced []time.Time // "replaced" within conflictSpan
}

// verdict is what follows the end of a generation.
type verdict struct {
	state fleet.Observed
	delay time.Duration // until the next dial
	park  bool          // no dial until a person or a command says so
	loud  bool          // told at once, not after the grace

	tell fleet.EventKind // an event of its own beside the state; "" = none
}

// after decides what follows an end. stable: the generation was open for stableAfter, so counters
// start anew; a brief open must not reset them, or a "replaced" loop would never reach its limit.
func (h *history) after(end wa.End, stable bool, now time.Time) verdict {
	if stable {
		h.attempts = 0
		h.replaced = nil
	}
	switch end.Reason {
	case wa.ReasonPaired:
		return verdict{state: fleet.ObservedConnecting}
	case wa.ReasonReplaced:
		return h.conflict(now)
	case wa.ReasonLoggedOut, wa.ReasonUnlinked:
		return verdict{state: fleet.ObservedLoggedOut, park: true, loud: true}
	case wa.ReasonLocked:
		return verdict{state: fleet.ObservedLocked, park: true, loud: true}
	case wa.ReasonBanned:
		return verdict{state: fleet.ObservedBanned, park: true, loud: true}
	case wa.ReasonTempBanned:
		return verdict{state: fleet.ObservedTempBanned, delay: banned(end) + banMargin, loud: true}
	case wa.ReasonClientOutdated:
		return verdict{state: fleet.ObservedClientOutdated, delay: jitter(probeOutdated), loud: true}
	case wa.ReasonStore:
		return h.again(fleet.ObservedUnavailable)
	default:
		return h.again(fleet.ObservedReconnecting)
	}
}

// banned is how long a temporary ban lasts.
func banned(end wa.End) time.Duration {
	if end.Expire > 0 {
		return end.Expire
	}
	return banUnsaid
}

// conflict: another socket holds the same keys although the lease is ours, so the copy is outside
// the fleet. Fighting it would kick both for ever: back off, growing, then leave it to a person.
func (h *history) conflict(now time.Time) verdict {
	recent := h.replaced[:0]
	for _, t := range h.replaced {
		if now.Sub(t) < conflictSpan {
			recent = append(recent, t)
		}
	}
	h.replaced = append(recent, now)
	n := len(h.replaced)
	if n >= conflictLimit {
		h.replaced = nil
		return verdict{state: fleet.ObservedConflict, park: true, loud: true, tell: fleet.EventSessionConflict}
	}
	return verdict{state: fleet.ObservedConflict, delay: jitter(conflictBase << (n - 1)), loud: true}
}

// again is the end of a try that may be repeated for ever, which people hear of from time to time.
func (h *history) again(state fleet.Observed) verdict {
	v := verdict{state: state, delay: h.backoff()}
	if h.attempts%fleet.ReconnectLoop == 0 {
		v.tell = fleet.EventReconnectLoop
	}
	return v
}

// backoff counts a failure and returns the wait: none to speak of for the first, then doubling.
func (h *history) backoff() time.Duration {
	n := h.attempts
	h.attempts++
	if n == 0 {
		return time.Duration(rand.Int64N(int64(backoffBase))) //nolint:gosec // spreads load, guards nothing
	}
	return jitter(min(backoffBase<<min(n, 10), backoffCap))
}

// jitter spreads a wait by a fifth either way, so that a fleet that fell together doesn't rise together.
func jitter(d time.Duration) time.Duration {
	fifth := int64(d / 5)
	if fifth <= 0 {
		return d
	}
	return d + time.Duration(rand.Int64N(2*fifth)-fifth) //nolint:gosec // spreads load, guards nothing
}
