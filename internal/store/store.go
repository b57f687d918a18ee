// Package store holds all of wafleet's SQL but whatsmeow's own, and turns rows into fleet types.
//
// One SQL text serves PostgreSQL and SQLite; the few fragments that differ are tokens (see dialect.go).
// A method joins the transaction in its context if there is one, so callers compose them with InTx.
// Bodies are sealed on the way in and opened on the way out: no caller sees ciphertext.
//
// The package decides nothing: who may write is in the statements (the fence), when to write is the
// caller's. It never logs, never retries, and never waits for anything but the database.
package store

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/group"
	"github.com/wafleet/wafleet/internal/plant"
	"github.com/wafleet/wafleet/internal/seal"
)

// Options of Open.
type Options struct {
	// URL is "postgres://…" or "sqlite:PATH" (a plain path is SQLite too).
	URL string
	// PoolMax bounds the connections for work; beats and claims have one more of their own.
	PoolMax int
	// Ring seals and opens bodies.
	Ring *seal.Ring
	// Now overrides the clock of every statement, for tests. nil: PostgreSQL's
	// statement_timestamp(), or the process clock on SQLite (which synctest fakes).
	Now func() time.Time
	// Wrap, if set, wraps how connections are made: tests freeze a process's database calls with it,
	// or make them fail.
	Wrap func(driver.Connector) driver.Connector
}

// Store is the database of one process.
type Store struct {
	db   *dbutil.Database // work
	beat *dbutil.Database // beats and claims: never behind work in a queue for a connection
	ring *seal.Ring
	now  func() time.Time

	texts   sync.Map // statements by the text with tokens that they come from
	spreads sync.Map // spreadKey → *spreadText
	flights sync.Map // sessions of this process whose last claimed frame has no result yet

	steps   *group.Committer[*Step]       // what lanes and receipts commit, together
	accepts *group.Committer[*Acceptance] // messages, queued together
	looks   *group.Committer[*orgLook]    // for the router, together

	chatLooks *group.Committer[*chatLook]

	keyClaims    *group.Committer[*keyClaim]
	contactLooks *group.Committer[*contactLook]

	writeKeys func(keys []Keys) ([]Statement, error) // see WriteKeysWith
	pipes     bool                                   // transactions may go through a pipe
}

// Open connects, and does nothing else: Migrate and CheckCanary are calls of their own.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.Ring == nil {
		return nil, errors.New("open store: no data key")
	}
	source, dialect, err := source(o.URL)
	if err != nil {
		return nil, err
	}
	poolMax := o.PoolMax
	if poolMax <= 0 {
		poolMax = 16
	}
	if dialect == dbutil.SQLite {
		poolMax = min(poolMax, 4) // one writer at a time; more connections only wait for each other
	}
	s := &Store{ring: o.Ring, now: o.Now, pipes: dialect == dbutil.Postgres && o.Wrap == nil}
	s.steps = group.New(stepLimit, s.commitSteps)
	s.accepts = group.New(acceptLimit, s.acceptAll)
	s.looks = group.New(acceptLimit, s.lookAtAll)
	s.chatLooks = group.New(acceptLimit, s.lookForChats)
	s.keyClaims = group.New(acceptLimit, s.claimKeys)
	s.contactLooks = group.New(acceptLimit, s.lookAtContacts)
	if file, ok := source.(*fileSource); ok {
		s.steps.Ready, s.accepts.Ready, s.keyClaims.Ready = file.free, file.free, file.free
	}
	if s.db, err = pool(source, dialect, o.Wrap, poolMax); err != nil {
		return nil, err
	}
	if s.beat, err = pool(source, dialect, o.Wrap, 1); err != nil {
		_ = s.db.Close()
		return nil, err
	}
	if err := s.db.RawDB.PingContext(ctx); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("connect to database: %w", unavailable(err))
	}
	return s, nil
}

func pool(source driver.Connector, dialect dbutil.Dialect, wrap func(driver.Connector) driver.Connector, size int) (*dbutil.Database, error) {
	if wrap != nil {
		source = wrap(source)
	}
	raw := sql.OpenDB(source)
	raw.SetMaxOpenConns(size)
	raw.SetMaxIdleConns(size)
	db, err := dbutil.NewWithDB(raw, dialect.String())
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	return db, nil
}

// source reads a database URL. SQLite: synchronous FULL, because with NORMAL a power cut may roll a
// Signal ratchet back behind frames that already left.
func source(raw string) (driver.Connector, dbutil.Dialect, error) {
	switch {
	case raw == "":
		return nil, 0, errors.New("database URL is empty: give postgres://… or sqlite:PATH")
	case strings.HasPrefix(raw, "postgres://"), strings.HasPrefix(raw, "postgresql://"):
		c, err := pgx.ParseConfig(raw)
		if err != nil {
			return nil, 0, fmt.Errorf("database URL can't be read: %w", err)
		}
		// A server that vanished is noticed within half a minute, and not after pgx's five: a statement
		// without a deadline would keep its session waiting for so long.
		c.DialFunc = (&net.Dialer{
			Timeout:         cmp.Or(c.ConnectTimeout, 10*time.Second),
			KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 4},
		}).DialContext
		return stdlib.GetConnector(*c), dbutil.Postgres, nil
	case strings.Contains(raw, "://"):
		scheme, _, _ := strings.Cut(raw, "://")
		return nil, 0, fmt.Errorf("database URL scheme %q is not supported: use postgres://… or sqlite:PATH", scheme)
	}
	path := strings.TrimPrefix(raw, "sqlite:")
	q := url.Values{}
	for _, p := range []string{"busy_timeout(10000)", "foreign_keys(1)", "journal_mode(WAL)", "synchronous(FULL)", "wal_autocheckpoint(4000)"} {
		q.Add("_pragma", p)
	}
	q.Set("_txlock", "immediate")
	return newFileSource("file:" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()), dbutil.SQLite, nil
}

