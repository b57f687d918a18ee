package testkit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// PostgresEnv names the environment variable with the URL of a PostgreSQL server, as a role that may create databases,
// for example postgres://wafleet@127.0.0.1:41234/postgres?sslmode=disable.
const PostgresEnv = "WAFLEET_TEST_POSTGRES"

// BouncerEnv names the environment variable with the host:port of a PgBouncer before that server. If it is set, the URLs
// that Postgres and PostgresFrom return lead through it, as its docs ask for: no statement is prepared. Databases are made
// and dropped past it.
const BouncerEnv = "WAFLEET_TEST_PGBOUNCER"

// serverTimeout bounds every conversation with a test server. It is long because a cold build on two cores starves it.
const serverTimeout = 60 * time.Second

var templateName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,40}$`)

// Postgres makes an empty database for this test and returns its URL. The database is dropped, with whatever is still
// connected to it, when the test ends. It fails the test when no server was named.
func Postgres(t testing.TB) string {
	t.Helper()
	server := postgresServer(t)
	return createDatabase(t, server, "template1")
}

// PostgresFrom makes a database for this test as a copy of a prepared one and returns its URL; it is dropped when the
// test ends. prepare fills the template, which happens once per server whatever the number of test processes: the first
// one prepares while the others wait. It must close every connection it opened.
//
// template is the name of the prepared database: lower-case letters, digits and underscores, at most 41 of them. Put a
// hash of what prepare does (the migrations' text) into it, or an older template on the same server is taken instead.
// Settings made by ALTER ROLE … IN DATABASE are not copied: set them again on the database you get.
func PostgresFrom(t testing.TB, template string, prepare func(dsn string) error) string {
	t.Helper()
	if !templateName.MatchString(template) {
		t.Fatalf("template name %q: want %s", template, templateName)
	}
	server := postgresServer(t)
	if err := ensureTemplate(t.Context(), server, template, prepare); err != nil {
		t.Fatalf("prepare the template database %s: %v", template, err)
	}
	return createDatabase(t, server, template)
}

func postgresServer(t testing.TB) *url.URL {
	t.Helper()
	raw := os.Getenv(PostgresEnv)
	if raw == "" {
		t.Fatalf("%s is empty: this test needs a PostgreSQL server; run `make test`, or `scripts/test-services -- go test ./...`", PostgresEnv)
	}
	server, err := url.Parse(raw)
	if err != nil || (server.Scheme != "postgres" && server.Scheme != "postgresql") {
		t.Fatalf("%s is not a postgres:// URL (%v)", PostgresEnv, err)
	}
	return server
}

func databaseURL(server *url.URL, name string) string {
	u := *server
	u.Path, u.RawPath = "/"+name, ""
	if bouncer := os.Getenv(BouncerEnv); bouncer != "" {
		u.Host, u.User = bouncer, url.User(u.User.Username())
		q := u.Query()
		q.Set("default_query_exec_mode", "exec")
		u.RawQuery = q.Encode()
	}
	return u.String()
}

// Through says what a database of PostgreSQL is reached through: "PgBouncer", or "" if directly.
func Through() string {
	if os.Getenv(BouncerEnv) != "" {
		return "PgBouncer"
	}
	return ""
}

// ensureTemplate makes the template unless it is there. It prepares under another name and renames at the end, so a
// template that exists is always complete, even after a test process was killed in the middle.
func ensureTemplate(ctx context.Context, server *url.URL, name string, prepare func(dsn string) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*serverTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, server.String())
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)

	exists := func() (found bool, err error) {
		err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)`, name).Scan(&found)
		return found, err
	}
	if found, err := exists(); found || err != nil {
		return err
	}
	// The lock ends with this connection, so a killed process leaves none behind.
	lock := fnv.New64a()
	_, _ = lock.Write([]byte("wafleet template " + name))
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock($1)`, int64(lock.Sum64())); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if found, err := exists(); found || err != nil {
		return err
	}
	draft := name + "_draft"
	for _, statement := range []string{
		`DROP DATABASE IF EXISTS ` + quote(draft) + ` WITH (FORCE)`,
		`CREATE DATABASE ` + quote(draft) + ` TEMPLATE template1`,
	} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	if err := prepare(databaseURL(server, draft)); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	// A pooler keeps connections that prepare has closed.
	if _, err := conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1`, draft); err != nil {
		return fmt.Errorf("end connections to the draft: %w", err)
	}
	// No connections: CREATE DATABASE refuses to copy a database that somebody is using.
	if err := execUnused(ctx, conn, `ALTER DATABASE `+quote(draft)+` RENAME TO `+quote(name)); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `ALTER DATABASE `+quote(name)+` WITH ALLOW_CONNECTIONS false`)
	return err
}

func createDatabase(t testing.TB, server *url.URL, template string) string {
	t.Helper()
	name := "test_" + strings.ToLower(rand.Text()[:16])
	ctx, cancel := context.WithTimeout(t.Context(), serverTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, server.String())
	if err != nil {
		t.Fatalf("connect to the PostgreSQL server of %s: %v", PostgresEnv, err)
	}
	defer closeConn(ctx, conn)
	if err := execUnused(ctx, conn, `CREATE DATABASE `+quote(name)+` TEMPLATE `+quote(template)); err != nil {
		t.Fatalf("create a database for the test: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), serverTimeout)
		defer cancel()
		conn, err := pgx.Connect(ctx, server.String())
		if err != nil {
			t.Errorf("connect to drop %s: %v", name, err)
			return
		}
		defer closeConn(ctx, conn)
		if _, err := conn.Exec(ctx, `DROP DATABASE IF EXISTS `+quote(name)+` WITH (FORCE)`); err != nil {
			t.Errorf("drop %s: %v", name, err)
		}
	})
	if Through() != "" {
		t.Attr("database-through", Through()) // what scripts/test-pgbouncer counts
	}
	return databaseURL(server, name)
}

// execUnused runs a statement that needs a database nobody is connected to. A closed connection's server process takes
// a moment to leave, so "is being accessed by other users" is tried again until ctx ends.
func execUnused(ctx context.Context, conn *pgx.Conn, statement string) error {
	const objectInUse = "55006"
	for {
		_, err := conn.Exec(ctx, statement)
		if err == nil {
			return nil
		}
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != objectInUse {
			return fmt.Errorf("%s: %w", statement, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", statement, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the connection served its purpose; the server notices either way
}
