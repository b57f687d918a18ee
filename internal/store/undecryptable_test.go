package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

func TestAMessageThatCannotBeDecryptedIsMarkedOnceAndUntilItIsRead(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		m := l.accept("5511900000001", "a")
		l.send(m, fleet.OutcomeSent)
		for n := range fleet.MaxRetryFrames {
			if told, err := s.TellUndecryptable(t.Context(), l.term, m.WAID); told || err != nil {
				t.Errorf("TellUndecryptable after %d asks = %v, %v, want false", n, told, err)
			}
			if _, err := s.CountRetryFrame(t.Context(), l.term, m.WAID); err != nil {
				t.Fatal(err)
			}
		}
		for i, want := range []bool{true, false} {
			if got, err := s.TellUndecryptable(t.Context(), l.term, m.WAID); got != want || err != nil {
				t.Errorf("TellUndecryptable, time %d = %v, %v, want %v", i+1, got, err, want)
			}
		}
		if got := l.get(m.ID); got.Status != fleet.StatusSent || got.ErrorCode != fleet.CodeUndecryptable {
			t.Errorf("message is %s with %q, want sent with %q", got.Status, got.ErrorCode, fleet.CodeUndecryptable)
		}
		if _, err := s.ApplyReceipt(t.Context(), l.term, fleet.Receipt{WAIDs: []string{m.WAID}, Status: fleet.StatusRead, At: time.Now()}); err != nil {
			t.Fatal(err)
		}
		if told, err := s.TellUndecryptable(t.Context(), l.term, m.WAID); told || err != nil {
			t.Errorf("TellUndecryptable of a message that was read = %v, %v, want false", told, err)
		}
		if got := l.get(m.ID); got.Status != fleet.StatusRead || got.ErrorCode != "" {
			t.Errorf("message is %s with %q, want read without an error", got.Status, got.ErrorCode)
		}
		stale := l.term
		stale.Epoch--
		if _, err := s.TellUndecryptable(t.Context(), stale, m.WAID); !errors.Is(err, fleet.ErrLeaseLost) {
			t.Errorf("TellUndecryptable under an earlier term = %v, want ErrLeaseLost", err)
		}
	})
}
