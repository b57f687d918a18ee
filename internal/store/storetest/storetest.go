// Package storetest opens migrated databases for tests: a fresh SQLite file or a fresh PostgreSQL
// database per test, both copied from a template that is migrated once.
package storetest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/seal"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/testkit"
	"github.com/wafleet/wafleet/internal/wastore"
)

// Ring is the data key of every test database.
func Ring(t testing.TB) *seal.Ring {
	t.Helper()
	r, err := seal.NewRing(seal.Key(sha256.Sum256([]byte("the data key of tests"))))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Each runs fn once on SQLite and once on PostgreSQL, as subtests.
func Each(t *testing.T, fn func(t *testing.T, s *store.Store)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { fn(t, SQLite(t)) })
	t.Run("postgres", func(t *testing.T) { fn(t, Postgres(t)) })
}

// SQLite opens a fresh SQLite file. Inside a synctest bubble all of the store belongs to the bubble.
func SQLite(t testing.TB) *store.Store {
	t.Helper()
	return Open(t, SQLiteURL(t))
}

// SQLiteURL is the URL of a fresh migrated SQLite file, for tests that open it more than once.
func SQLiteURL(t testing.TB) string {
	t.Helper()
	raw := sqliteTemplate(t)
	path := filepath.Join(t.TempDir(), "wafleet.db")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return "sqlite:" + path
}

// Postgres opens a fresh PostgreSQL database.
func Postgres(t testing.TB) *store.Store {
	t.Helper()
	return Open(t, PostgresURL(t))
}

// PostgresURL is the URL of a fresh migrated PostgreSQL database.
func PostgresURL(t testing.TB) string {
	t.Helper()
	return testkit.PostgresFrom(t, "wafleet_"+schemaHash(t), func(dsn string) error {
		return migrate(context.Background(), t, dsn) // the template outlives this test
	})
}

// Open opens a second store on a database that SQLiteURL or PostgresURL made. change may set more.
func Open(t testing.TB, dbURL string, change ...func(*store.Options)) *store.Store {
	t.Helper()
	o := store.Options{URL: dbURL, PoolMax: 8, Ring: Ring(t)}
	for _, c := range change {
		c(&o)
	}
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

var template struct {
	sync.Mutex
	raw []byte
}

// sqliteTemplate migrates once per process, outside any bubble's clock, and returns the file.
func sqliteTemplate(t testing.TB) []byte {
	t.Helper()
	template.Lock()
	defer template.Unlock()
	if template.raw != nil {
		return template.raw
	}
	path := filepath.Join(t.TempDir(), "template.db")
	if err := migrate(t.Context(), t, "sqlite:"+path); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	template.raw = raw
	return raw
}

func migrate(ctx context.Context, t testing.TB, dbURL string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s, err := store.Open(ctx, store.Options{URL: dbURL, PoolMax: 2, Ring: Ring(t)})
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Migrate(ctx, wastore.Upgrade(s))
}

// schemaHash names the PostgreSQL template after what is in it.
func schemaHash(t testing.TB) string {
	t.Helper()
	return hex.EncodeToString(store.SchemaHash())[:12]
}
