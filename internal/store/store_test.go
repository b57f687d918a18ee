package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/seal"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

func TestMigrateTwiceChangesNothing(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		if err := s.Migrate(t.Context(), nil); err != nil {
			t.Fatalf("Migrate on a migrated database = %v", err)
		}
		if err := s.CheckVersion(t.Context()); err != nil {
			t.Errorf("CheckVersion = %v", err)
		}
	})
}

func TestDatabaseKeepsItsModeAndDataKey(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		if err := s.Settle(t.Context(), store.ModeReal); err != nil {
			t.Fatal(err)
		}
		if err := s.Settle(t.Context(), store.ModeReal); err != nil {
			t.Errorf("Settle again = %v, want nil", err)
		}
		if err := s.Settle(t.Context(), store.ModeSimulated); !errors.Is(err, store.ErrMode) {
			t.Errorf("Settle(simulated) on a real database = %v, want ErrMode", err)
		}
	})
}

func TestAnotherDataKeyIsRefused(t *testing.T) {
	url := storetest.SQLiteURL(t)
	if err := storetest.Open(t, url).Settle(t.Context(), store.ModeReal); err != nil {
		t.Fatal(err)
	}
	ring, err := seal.NewRing(seal.NewKey())
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.Context(), store.Options{URL: url, Ring: ring})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Settle(t.Context(), store.ModeReal); !errors.Is(err, store.ErrDataKey) {
		t.Errorf("Settle under another DATA_KEY = %v, want ErrDataKey", err)
	}
}

func TestStatementClock(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		got, err := s.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(got).Abs(); d > time.Minute {
			t.Errorf("Now() is %v away from the process clock", d)
		}
	})
}
