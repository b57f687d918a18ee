package router

import (
	"context"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
	"github.com/wafleet/wafleet/internal/store"
)

// snapshot is an organization's rows as they were at a time, under a version of its configuration.
type snapshot struct {
	store.Senders
	version ledger.Version
	at      time.Time // they are not older
}

// maxSnapshots bounds what is kept; beyond it everything is read again.
const maxSnapshots = 10_000

// snapshot gives an organization's rows, and says whether they were read now: those that are kept will do
// unless again is set. The version is read first: a change that comes in between makes what was read stale,
// and never the other way round.
func (r *Router) snapshot(ctx context.Context, org fleet.OrgID, again bool) (s *snapshot, fresh bool, err error) {
	r.mu.Lock()
	kept := r.snapshots[org]
	r.mu.Unlock()
	if !again && kept != nil && time.Since(kept.at) < r.keep {
		return kept, false, nil
	}
	s = &snapshot{at: time.Now()}
	if s.version, err = r.ledger.Version(ctx, org); err != nil {
		return nil, false, err
	}
	if s.Senders, err = r.store.Senders(ctx, org); err != nil {
		return nil, false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.snapshots) >= maxSnapshots {
		clear(r.snapshots)
	}
	if kept := r.snapshots[org]; kept == nil || kept.version <= s.version {
		r.snapshots[org] = s
	}
	return s, true, nil
}

// lacks reports whether the send's project is not among the rows: it is newer than they are, and so are its limits. One that
// was deleted has none any more.
func (s *snapshot) lacks(send Send) bool {
	_, known := s.Projects[send.Project]
	return !known && send.Held.IsZero() && send.Project != ""
}
