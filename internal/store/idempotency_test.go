package store_test

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

func keyClaim(holder, body string) store.IdempotencyClaim {
	return store.IdempotencyClaim{Org: "org-a", Key: "order-1", BodyHash: []byte(body), Holder: holder, LockFor: 30 * time.Second}
}

func wantKey(t *testing.T, s *store.Store, c store.IdempotencyClaim, want store.IdempotencyState) store.Idempotency {
	t.Helper()
	got, err := s.ClaimIdempotency(t.Context(), c)
	if err != nil || got.State != want {
		t.Fatalf("ClaimIdempotency(%s, %q) = %s, %v, want %s", c.Holder, c.BodyHash, got.State, err, want)
	}
	return got
}

func TestOneOfManyClaimsOfAKeyWins(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		states := map[store.IdempotencyState]int{}
		for i := range 20 {
			wg.Go(func() {
				got, err := s.ClaimIdempotency(t.Context(), keyClaim(strconv.Itoa(i), "body"))
				if err != nil {
					t.Errorf("ClaimIdempotency = %v", err)
				}
				mu.Lock()
				defer mu.Unlock()
				states[got.State]++
			})
		}
		wg.Wait()
		if states[store.IdempotencyMine] != 1 || states[store.IdempotencyPending] != 19 {
			t.Errorf("20 claims ended as %v, want one mine and 19 pending", states)
		}
	})
}

func TestKeyKeepsItsFirstAnswer(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		wantKey(t, s, keyClaim("a", "body"), store.IdempotencyMine)
		if err := s.CompleteIdempotency(t.Context(), "org-a", "order-1", "b", 202, []byte("b's")); !errors.Is(err, store.ErrIdempotencyLost) || !errors.Is(err, fleet.ErrConflict) {
			t.Errorf("CompleteIdempotency of another holder = %v, want ErrIdempotencyLost", err)
		}
		if err := s.CompleteIdempotency(t.Context(), "org-a", "order-1", "a", 202, []byte("a's answer")); err != nil {
			t.Fatal(err)
		}
		if err := s.CompleteIdempotency(t.Context(), "org-a", "order-1", "a", 500, []byte("second")); !errors.Is(err, store.ErrIdempotencyLost) {
			t.Errorf("CompleteIdempotency again = %v, want ErrIdempotencyLost", err)
		}
		// A release after the commit does nothing: the holder may not know that it was committed.
		if err := s.ReleaseIdempotency(t.Context(), "org-a", "order-1", "a"); err != nil {
			t.Fatal(err)
		}
		if got := wantKey(t, s, keyClaim("b", "body"), store.IdempotencyDone); got.Status != 202 || string(got.Answer) != "a's answer" {
			t.Errorf("stored answer = %d %q, want a's", got.Status, got.Answer)
		}
		wantKey(t, s, keyClaim("c", "another body"), store.IdempotencyMismatch)
		other := keyClaim("d", "another body")
		other.Org = "org-b"
		wantKey(t, s, other, store.IdempotencyMine) // keys are per organization
		var raw []byte
		if err := s.DB().QueryRow(t.Context(), `SELECT answer FROM idempotency_keys WHERE org_id='org-a'`).Scan(&raw); err != nil || bytes.Contains(raw, []byte("answer")) {
			t.Errorf("the answer lies open in its row: %q, %v", raw, err)
		}
	})
}

func TestReleasedKeyIsFree(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		wantKey(t, s, keyClaim("a", "body"), store.IdempotencyMine)
		for _, step := range []struct {
			holder string
			want   store.IdempotencyState
		}{{"b", store.IdempotencyPending}, {"a", store.IdempotencyFree}} {
			if err := s.ReleaseIdempotency(t.Context(), "org-a", "order-1", step.holder); err != nil {
				t.Fatal(err)
			}
			if got, err := s.GetIdempotency(t.Context(), keyClaim("c", "body")); err != nil || got.State != step.want {
				t.Errorf("after a release by %s: %s, %v, want %s", step.holder, got.State, err, step.want)
			}
		}
		wantKey(t, s, keyClaim("c", "another body"), store.IdempotencyMine)
	})
}

func TestExpiredPendingKeyIsTakenOver(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, url)
		wantKey(t, s, keyClaim("a", "body"), store.IdempotencyMine)
		time.Sleep(30*time.Second - time.Millisecond)
		wantKey(t, s, keyClaim("b", "body"), store.IdempotencyPending)
		time.Sleep(time.Millisecond)
		wantKey(t, s, keyClaim("c", "another body"), store.IdempotencyMismatch)
		if got, err := s.GetIdempotency(t.Context(), keyClaim("b", "body")); err != nil || got.State != store.IdempotencyFree {
			t.Errorf("GetIdempotency of a late key = %s, %v, want free", got.State, err)
		}
		wantKey(t, s, keyClaim("b", "body"), store.IdempotencyMine)
		// The late holder wakes up: its transaction must roll back.
		org := newOrg(t, s, "org-a")
		err := s.InTx(t.Context(), func(ctx context.Context) error {
			if _, err := s.Conversation(ctx, org.ID, "5511900000001"); err != nil {
				return err
			}
			return s.CompleteIdempotency(ctx, "org-a", "order-1", "a", 202, []byte("a's"))
		})
		if !errors.Is(err, store.ErrIdempotencyLost) {
			t.Fatalf("CompleteIdempotency of the late holder = %v, want ErrIdempotencyLost", err)
		}
		var n int
		if err := s.DB().QueryRow(t.Context(), `SELECT count(*) FROM contacts`).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d rows of the late holder's transaction stayed (%v)", n, err)
		}
	})
}

func TestOldKeysArePurged(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		for i := range 3 {
			c := keyClaim("a", "body")
			c.Key = strconv.Itoa(i)
			wantKey(t, s, c, store.IdempotencyMine)
		}
		if n, err := s.PurgeIdempotency(t.Context(), time.Now().Add(-time.Hour), 10); n != 0 || err != nil {
			t.Errorf("PurgeIdempotency = %d, %v of young keys, want 0", n, err)
		}
		for _, want := range []int{2, 1, 0} {
			if n, err := s.PurgeIdempotency(t.Context(), time.Now().Add(time.Hour), 2); n != want || err != nil {
				t.Errorf("PurgeIdempotency(limit 2) = %d, %v, want %d", n, err, want)
			}
		}
	})
}
