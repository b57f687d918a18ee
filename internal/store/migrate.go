package store

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/wafleet/wafleet/internal/seal"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrate brings the schema to this binary's version. Several processes may call it at once; one
// works, the others wait. also runs under the same guard, after our own tables: whatsmeow's own
// upgrade has no lock between processes and fails when two run it on a fresh database.
func (s *Store) Migrate(ctx context.Context, also func(ctx context.Context) error) error {
	if s.CheckVersion(ctx) != nil { // most starts find everything as it should be
		if err := s.migrateOwn(ctx); err != nil {
			return err
		}
	}
	if also != nil {
		return s.guarded(ctx, also)
	}
	return nil
}

func (s *Store) migrateOwn(ctx context.Context) error {
	dialect := goose.DialectSQLite3
	var opts []goose.ProviderOption
	if s.Postgres() {
		dialect = goose.DialectPostgres
		locker, err := lock.NewPostgresTableLocker(
			lock.WithTableLockTimeout(200*time.Millisecond, 1500), // try every 200 ms for 5 minutes
		)
		if err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
		opts = append(opts, goose.WithLocker(locker))
	}
	p, err := goose.NewProvider(dialect, s.db.RawDB, dialectFS{postgres: s.Postgres()}, opts...)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", unavailable(err))
	}
	return nil
}

// guarded runs fn while no other process runs its own fn: a row lock on PostgreSQL, and on SQLite
// nothing, since whatsmeow's upgrade takes the write lock itself and one process owns the file.
func (s *Store) guarded(ctx context.Context, fn func(ctx context.Context) error) error {
	if !s.Postgres() {
		return fn(ctx)
	}
	if _, err := s.exec(ctx, `INSERT INTO meta (key, value) VALUES ('upgrade', '') ON CONFLICT (key) DO NOTHING`); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	tx, err := s.beat.RawDB.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("migrate: %w", unavailable(err))
	}
	defer tx.Rollback() //nolint:errcheck // the lock is all this transaction holds
	if _, err := tx.ExecContext(ctx, `SELECT 1 FROM meta WHERE key='upgrade' FOR UPDATE`); err != nil {
		return fmt.Errorf("migrate: %w", unavailable(err))
	}
	return fn(ctx)
}

// CheckVersion reports whether the schema is the one this binary was built for.
func (s *Store) CheckVersion(ctx context.Context) error {
	want := 0
	entries, err := fs.ReadDir(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("check schema: %w", err)
	}
	for _, e := range entries {
		var n int
		if _, err := fmt.Sscanf(e.Name(), "%04d_", &n); err == nil && n > want {
			want = n
		}
	}
	var have int
	if err := s.row(ctx, `SELECT coalesce(max(version_id),0) FROM goose_db_version`).Scan(&have); err != nil {
		return fmt.Errorf("check schema (run: wafleet migrate): %w", unavailable(err))
	}
	if have != want {
		return fmt.Errorf("schema is at version %d, this binary needs %d: run wafleet migrate", have, want)
	}
	return nil
}

// Mode says whether a database belongs to a real fleet or to a simulated one.
type Mode string

// Modes.
const (
	ModeReal      Mode = "real"
	ModeSimulated Mode = "simulated"
)

// ErrMode says that the database belongs to the other mode.
var ErrMode = errors.New("database belongs to the other mode")

// ErrDataKey says that the database was made under another DATA_KEY.
var ErrDataKey = errors.New("DATA_KEY does not open this database")

