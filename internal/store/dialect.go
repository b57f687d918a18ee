package store

import (
	"database/sql"
	"database/sql/driver"
	"encoding/json"
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
//	          SQLite: the process clock, so that synctest can fake it.
//	@share@   FOR SHARE: what a fence holds. It conflicts with the claim's update; FOR KEY SHARE would not.
//	@update@  FOR UPDATE
//	@skip@    FOR UPDATE SKIP LOCKED
//	@ids:$n@    a table (id) from a JSON array of text
//	@terms:$n@  a table (id, epoch) from a JSON array of {"id","epoch"}
//
// SQLite needs no row locks: a writing transaction is alone (_txlock=immediate).
func (s *Store) sql(q string) string {
	if !strings.Contains(q, "@") {
		return q
	}
	if s.Postgres() {
		q = postgresTokens.Replace(q)
	} else {
		q = sqliteTokens.Replace(q)
	}
	q = s.tables(q, "@ids:")
	q = s.tables(q, "@terms:")
	if !strings.Contains(q, "@now@") {
		return q
	}
	return strings.ReplaceAll(q, "@now@", s.clock())
}

var (
	postgresTokens = strings.NewReplacer("@share@", "FOR SHARE", "@update@", "FOR UPDATE", "@skip@", "FOR UPDATE SKIP LOCKED")
	sqliteTokens   = strings.NewReplacer("@share@", "", "@update@", "", "@skip@", "")
)

func (s *Store) clock() string {
	switch {
	case s.now != nil:
		return strconv.FormatInt(s.now().UnixMilli(), 10)
	case s.Postgres():
		return "(extract(epoch FROM statement_timestamp())*1000)::bigint"
	default:
		return strconv.FormatInt(time.Now().UnixMilli(), 10)
	}
}

func (s *Store) tables(q, token string) string {
	for {
		i := strings.Index(q, token)
		if i < 0 {
			return q
		}
		arg, rest, ok := strings.Cut(q[i+len(token):], "@")
		if !ok {
			panic("unfinished token in statement: " + q)
		}
		var table string
		switch {
		case token == "@ids:" && s.Postgres():
			table = "(SELECT v AS id FROM json_array_elements_text((" + arg + "::text)::json) AS t(v))"
		case token == "@ids:":
			table = "(SELECT value AS id FROM json_each(" + arg + "))"
		case s.Postgres():
			table = "(SELECT id, epoch FROM json_to_recordset((" + arg + "::text)::json) AS t(id text, epoch bigint))"
		default:
			table = "(SELECT value->>'id' AS id, value->>'epoch' AS epoch FROM json_each(" + arg + "))"
		}
		q = q[:i] + table + rest
	}
}

// idList is the argument of an @ids@ table.
func idList[T ~string](ids []T) string {
	if ids == nil {
		ids = []T{}
	}
	b, err := json.Marshal(ids)
	if err != nil {
		panic(err) // strings always marshal
	}
	return string(b)
}

type termArg struct {
	ID    fleet.SessionID `json:"id"`
	Epoch int64           `json:"epoch"`
}

// termList is the argument of an @terms@ table.
func termList(terms []fleet.Term) string {
	args := make([]termArg, len(terms))
	for i, t := range terms {
		args[i] = termArg{t.SessionID, t.Epoch}
	}
	b, err := json.Marshal(args)
	if err != nil {
		panic(err) // strings and integers always marshal
	}
	return string(b)
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
		case sqlitelib.SQLITE_BUSY, sqlitelib.SQLITE_LOCKED, sqlitelib.SQLITE_FULL, sqlitelib.SQLITE_IOERR, sqlitelib.SQLITE_CANTOPEN:
			return &marked{err, fleet.ErrUnavailable}
		}
		return err
	}
	if _, ok := errors.AsType[net.Error](err); ok || errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || pgconn.SafeToRetry(err) { // the server went away in the middle of a statement
		return &marked{err, fleet.ErrUnavailable}
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return &marked{err, fleet.ErrUnavailable}
	}
	return err
}

type marked struct{ err, mark error }

func (m *marked) Error() string   { return m.err.Error() }
func (m *marked) Unwrap() []error { return []error{m.err, m.mark} }