// Close waits for what is being committed and closes both pools.
func (s *Store) Close() error {
	s.steps.Wait()
	s.accepts.Wait()
	s.looks.Wait()
	s.chatLooks.Wait()
	s.keyClaims.Wait()
	s.contactLooks.Wait()
	return errors.Join(s.db.Close(), s.beat.Close())
}

// DB is the work pool, for whatsmeow's store, which must share our transactions.
func (s *Store) DB() *dbutil.Database { return s.db }

// Ring opens and seals what is stored beside whatsmeow's tables.
func (s *Store) Ring() *seal.Ring { return s.ring }

// Postgres reports whether the database is PostgreSQL.
func (s *Store) Postgres() bool { return s.db.Dialect == dbutil.Postgres }

// Ping asks the database whether it is there.
func (s *Store) Ping(ctx context.Context) error {
	return unavailable(s.db.RawDB.PingContext(ctx))
}

// Durability names the settings that decide whether a commit survives a power cut, as this process's
// connections have them: "fsync=on synchronous_commit=on", or "synchronous=2 journal_mode=wal" on SQLite,
// where 2 is FULL.
func (s *Store) Durability(ctx context.Context) (string, error) {
	var a, b string
	if s.Postgres() {
		err := s.row(ctx, `SELECT current_setting('fsync'), current_setting('synchronous_commit')`).Scan(&a, &b)
		return "fsync=" + a + " synchronous_commit=" + b, unavailable(err)
	}
	for pragma, into := range map[string]*string{"synchronous": &a, "journal_mode": &b} {
		if err := s.row(ctx, `PRAGMA `+pragma).Scan(into); err != nil {
			return "", unavailable(err)
		}
	}
	return "synchronous=" + a + " journal_mode=" + b, nil
}

// InTx runs fn in one transaction; store calls with fn's context join it. A nested InTx joins too.
func (s *Store) InTx(ctx context.Context, fn func(ctx context.Context) error) error {
	return unavailable(TxError(ctx, s.db.DoTxn(ctx, nil, fn))) // a begin or commit that the database didn't answer
}

// Fenced runs fn in one transaction that holds the term's lease row FOR SHARE: whoever claims the
// session waits for the commit, and a term that is over gets fleet.ErrLeaseLost and writes nothing.
// fn must not update leases.
func (s *Store) Fenced(ctx context.Context, term fleet.Term, fn func(ctx context.Context) error) error {
	if plant.NoFence {
		return s.InTx(ctx, fn)
	}
	return s.InTx(ctx, func(ctx context.Context) error {
		var keyed string
		err := s.row(ctx, `SELECT @keyed@ FROM leases WHERE session_id=$1 AND owner=$2 AND epoch=$3 @share@`,
			term.SessionID, term.Owner, term.Epoch).Scan(&keyed)
		if errors.Is(err, sql.ErrNoRows) {
			return fleet.ErrLeaseLost
		} else if err != nil {
			return fmt.Errorf("fence session %s: %w", term.SessionID, unavailable(err))
		}
		return fn(ctx)
	})
}

// ready returns a statement and its arguments as the database takes them.
func (s *Store) ready(q string, args []any) (string, []any) {
	if s.Postgres() {
		return s.sql(q), args
	}
	return s.spread(q, args)
}

func (s *Store) exec(ctx context.Context, q string, args ...any) (int64, error) {
	q, args = s.ready(q, args)
	n, err := Exec(ctx, s.db, q, args...)
	return n, unavailable(err)
}

func (s *Store) row(ctx context.Context, q string, args ...any) *sql.Row {
	q, args = s.ready(q, args)
	return s.db.QueryRow(ctx, q, args...)
}

// query runs q and calls scan once per row.
func (s *Store) query(ctx context.Context, scan func(dbutil.Scannable) error, q string, args ...any) error {
	q, args = s.ready(q, args)
	return each(ctx, s.db, scan, q, args...)
}

// Statement is one of several that make a transaction, whoever sends them.
type Statement struct {
	Text string
	Args []any
	Row  func(row dbutil.Scannable) error // is called for every row; nil: there is none to read
	Done func() error                     // is called after them, may be nil
}

// run runs one statement by itself, in ctx's transaction if there is one.
func (s *Store) run(ctx context.Context, st Statement) (err error) {
	if st.Row == nil {
		_, err = s.exec(ctx, st.Text, st.Args...)
	} else {
		err = s.query(ctx, st.Row, st.Text, st.Args...)
	}
	return st.end(err)
}

func (s *Store) runAll(ctx context.Context, all []Statement) error {
	for _, st := range all {
		if err := s.run(ctx, st); err != nil {
			return err
		}
	}
	return nil
}

func (st *Statement) end(err error) error {
	if err == nil && st.Done != nil {
		err = st.Done()
	}
	return err
}

// column runs a statement that selects one column and returns what it found.
func column[T any](ctx context.Context, s *Store, q string, args ...any) ([]T, error) {
	var out []T
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var v T
		err := row.Scan(&v)
		out = append(out, v)
		return err
	}, q, args...)
	return out, err
}

func each(ctx context.Context, db *dbutil.Database, scan func(dbutil.Scannable) error, q string, args ...any) (err error) {
	rows, err := db.Query(ctx, q, args...)
	if err != nil {
		return unavailable(err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return unavailable(err)
		}
	}
	return unavailable(rows.Err())
}