// Settle ties the database to this mode and to this data key at its first use, and refuses a
// process of the other mode or with another key ever after.
func (s *Store) Settle(ctx context.Context, mode Mode) error {
	return s.InTx(ctx, func(ctx context.Context) error {
		if _, err := s.exec(ctx, `INSERT INTO meta (key, value) VALUES ('mode', $1) ON CONFLICT (key) DO NOTHING`, string(mode)); err != nil {
			return fmt.Errorf("settle mode: %w", err)
		}
		canary := hex.EncodeToString(s.ring.Seal("canary", []byte("canary")))
		if _, err := s.exec(ctx, `INSERT INTO meta (key, value) VALUES ('canary', $1) ON CONFLICT (key) DO NOTHING`, canary); err != nil {
			return fmt.Errorf("settle data key: %w", err)
		}
		var have, stored string
		if err := s.row(ctx, `SELECT value FROM meta WHERE key='mode'`).Scan(&have); err != nil {
			return fmt.Errorf("settle mode: %w", notFound(err))
		}
		if Mode(have) != mode {
			return fmt.Errorf("%w: it is %s and this process is %s; use another database or data folder", ErrMode, have, mode)
		}
		if err := s.row(ctx, `SELECT value FROM meta WHERE key='canary'`).Scan(&stored); err != nil {
			return fmt.Errorf("settle data key: %w", notFound(err))
		}
		var sealed []byte
		if _, err := fmt.Sscanf(stored, "%x", &sealed); err != nil {
			return fmt.Errorf("settle data key: %w", err)
		}
		if _, err := s.ring.Open("canary", sealed); err != nil {
			return fmt.Errorf("%w: give the key it was made with, as DATA_KEY or DATA_KEY_PREVIOUS", ErrDataKey)
		}
		return nil
	})
}

// ErrLookupKey says that no live API key was made under this LOOKUP_KEY.
var ErrLookupKey = errors.New("LOOKUP_KEY finds no API key of this database")

// SettleLookup notes the lookup key in the database, and refuses one that is not known there, nor any
// before it, while API keys live: a process with it would call every one of them wrong.
func (s *Store) SettleLookup(ctx context.Context, lookup *seal.Lookup) error {
	var marks []string
	var names []any
	for i, h := range lookup.Hashes("canary") {
		marks = append(marks, fmt.Sprintf("$%d", i+1))
		names = append(names, "lookup:"+hex.EncodeToString(h))
	}
	return s.InTx(ctx, func(ctx context.Context) error {
		var strange bool
		err := s.row(ctx, `SELECT EXISTS (SELECT 1 FROM meta WHERE key LIKE 'lookup:%')
			AND NOT EXISTS (SELECT 1 FROM meta WHERE key IN (`+strings.Join(marks, ", ")+`))
			AND EXISTS (SELECT 1 FROM api_keys WHERE revoked_at = 0)`, names...).Scan(&strange)
		if err != nil {
			return fmt.Errorf("settle lookup key: %w", unavailable(err))
		}
		if strange {
			return fmt.Errorf("%w: give the key they were made under, as LOOKUP_KEY or LOOKUP_KEY_PREVIOUS, or revoke them all (wafleet keys)", ErrLookupKey)
		}
		if _, err := s.exec(ctx, `INSERT INTO meta (key, value) VALUES ($1, '') ON CONFLICT (key) DO NOTHING`, names[0]); err != nil {
			return fmt.Errorf("settle lookup key: %w", err)
		}
		return nil
	})
}

// Now asks the database for its time.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	var t time.Time
	if err := s.row(ctx, `SELECT @now@`).Scan(at{&t}); err != nil {
		return t, fmt.Errorf("read database clock: %w", unavailable(err))
	}
	return t, nil
}

// dialectFS shows goose the migrations with their tokens replaced.
type dialectFS struct{ postgres bool }

// Open implements fs.FS.
func (d dialectFS) Open(name string) (fs.File, error) {
	f, err := migrations.Open(path.Join("migrations", name))
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil || info.IsDir() {
		return f, err
	}
	raw, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	serial, number, binary := "INTEGER PRIMARY KEY AUTOINCREMENT", "INTEGER", "BLOB"
	if d.postgres {
		serial, number, binary = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "BIGINT", "BYTEA"
	}
	text := strings.NewReplacer("@serial@", serial, "@bytes@", binary, "@number@", number).Replace(string(raw))
	return &dialectFile{File: f, Reader: strings.NewReader(text)}, nil
}

type dialectFile struct {
	fs.File
	*strings.Reader
}

// Read implements fs.File.
func (f *dialectFile) Read(b []byte) (int, error) { return f.Reader.Read(b) }

// SchemaHash changes whenever a migration's text does; tests name their template databases after it.
func SchemaHash() []byte {
	h := sha256.New()
	_ = fs.WalkDir(migrations, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := migrations.ReadFile(p)
		h.Write(raw)
		return err
	})
	return h.Sum(nil)
}
