package worker

import (
	"sync"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/wa"
)

// When WhatsApp turns so many sessions of this process away within the span that a change of its own
// is likelier than trouble with single numbers, reconnecting slows down.
const (
	brakeSpan  = 5 * time.Minute
	brakeLeast = 3  // so many sessions …
	brakeShare = 10 // … and at least one in so many
	brakeGap   = 10 * time.Second
)

// brake spaces the dials of a process while WhatsApp turns sessions away in numbers: if each login
// costs a number, few are lost until people have seen the alert; and if it is our version that is
// refused, WhatsApp is not flooded with the same refusal. Sessions that are connected are left alone.
type brake struct {
	mu   sync.Mutex
	away map[fleet.SessionID]turned // within brakeSpan
	next time.Time                  // when the next dial may begin
}

type turned struct {
	at     time.Time
	reason wa.Reason
}

// saw notes how a generation ended.
func (b *brake) saw(id fleet.SessionID, r wa.Reason, now time.Time) {
	switch r {
	case wa.ReasonLoggedOut, wa.ReasonUnlinked, wa.ReasonLocked, wa.ReasonBanned, wa.ReasonClientOutdated:
	default:
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.away == nil {
		b.away = map[fleet.SessionID]turned{}
	}
	b.away[id] = turned{now, r}
}

// loggedIn notes a login that worked: our version is taken again.
func (b *brake) loggedIn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, t := range b.away {
		if t.reason == wa.ReasonClientOutdated {
			delete(b.away, id)
		}
	}
}

// pause returns after what time to ask again, or 0 for a dial that may begin now. active is the number
// of sessions of this process.
func (b *brake) pause(active int, now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, t := range b.away {
		if now.Sub(t.at) >= brakeSpan {
			delete(b.away, id)
		}
	}
	if n := len(b.away); n < brakeLeast || n*brakeShare < active {
		return 0
	}
	if wait := b.next.Sub(now); wait > 0 {
		return wait
	}
	b.next = now.Add(brakeGap)
	return 0
}
