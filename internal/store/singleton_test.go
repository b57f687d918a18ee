package store_test

import (
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

func TestSingletonHasOneOwnerUntilItIsDroppedOrRunsOut(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		hold := func(owner string, ttl time.Duration) time.Duration {
			t.Helper()
			left, err := s.HoldSingleton(t.Context(), owner, ttl)
			if err != nil {
				t.Fatal(err)
			}
			return left
		}
		if left := hold("a", time.Minute); left != 0 {
			t.Errorf("HoldSingleton(a) = %v, want it held", left)
		}
		if left := hold("b", time.Minute); left <= 0 || left > time.Minute {
			t.Errorf("HoldSingleton(b) beside a = %v, want at most a minute to wait", left)
		}
		if err := s.DropSingleton(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		if left := hold("a", time.Hour); left != 0 {
			t.Errorf("HoldSingleton(a) again = %v, want it held: b may not drop it", left)
		}
		if left := hold("b", time.Minute); left <= time.Minute {
			t.Errorf("HoldSingleton(b) = %v, want it as long as a prolonged it", left)
		}
		if err := s.DropSingleton(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if left := hold("b", time.Minute); left != 0 {
			t.Errorf("HoldSingleton(b) after a dropped it = %v, want it held", left)
		}
		execSQL(t, s, `UPDATE singleton SET expires_at = 1`)
		if left := hold("a", time.Minute); left != 0 {
			t.Errorf("HoldSingleton(a) after b ran out = %v, want it held", left)
		}
		if left, err := s.HoldSingleton(t.Context(), "", time.Minute); err == nil {
			t.Errorf("HoldSingleton of nobody = %v, want an error", left)
		}
	})
}
