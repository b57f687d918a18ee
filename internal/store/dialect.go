package store

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlitelib "modernc.org/sqlite/lib"

	"github.com/wafleet/wafleet/internal/fleet"
)

// The tokens a statement may hold, and what they become:
//
//	@now@     the statement's time in unix milliseconds. PostgreSQL: statement_timestamp(), which is
//	          stable, so an index serves a comparison with it (clock_timestamp() costs a scan).
//	          SQLite: the process clock, through wafleet_now(), so that synctest can fake it.
//	@share@   FOR SHARE: what a fence holds. It conflicts with the claim's update; FOR KEY SHARE would not.
//	@update@  FOR UPDATE
//	@skip@    FOR UPDATE SKIP LOCKED
//	@keyed@   a value to select once in a transaction whose later statements join lists of keys with whole tables.
//	          PostgreSQL takes every JSON list for a hundred rows and keeps its plan: one made while a table was
//	          small would read all of it for ever. From here on the transaction goes by indexes only.
//	@ids:$n@    a table (id) from a list, or a JSON array of text
//	@rows:$n(a text, b bigint)@  a table (a, b) from a list, or a JSON array of {"a","b"}
//	@bytes:x@   bytes from hex text
//
// SQLite needs no row locks: a writing transaction is alone (_txlock=immediate).
func (s *Store) sql(q string) string {
	if !strings.Contains(q, "@") {
		return q
	}
	expanded, _ := s.texts.Load(q)
	text, ok := expanded.(string)
	if !ok {
		text = s.expand(q)
		s.texts.Store(q, text)
	}
	if !strings.Contains(text, "@now@") {
		return text
	}
	return strings.ReplaceAll(text, "@now@", s.clock())
}

// expand replaces every token but the clock that a test sets.
func (s *Store) expand(q string) string {
	if s.Postgres() {
		q = tables(postgresTokens.Replace(q), postgresTable)
	} else {
		q = tables(sqliteTokens.Replace(q), sqliteTable)
	}
	if s.now == nil {
		q = strings.ReplaceAll(q, "@now@", s.clock())
	}
	return q
}

var (
	postgresTokens = strings.NewReplacer("@share@", "FOR SHARE", "@update@", "FOR UPDATE", "@skip@", "FOR UPDATE SKIP LOCKED",
		"@keyed@", `(SELECT set_config('enable_seqscan', 'off', TRUE) || set_config('enable_hashjoin', 'off', TRUE)
			|| set_config('enable_mergejoin', 'off', TRUE) || set_config('jit', 'off', TRUE))`)
	sqliteTokens = strings.NewReplacer("@share@", "", "@update@", "", "@skip@", "", "@keyed@", "''")
)

func (s *Store) clock() string {
	switch {
	case s.now != nil:
		return strconv.FormatInt(s.now().UnixMilli(), 10)
	case s.Postgres():
		return "(extract(epoch FROM statement_timestamp())*1000)::bigint"
	default:
		return "wafleet_now()"
	}
}

// tables replaces the tokens that have an argument.
func tables(q string, table func(kind, arg, columns string) string) string {
	for _, kind := range []string{"@ids:", "@rows:", "@bytes:"} {
		for {
			i := strings.Index(q, kind)
			if i < 0 {
				break
			}
			arg, rest, ok := strings.Cut(q[i+len(kind):], "@")
			if !ok {
				panic("unfinished token in statement: " + q)
			}
			arg, columns, _ := strings.Cut(strings.TrimSuffix(arg, ")"), "(")
			q = q[:i] + table(kind, arg, columns) + rest
		}
	}
	return q
}

func postgresTable(kind, arg, columns string) string {
	switch kind {
	case "@ids:":
		return "(SELECT v AS id FROM json_array_elements_text((" + arg + "::text)::json) AS t(v))"
	case "@rows:":
		return "(SELECT * FROM json_to_recordset((" + arg + "::text)::json) AS t(" + columns + "))"
	default:
		return "decode(" + arg + ", 'hex')"
	}
}

func sqliteTable(kind, arg, columns string) string {
	switch kind {
	case "@ids:":
		return "(SELECT value AS id FROM json_each(" + arg + "))"
	case "@rows:":
		names := columnNames(columns)
		for i, name := range names {
			names[i] = "value->>'" + name + "' AS " + name
		}
		return "(SELECT " + strings.Join(names, ", ") + " FROM json_each(" + arg + "))"
	default:
		return "unhex(" + arg + ")"
	}
}

