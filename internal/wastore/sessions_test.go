package wastore_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

func TestSessionsOfManySendsAreStoredTogetherEachUnderItsOwnTerm(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		stale := w.fence(t)
		old := stale.device(t)
		w.takeOver(t)
		w.term.Owner, w.term.Epoch = "w2/b", 2
		owner := w.fence(t)
		now := owner.device(t)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				if err := old.Sessions.PutManySessions(stale.generation, map[string][]byte{"5511900000002:0": []byte("stale"), fmt.Sprintf("old:%d", i): []byte("stale")}); !errors.Is(err, fleet.ErrLeaseLost) {
					t.Errorf("PutManySessions of a term that is over = %v, want ErrLeaseLost", err)
				}
			})
			wg.Go(func() {
				if err := now.Sessions.PutManySessions(owner.generation, map[string][]byte{"5511900000002:0": []byte("owner"), fmt.Sprintf("new:%d", i): []byte("owner")}); err != nil {
					t.Errorf("PutManySessions of the owner = %v", err)
				}
			})
		}
		wg.Wait()
		if owner.generation.Err() != nil || stale.term.Err() == nil {
			t.Errorf("owner's generation %v, stale term %v; want alive and ended", owner.generation.Err(), stale.term.Err())
		}
		var rows, foreign int
		if err := s.DB().QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE their_id LIKE 'old:%') FROM whatsmeow_sessions`).Scan(&rows, &foreign); err != nil || rows != 9 || foreign != 0 {
			t.Errorf("%d rows, %d of the stale term, %v; want the owner's 9", rows, foreign, err)
		}
		for _, from := range []string{"memory", "database"} {
			got, err := now.Sessions.GetSession(owner.generation, "5511900000002:0")
			if err != nil || string(got) != "owner" {
				t.Errorf("GetSession from the %s = %q, %v, want the owner's", from, got, err)
			}
			owner = w.fence(t)
			now = owner.device(t)
		}
	})
}

func TestASessionThatWasNotStoredIsNotRemembered(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t))
	o := w.fence(t)
	d := o.device(t)
	const address = "5511900000002:0"
	if err := d.Sessions.PutManySessions(o.generation, map[string][]byte{address: []byte("one")}); err != nil {
		t.Fatal(err)
	}
	w.exec(t, `CREATE TRIGGER refuse BEFORE UPDATE ON whatsmeow_sessions BEGIN SELECT RAISE(ABORT, 'refused'); END`)
	if err := d.Sessions.PutManySessions(o.generation, map[string][]byte{address: []byte("two")}); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Fatalf("PutManySessions = %v, want the refusal", err)
	}
	w.exec(t, `DROP TRIGGER refuse`)
	if got, err := d.Sessions.GetSession(t.Context(), address); err != nil || string(got) != "one" {
		t.Errorf("GetSession = %q, %v, want what is stored", got, err)
	}
}
