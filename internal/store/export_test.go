package store

import (
	"context"

	"github.com/wafleet/wafleet/internal/fleet"
)

// LaneQuery is a statement as it is sent to the database.
type LaneQuery struct {
	SQL  string
	Args []any
}

// LaneQueries are the statements that look for work in lanes, for tests of their plans.
func LaneQueries(s *Store, session fleet.SessionID, terms []fleet.Term) map[string]LaneQuery {
	return map[string]LaneQuery{
		"DueLanes":   {s.sql(dueLanes), []any{termList(terms)}},
		"NextInLane": {s.sql(nextInLane), []any{session}},
	}
}

// AcceptTogether accepts messages in one transaction, as those are that come while another one commits.
func AcceptTogether(ctx context.Context, s *Store, all ...*Acceptance) error {
	return s.acceptAll(ctx, all)
}

// KeyLost reports whether an acceptance was left out because its key is another holder's.
func KeyLost(a *Acceptance) bool { return a.lost }
