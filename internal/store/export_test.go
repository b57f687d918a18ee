package store

import (
	"context"
	"fmt"
	"time"

	"go.mau.fi/util/dbutil"

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
		"DueLanes":     {s.sql(dueLanes), []any{termList(terms)}},
		"NextInLane":   {s.sql(nextInLane), []any{session}},
		"NextOfOthers": {s.sql(nextOfOthers), []any{session, idList([]fleet.ProjectID{"prj_1", "prj_2"}), "msg_1"}},
	}
}

// AcceptTogether accepts messages in one transaction, as those are that come while another one commits.
func AcceptTogether(ctx context.Context, s *Store, all ...*Acceptance) error {
	return s.acceptAll(ctx, all)
}

// KeyLost reports whether an acceptance was left out because its key is another holder's.
func KeyLost(a *Acceptance) bool { return a.lost }

// ListRow has every kind of column that a list may have.
type ListRow struct {
	Name  string `json:"name"`
	Count int64  `json:"count"`
	Yes   bool   `json:"yes"`
	Note  string `json:"note,omitempty"`
}

// ReadList returns what a statement reads from a list, a line a row.
func (s *Store) ReadList(ctx context.Context, rows []ListRow) ([]string, error) {
	names := make([]string, len(rows))
	for i := range rows {
		names[i] = rows[i].Name
	}
	var out []string
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var r ListRow
		err := row.Scan(&r.Name, &r.Count, &r.Yes, &r.Note)
		out = append(out, fmt.Sprintf("%d %s %d %v %s", len(out), r.Name, r.Count, r.Yes, r.Note))
		return err
	}, `SELECT r.name, r.count, r.yes, coalesce(r.note, $3) FROM @rows:$2(name text, count bigint, yes boolean, note text)@ AS r
		WHERE r.name IN (SELECT id FROM @ids:$1@ AS wanted) ORDER BY r.count, r.name`, idList(names), rowList(rows), "none")
	return out, err
}

// EventsBefore is the first number of the events made at a time or later.
func (s *Store) EventsBefore(ctx context.Context, t time.Time) (int64, error) {
	return s.before(ctx, eventsByAge, t)
}
