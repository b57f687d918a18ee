package store

import "github.com/wafleet/wafleet/internal/fleet"

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
