package outbound

import (
	"testing"
	"time"
	_ "time/tzdata" // also where the machine knows no zones

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

func TestALocalTimeIsKeptAndFollowsTheRulesOfItsZone(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		zone, err := time.LoadLocation("Europe/Berlin")
		if err != nil {
			t.Fatal(err)
		}
		wanted := time.Now().In(zone).AddDate(0, 1, 0).Truncate(time.Minute)
		local := fleet.LocalTime{Time: wanted.Format("2006-01-02T15:04"), Zone: "Europe/Berlin"}
		at, err := local.Instant()
		if err != nil {
			t.Fatal(err)
		}
		accept := func(change func(r *Request)) fleet.Message {
			t.Helper()
			a, err := w.o.Accept(t.Context(), request(change))
			if err != nil {
				t.Fatal(err)
			}
			return a.Message
		}
		m := accept(func(r *Request) { r.SendAtLocal = local })
		if !m.Parked || !m.SendAt.Equal(at) || !m.DueAt.Equal(at) || !m.ExpiresAt.Equal(at.Add(fleet.DefaultTTL)) {
			t.Errorf("Accept = %+v, want it due at %s", m, at)
		}
		past := accept(func(r *Request) { r.SendAtLocal = fleet.LocalTime{Time: "2001-01-01T00:00", Zone: "Europe/Berlin"} })
		if past.Parked || !past.SendAt.IsZero() {
			t.Errorf("Accept of a time that has passed = %+v, want it sent now", past)
		}
		ended := accept(func(r *Request) { r.SendAtLocal, r.ClientRef = local, "ended" })
		if _, err := w.o.Cancel(t.Context(), "org-a", ended.ID); err != nil {
			t.Fatal(err)
		}
		kept := func() (n int) {
			t.Helper()
			if err := s.DB().QueryRow(t.Context(), `SELECT count(*) FROM local_times`).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		if n := kept(); n != 2 {
			t.Errorf("%d local times are kept, want those of two messages for later", n)
		}
		rezone := func(want int) {
			t.Helper()
			if n, err := s.Rezone(t.Context(), 1); n != want || err != nil {
				t.Errorf("Rezone = %d, %v, want %d", n, err, want)
			}
		}
		rezone(0)
		if n := kept(); n != 1 {
			t.Errorf("%d local times are kept, want that of the message that waits", n)
		}
		// As if the zone had had other rules when it was accepted.
		if _, err := s.DB().Exec(t.Context(), `UPDATE messages SET send_at=send_at-3600000, due_at=due_at-3600000, expires_at=expires_at-3600000 WHERE id=$1`, m.ID); err != nil {
			t.Fatal(err)
		}
		rezone(1)
		if got := w.message(m.ID); !got.SendAt.Equal(at) || !got.DueAt.Equal(at) || !got.ExpiresAt.Equal(at.Add(fleet.DefaultTTL)) {
			t.Errorf("after Rezone it is due at %s and expires at %s, want %s", got.DueAt, got.ExpiresAt, at)
		}
		rezone(0)
	})
}

func TestALocalTimeThatIsNoneIsRefusedUnderItsKeyToo(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t))
	for code, change := range map[string]func(r *Request){
		"TIME_ZONE_INVALID": func(r *Request) {
			r.SendAtLocal = fleet.LocalTime{Time: "2026-12-24T18:00", Zone: "Europe/Atlantis"}
		},
		"SEND_AT_INVALID": func(r *Request) {
			r.SendAtLocal = fleet.LocalTime{Time: "2026-12-24T18:00+01:00", Zone: "Europe/Berlin"}
		},
	} {
		for range 2 {
			_, err := w.o.Accept(t.Context(), request(func(r *Request) { change(r); r.Key = code }))
			wantCode(t, err, code)
		}
	}
	_, err := w.o.Accept(t.Context(), request(func(r *Request) {
		r.SendAt, r.SendAtLocal = time.Now().Add(time.Hour), fleet.LocalTime{Time: "2026-12-24T18:00", Zone: "Europe/Berlin"}
	}))
	wantCode(t, err, "SEND_AT_INVALID")
	_, err = w.o.Accept(t.Context(), request(func(r *Request) { r.SendAtLocal = fleet.LocalTime{Time: "2199-12-24T18:00", Zone: "Europe/Berlin"} }))
	wantCode(t, err, "SEND_AT_INVALID")
	w.wantMessages(0)
}
