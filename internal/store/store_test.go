package store_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/seal"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
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

func TestALookupKeyThatFindsNoLiveKeyIsRefused(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		first, second := seal.NewKey(), seal.NewKey()
		settle := func(name string, want error, current seal.Key, before ...seal.Key) {
			t.Helper()
			if err := s.SettleLookup(t.Context(), seal.NewLookup(current, before...)); !errors.Is(err, want) {
				t.Errorf("SettleLookup with %s = %v, want %v", name, err, want)
			}
		}
		settle("the first key", nil, first)
		k, err := s.InsertKey(t.Context(), fleet.APIKey{ID: fleet.NewKeyID(), Admin: true, Prefix: "wfa_abc", LookupHash: []byte("l"), VerifyHash: "v"})
		if err != nil {
			t.Fatal(err)
		}
		settle("the first key again", nil, first)
		settle("another key", store.ErrLookupKey, second)
		settle("another key, still", store.ErrLookupKey, second)
		settle("a new key that knows the first", nil, second, first)
		settle("the first key, for who runs yet", nil, first)
		settle("the new key alone", nil, second)
		settle("a third key", store.ErrLookupKey, seal.NewKey())
		if _, err := s.RevokeKey(t.Context(), k.ID); err != nil {
			t.Fatal(err)
		}
		settle("a third key when no key lives", nil, seal.NewKey())
	})
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

func TestAFullDiskIsUnavailableAndPasses(t *testing.T) {
	s := storetest.Open(t, storetest.SQLiteURL(t), func(o *store.Options) { o.PoolMax = 1 }) // the limit is a connection's
	large := func() fleet.Organization {
		return fleet.Organization{ID: "org-a", Label: strings.Repeat("x", 50_000), Strategy: fleet.StrategyPriority}
	}
	limit := func(pages string) {
		if _, err := s.DB().Exec(t.Context(), `PRAGMA max_page_count=`+pages); err != nil {
			t.Fatal(err)
		}
	}
	limit("1") // SQLite says that no page is left, as it does when the file system has none
	if _, err := s.CreateOrganization(t.Context(), large()); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("CreateOrganization on a full disk = %v, want ErrUnavailable", err)
	}
	err := s.InTx(t.Context(), func(ctx context.Context) error {
		_, err := s.CreateOrganization(ctx, large())
		return err
	})
	if !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("InTx on a full disk = %v, want ErrUnavailable", err)
	}
	limit("1073741823")
	if _, err := s.CreateOrganization(t.Context(), large()); err != nil {
		t.Errorf("CreateOrganization with room again = %v", err)
	}
}

func TestAFileThatMayOnlyBeReadIsUnavailable(t *testing.T) {
	s := storetest.Open(t, storetest.SQLiteURL(t), func(o *store.Options) { o.PoolMax = 1 })
	if _, err := s.DB().Exec(t.Context(), `PRAGMA query_only=1`); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateOrganization(t.Context(), fleet.Organization{ID: "org-a", Label: "A", Strategy: fleet.StrategyPriority}); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("CreateOrganization = %v, want ErrUnavailable", err)
	}
}

func TestADatabaseThatTakesNoConnectionsIsUnavailable(t *testing.T) {
	raw := storetest.PostgresURL(t)
	s := storetest.Open(t, raw)
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(u.Path, "/")
	u.Path = "/postgres"
	conn, err := pgx.Connect(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	do := func(statement string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	do(`ALTER DATABASE ` + pgx.Identifier{name}.Sanitize() + ` ALLOW_CONNECTIONS false`)
	do(`SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '` + name + `'`)
	for range 2 { // the first may find the connection that was ended
		if _, err := s.GetOrganization(t.Context(), "org-a"); !errors.Is(err, fleet.ErrUnavailable) {
			t.Errorf("a query = %v, want ErrUnavailable", err)
		}
	}
	do(`ALTER DATABASE ` + pgx.Identifier{name}.Sanitize() + ` ALLOW_CONNECTIONS true`)
	if os.Getenv(testkit.BouncerEnv) != "" { // it tries the server again only after a second
		testkit.Eventually(t, 5*time.Second, func() error { return s.Ping(t.Context()) })
		return
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("Ping as soon as it takes connections again = %v", err)
	}
}
