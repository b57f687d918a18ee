package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
)

// movableAfter is how long a session has to be down before it can be moved: whoever chose it for a message while it was
// up has stored that message by then, or given up.
const movableAfter = 15 * time.Second

// MoveSession gives a stopped session to another organization, at the end of its list. Its login, keys, budget and what
// it knows of chats go with it; messages and events stay with the organization that had it. SESSION_BUSY: it is not
// stopped, or somebody waits for something from it.
func (s *Store) MoveSession(ctx context.Context, slug fleet.SessionSlug, to fleet.OrgID) (fleet.Session, error) {
	var out fleet.Session
	err := s.InTx(ctx, func(ctx context.Context) error {
		before, err := s.SessionBySlug(ctx, slug)
		if err != nil {
			return err
		}
		if before.OrgID == to {
			return &fleet.CodedError{Code: "SAME_ORGANIZATION", Detail: "it is this organization's already", Err: fleet.ErrConflict}
		}
		both := []fleet.OrgID{before.OrgID, to}
		slices.Sort(both)
		for _, org := range both {
			if err := s.holdOrg(ctx, org); err != nil {
				return err
			}
		}
		if _, err := s.GetOrganization(ctx, to); err != nil {
			return err
		}
		if err := s.idle(ctx, before.ID); err != nil {
			return err
		}
		n, err := s.exec(ctx, `UPDATE sessions SET org_id=$3, detached=FALSE, invite_id='', invite_end='',
				position=(SELECT coalesce(max(o.position), 0)+1 FROM sessions o WHERE o.org_id=$3)
			WHERE id=$1 AND org_id=$2 AND desired='stopped'`, before.ID, before.OrgID, to)
		if err := exactlyOne(n, err); err != nil {
			return err
		}
		if err := s.passHead(ctx, before.OrgID, before.ID); err != nil {
			return err
		}
		if _, err := s.exec(ctx, `UPDATE organizations SET head_session_id=$2 WHERE id=$1 AND head_session_id=''`, to, before.ID); err != nil {
			return err
		}
		if out, err = s.SessionByID(ctx, before.ID); err != nil {
			return err
		}
		return s.audit(ctx, change{
			action: "session.move", org: before.OrgID, subject: string(slug),
			before: map[string]any{"orgId": before.OrgID}, after: map[string]any{"orgId": to},
		})
	})
	if err != nil {
		return out, fmt.Errorf("move session %s to %s: %w", slug, to, err)
	}
	return out, nil
}

// idle locks the session's rows, so that nobody starts it and no message is queued on it until the commit, and says
// what keeps it from being moved.
func (s *Store) idle(ctx context.Context, id fleet.SessionID) error {
	var live, lately bool
	var desired fleet.Desired
	var pending, commands int
	err := s.row(ctx, `SELECT owner<>'' AND expires_at>@now@, expires_at>@now@-$2 FROM leases WHERE session_id=$1 @update@`, id, movableAfter.Milliseconds()).Scan(&live, &lately)
	if err != nil {
		return notFound(err)
	}
	var since bool
	if err := s.row(ctx, `SELECT desired, observed_since>@now@-$2 FROM sessions WHERE id=$1 @update@`, id, movableAfter.Milliseconds()).Scan(&desired, &since); err != nil {
		return notFound(err)
	}
	// These see what was committed before the locks came.
	if err := s.row(ctx, `SELECT count(*) FROM messages WHERE session_id=$1 AND status IN ('queued', 'sending')`, id).Scan(&pending); err != nil {
		return unavailable(err)
	}
	if err := s.row(ctx, `SELECT count(*) FROM commands WHERE session_id=$1 AND status IN ('pending', 'running')`, id).Scan(&commands); err != nil {
		return unavailable(err)
	}
	var way []string
	if desired != fleet.DesiredStopped {
		way = append(way, "it is not stopped: stop it first")
	}
	switch {
	case live:
		way = append(way, "a worker still holds it")
	case desired == fleet.DesiredStopped && (since || lately):
		way = append(way, "it has been down for less than 15 seconds: ask again shortly")
	}
	if pending > 0 {
		way = append(way, fmt.Sprintf("%d of its messages are queued, scheduled or being sent: cancel them or let them end", pending))
	}
	if commands > 0 {
		way = append(way, fmt.Sprintf("%d commands are open", commands))
	}
	if len(way) > 0 {
		return &fleet.CodedError{Code: "SESSION_BUSY", Detail: strings.Join(way, "; "), Err: fleet.ErrConflict}
	}
	return nil
}
