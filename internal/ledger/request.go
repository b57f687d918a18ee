package ledger

import (
	"errors"
	"fmt"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
)

var (
	errClosed       = errors.New("ledger is closed")
	errNoGeneration = errors.New("ledger: a rebuild without a generation")
)

// maxCandidates bounds what one step may have to look at.
const maxCandidates = 5000

func (r *Request) check() error {
	switch {
	case len(r.Candidates) == 0 && r.Limits == nil:
		return fmt.Errorf("reserve: %w: neither candidates nor limits", fleet.ErrInvalid)
	case len(r.Candidates) > maxCandidates:
		return fmt.Errorf("reserve: %w: %d candidates, at most %d", fleet.ErrInvalid, len(r.Candidates), maxCandidates)
	case r.Bound && len(r.Candidates) != 1:
		return fmt.Errorf("reserve: %w: a bound request has one candidate, not %d", fleet.ErrInvalid, len(r.Candidates))
	case r.Limits != nil && r.Limits.Project == "":
		return fmt.Errorf("reserve: %w: limits without a project", fleet.ErrInvalid)
	case r.Rand < 0 || r.Rand >= 1:
		return fmt.Errorf("reserve: %w: dice show %v, want [0, 1)", fleet.ErrInvalid, r.Rand)
	default:
		return nil
	}
}

func (s *Settlement) check() error {
	if s.Frames < 0 || s.slug() == "" && s.Reservation.IsZero() {
		return fmt.Errorf("settle: %w: %d frames of session %q", fleet.ErrInvalid, s.Frames, s.slug())
	}
	return nil
}

func (s *Settlement) slug() fleet.SessionSlug {
	if s.Reservation.Session != "" {
		return s.Reservation.Session
	}
	return s.Session
}

// maxHold bounds how long a message may wait for its frame.
const maxHold = 25 * time.Hour

func holdSeconds(hold time.Duration) int64 {
	if hold <= 0 {
		hold = defaultHold
	}
	return int64(min(hold, maxHold) / time.Second)
}

// lapse is the second in which what is reserved now lapses: a whole minute, and a whole hour for what
// may wait long, so that there are few of them.
func lapse(now int64, hold time.Duration) int64 {
	wait := holdSeconds(hold)
	step := int64(60)
	if wait > 3600 {
		step = 3600
	}
	return ((now/1000+wait)/step + 1) * step
}

// sharedTokens are the names of token buckets that are not a session's own.
func sharedTokens(org fleet.OrgID, project fleet.ProjectID) [3]string {
	return [3]string{"p:" + string(project), "o:" + string(org), "f"}
}

// each calls f for every shared token bucket that has a limit.
func (l *Limits) each(org fleet.OrgID, f func(key string, r Rate)) {
	for i, key := range sharedTokens(org, l.Project) {
		if r := [3]Rate{l.ProjectRate, l.OrgRate, l.FleetRate}[i]; r.PerSecond > 0 {
			f(key, r)
		}
	}
}
