package store_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

// An idle fleet looks at its lanes every second: each look must be served by the partial index of
// what is open, however many messages were ever sent.
func TestLookingForWorkIsServedByThePartialIndex(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		for i := range 300 {
			l.accept("5511900000001", strconv.Itoa(i))
		}
		explain := "EXPLAIN QUERY PLAN "
		if s.Postgres() {
			explain = "EXPLAIN "
		}
		statements := []string{
			`UPDATE messages SET status='sent', outcome='sent'`, // they are all done
			`ANALYZE messages`,
		}
		for _, q := range statements {
			if _, err := s.DB().Exec(t.Context(), q); err != nil {
				t.Fatal(err)
			}
		}
		for name, q := range store.LaneQueries(s, l.sess.ID, []fleet.Term{l.term}) {
			rows, err := s.DB().Query(t.Context(), explain+q.SQL, q.Args...)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			var plan strings.Builder
			columns, err := rows.Columns()
			if err != nil {
				t.Fatal(err)
			}
			for rows.Next() {
				values := make([]any, len(columns))
				targets := make([]any, len(columns))
				for i := range values {
					targets[i] = &values[i]
				}
				if err := rows.Scan(targets...); err != nil {
					t.Fatal(err)
				}
				fmt.Fprintln(&plan, values[len(values)-1])
			}
			if err := rows.Close(); err != nil {
				t.Fatal(err)
			}
			if p := plan.String(); !strings.Contains(p, "messages_lane") || strings.Contains(p, "Seq Scan on messages") || strings.Contains(p, "SCAN m\n") {
				t.Errorf("%s is not served by messages_lane:\n%s", name, p)
			}
		}
	})
}
