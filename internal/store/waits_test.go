package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
)

// On PostgreSQL a statement that waited for a row goes on with a version newer than its snapshot, and
// some forms lose the row then. These must not: a beat that lost rows would end sessions that are held.
func TestAStatementThatWaitedForARowDoesNotMissIt(t *testing.T) {
	for _, sessions := range []int{1, 40} {
		s := storetest.Open(t, storetest.PostgresURL(t))
		ids := newSessions(t, s, sessions)
		terms := claim(t, s, "w", sessions)
		var messages []fleet.MessageID
		for _, id := range ids {
			m, err := s.CreateMessage(t.Context(), fleet.Message{
				OrgID: "org-a", SessionID: id, ContactKey: "5511900000001", ToJID: "5511900000001@s.whatsapp.net", Kind: "text", Text: "x",
			}, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			messages = append(messages, m.ID)
		}
		for _, tc := range []struct {
			name, before string
			run          func() (rows int, err error)
		}{
			{"a claim of a message behind a beat", `UPDATE leases SET expires_at = expires_at + 1`, func() (int, error) {
				ok, err := s.ClaimMessage(t.Context(), terms[0], store.Claim{ID: messages[slices.Index(ids, terms[0].SessionID)], Kind: fleet.AttemptSend, Payload: []byte("x"), LockFor: time.Minute})
				if !ok {
					return 0, err
				}
				return sessions, err
			}},
			{"a beat behind a beat that nobody heard the end of", `UPDATE leases SET expires_at = expires_at + 1`, func() (int, error) {
				kept, err := s.BeatLeases(t.Context(), "w", terms, time.Minute)
				return len(kept), err
			}},
			{"a release behind a beat", `UPDATE leases SET expires_at = expires_at + 1`, func() (int, error) {
				err := s.ReleaseLeases(t.Context(), "w", terms)
				var left int
				err = errors.Join(err, s.DB().QueryRow(t.Context(), `SELECT count(*) FROM leases WHERE owner <> ''`).Scan(&left))
				return sessions - left, err
			}},
		} {
			t.Run(fmt.Sprintf("%s, %d sessions", tc.name, sessions), func(t *testing.T) {
				tx, err := s.DB().RawDB.BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer tx.Rollback()
				if _, err := tx.ExecContext(t.Context(), tc.before); err != nil {
					t.Fatal(err)
				}
				type answer struct {
					rows int
					err  error
				}
				done := make(chan answer, 1)
				go func() {
					rows, err := tc.run()
					done <- answer{rows, err}
				}()
				untilSomebodyWaits(t, s)
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				if got := <-done; got.err != nil || got.rows != sessions {
					t.Errorf("%s = %d rows, %v, want all %d", tc.name, got.rows, got.err, sessions)
				}
			})
		}
	}
}

func untilSomebodyWaits(t *testing.T, s *store.Store) {
	t.Helper()
	testkit.Eventually(t, 10*time.Second, func() error {
		var waiting int
		err := s.DB().QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting)
		if err == nil && waiting == 0 {
			err = errors.New("nobody waits")
		}
		return err
	})
}

// The first delivery of a stream is the only one that may be tried. Had retention taken it from an
// endpoint that is being enabled, the ones behind it would wait for ever.
func TestRetentionTakesNothingFromAnEndpointThatIsBeingEnabled(t *testing.T) {
	s := storetest.Open(t, storetest.PostgresURL(t))
	tenant(t, s, "org-a")
	e := hook(t, s, fleet.Endpoint{OrgID: "org-a"})
	first := talk(t, s, "org-a", "cnv_a")
	talk(t, s, "org-a", "cnv_a")
	if _, err := s.DisableEndpoint(t.Context(), e.ID, store.DisabledGone); err != nil {
		t.Fatal(err)
	}
	sqlNow(t, s, `UPDATE deliveries SET created_at = 1 WHERE n = (SELECT min(n) FROM deliveries)`)
	type answer struct {
		rows int
		err  error
	}
	purged := make(chan answer, 1)
	err := s.InTx(t.Context(), func(ctx context.Context) error {
		no := false
		if _, err := s.UpdateEndpoint(ctx, "", e.ID, store.EndpointChange{Disabled: &no}); err != nil {
			return err
		}
		go func() {
			n, err := s.PurgeDeliveries(t.Context(), time.Now().Add(-time.Hour), 10)
			purged <- answer{n, err}
		}()
		untilSomebodyWaits(t, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := <-purged; got.rows != 0 || got.err != nil {
		t.Errorf("PurgeDeliveries = %d, %v, want 0", got.rows, got.err)
	}
	want(t, "enabled again", claimed(t, s, "w", 10), first)
}