// ms turns a time into its column form; the zero time is 0.
func ms(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// at scans a column of milliseconds into a time; 0 is the zero time.
type at struct{ t *time.Time }

// Scan implements sql.Scanner.
func (a at) Scan(src any) error {
	var n sql.NullInt64
	if err := n.Scan(src); err != nil {
		return err
	}
	*a.t = time.Time{}
	if n.Int64 != 0 {
		*a.t = time.UnixMilli(n.Int64).UTC()
	}
	return nil
}

// orZero scans a column that an outer join may leave NULL; then v is zero.
type orZero[T any] struct{ v *T }

// Scan implements sql.Scanner.
func (o orZero[T]) Scan(src any) error {
	var n sql.Null[T]
	err := n.Scan(src)
	*o.v = n.V
	return err
}

// notFound turns "no rows" into fleet.ErrNotFound.
func notFound(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return fleet.ErrNotFound
	}
	return unavailable(err)
}

// unavailable marks errors that say the database can't be used now with fleet.ErrUnavailable, and
// unique violations with fleet.ErrConflict, so that callers branch on neither driver's types.
func unavailable(err error) error {
	if err == nil || errors.Is(err, fleet.ErrUnavailable) || errors.Is(err, fleet.ErrConflict) {
		return err
	}
	// Whatever the server's word for it was: no connection can be had now. A database that is being moved or
	// restored refuses in words of its own.
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return &marked{err, fleet.ErrUnavailable}
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch {
		case pg.Code == "23505":
			return &marked{err, fleet.ErrConflict}
		case strings.HasPrefix(pg.Code, "08"), strings.HasPrefix(pg.Code, "53"), strings.HasPrefix(pg.Code, "57"), strings.HasPrefix(pg.Code, "58"),
			pg.Code == "55P03", pg.Code == "40001", pg.Code == "40P01", pg.Code == "25P03", pg.Code == "25006":
			return &marked{err, fleet.ErrUnavailable}
		}
		return err
	}
	if lite, ok := errors.AsType[*sqlite.Error](err); ok {
		switch lite.Code() {
		case sqlitelib.SQLITE_CONSTRAINT_UNIQUE, sqlitelib.SQLITE_CONSTRAINT_PRIMARYKEY:
			return &marked{err, fleet.ErrConflict}
		}
		switch lite.Code() & 0xff {
		case sqlitelib.SQLITE_BUSY, sqlitelib.SQLITE_LOCKED, sqlitelib.SQLITE_FULL, sqlitelib.SQLITE_IOERR, sqlitelib.SQLITE_CANTOPEN,
			sqlitelib.SQLITE_READONLY, sqlitelib.SQLITE_NOMEM: // a file system that failed is mounted anew for reading only
			return &marked{err, fleet.ErrUnavailable}
		}
		return err
	}
	if _, ok := errors.AsType[net.Error](err); ok || errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || pgconn.SafeToRetry(err) { // the server went away in the middle of a statement
		return &marked{err, fleet.ErrUnavailable}
	}
	return err
}

// Refused reports whether the database has answered that it will never take a statement, so that what
// it was part of is rolled back for certain: a constraint, a value it can't hold, a statement it
// can't read.
func Refused(err error) bool {
	if errors.Is(unavailable(err), fleet.ErrUnavailable) {
		return false
	}
	_, postgres := errors.AsType[*pgconn.PgError](err)
	_, lite := errors.AsType[*sqlite.Error](err)
	return postgres || lite
}

type marked struct{ err, mark error }

func (m *marked) Error() string   { return m.err.Error() }
func (m *marked) Unwrap() []error { return []error{m.err, m.mark} }

// perRow joins each row before it with those of a table, under a name, that a condition finds by a key, one row after
// the other. PostgreSQL takes a list of keys for many rows and would rather read all of the table.
func (s *Store) perRow(table, as, on string) string {
	if s.Postgres() {
		return `CROSS JOIN LATERAL (SELECT ` + as + `.* FROM ` + table + ` ` + as + ` WHERE ` + on + ` OFFSET 0) AS ` + as
	}
	return `JOIN ` + table + ` ` + as + ` ON ` + on
}
