package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

// A list is read the same from parameters as from JSON, whatever is in it.
func TestAListReadsTheSameHoweverManyRowsItHas(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		for n := range 7 {
			rows := make([]store.ListRow, n)
			var want []string
			for i := range rows {
				rows[i] = store.ListRow{Name: fmt.Sprintf(`it's "%d" $1 ? @now@`, i), Count: int64(i) << 40, Yes: i%2 == 0}
				missing := "none"
				if i > 0 {
					rows[i].Note, missing = "note", "note"
				}
				want = append(want, fmt.Sprintf("%d %s %d %v %s", i, rows[i].Name, rows[i].Count, rows[i].Yes, missing))
			}
			got, err := s.ReadList(t.Context(), rows)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("a list of %d rows (-want +got):\n%s", n, diff)
			}
		}
	})
}

func TestWhatIsOldIsFoundByItsNumber(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		now := time.Now()
		if got, err := s.EventsBefore(t.Context(), now); err != nil || got != 1 && got != 0 {
			t.Errorf("without rows the first number is %d, %v", got, err)
		}
		ages := []int{90, 80, 70, 60, 50, 40, 30, 20, 10}
		for i, age := range ages {
			mustSQL(t, s, `INSERT INTO events (id, kind, stream, seq, data, created_at) VALUES ($1, 'x', 's', $2, '{}', $3)`,
				fmt.Sprint("evt_", i), i, now.AddDate(0, 0, -age).UnixMilli())
		}
		mustSQL(t, s, `DELETE FROM events WHERE id IN ('evt_3', 'evt_4', 'evt_5')`) // numbers that nobody has any more
		for _, days := range []int{100, 85, 65, 45, 25, 5} {
			before := now.AddDate(0, 0, -days)
			bound, err := s.EventsBefore(t.Context(), before)
			if err != nil {
				t.Fatal(err)
			}
			var wrong int
			if err := s.DB().QueryRow(t.Context(), `SELECT count(*) FROM events WHERE (n<$1)<>(created_at<$2)`, bound, before.UnixMilli()).Scan(&wrong); err != nil {
				t.Fatal(err)
			}
			if wrong != 0 {
				t.Errorf("%d events are on the wrong side of number %d, the first of the last %d days", wrong, bound, days)
			}
		}
	})
}
