package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wafleet/wafleet/trials/cluster"
)

// poolMax is DATABASE_POOL_MAX of every process: small, so that it can be exhausted.
const poolMax = 4

// servers are a private PostgreSQL and a private Redis, and what talks over them.
type servers struct {
	pg    *cluster.Postgres
	redis *cluster.Redis
	*talk
}

// start starts both servers and the separate processes, and lets numbers talk.
func start(ctx context.Context, o options, name string, v *verdict, settings ...string) (s *servers, err error) {
	dir := filepath.Join(o.dir, name)
	if err := os.Mkdir(dir, 0o711); err != nil { //nolint:gosec // the servers' user passes through
		return nil, err
	}
	s = &servers{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.pg, err = cluster.StartPostgres(ctx, cluster.PostgresOptions{Dir: dir}); err != nil {
		return s, err
	}
	if s.redis, err = cluster.StartRedis(ctx, cluster.RedisOptions{Dir: dir, AOF: true}); err != nil {
		return s, err
	}
	database, err := s.pg.CreateDatabase(ctx, "outage")
	if err != nil {
		return s, err
	}
	c, err := cluster.Start(ctx, cluster.Options{
		Binary: o.binary, Dir: dir, Database: database, Redis: s.redis.URL(),
		Settings: append([]string{fmt.Sprintf("DATABASE_POOL_MAX=%d", poolMax)}, settings...),
	})
	if err != nil {
		return s, err
	}
	s.talk, err = begin(ctx, c, o.sessions, v)
	if err != nil {
		c.Close()
	}
	return s, err
}

func (s *servers) close() {
	if s.talk != nil {
		s.Close()
	}
	if s.redis != nil {
		s.redis.Close()
	}
	if s.pg != nil {
		s.pg.Close()
	}
}

func withoutPostgres(ctx context.Context, o options, v *verdict) error {
	s, err := start(ctx, o, "postgres", v)
	if err != nil {
		return err
	}
	defer s.close()
	for _, step := range []struct {
		name   string
		happen func(context.Context) error
	}{
		{"PostgreSQL restarts", func(ctx context.Context) error { return errors.Join(s.pg.Stop(), s.pg.Start(ctx)) }},
		{"PostgreSQL crashes and recovers", func(ctx context.Context) error { return errors.Join(s.pg.Crash(), s.pg.Start(ctx)) }},
		{"PostgreSQL refuses connections", func(ctx context.Context) error {
			return errors.Join(s.pg.Stop(), cluster.Pause(ctx, 20*time.Second), s.pg.Start(ctx))
		}},
		{"the database takes no connections", s.closeDatabase},
		{"PostgreSQL freezes", func(ctx context.Context) error {
			return errors.Join(s.pg.Freeze(), cluster.Pause(ctx, 15*time.Second), s.pg.Thaw())
		}},
		{"every connection waits", s.exhaustPool},
	} {
		if err := s.outage(ctx, step.name, true, step.happen); err != nil {
			return err
		}
	}
	return s.end(ctx)
}

// admin runs something on a connection to the server's own database.
func (s *servers) admin(ctx context.Context, database string, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, s.pg.URL(database))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // what was asked was answered
	return do(conn)
}

// closeDatabase refuses every connection to the database for 20 s, while the server runs: so do poolers in a failover.
func (s *servers) closeDatabase(ctx context.Context) error {
	return s.admin(ctx, "postgres", func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, `ALTER DATABASE outage ALLOW_CONNECTIONS false`); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'outage'`)
		err = errors.Join(err, cluster.Pause(ctx, 20*time.Second))
		_, open := conn.Exec(ctx, `ALTER DATABASE outage ALLOW_CONNECTIONS true`)
		return errors.Join(err, open)
	})
}

// exhaustPool lets everything that touches messages wait for 15 s, until every connection of every pool does. Beats have
// a connection of their own: no session may change its owner, and none its epoch.
func (s *servers) exhaustPool(ctx context.Context) error {
	before, err := s.terms(ctx)
	if err != nil {
		return err
	}
	most := 0
	err = s.admin(ctx, "outage", func(conn *pgx.Conn) error {
		// The role's own limit ends transactions that are idle for longer than this process may be paused.
		if _, err := conn.Exec(ctx, `SET idle_in_transaction_session_timeout=0`); err != nil {
			return err
		}
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // it holds a lock and nothing else
		if _, err := tx.Exec(ctx, `LOCK TABLE messages IN ACCESS EXCLUSIVE MODE`); err != nil {
			return err
		}
		for end := time.Now().Add(15 * time.Second); time.Now().Before(end); {
			var waiting int
			if err := tx.QueryRow(ctx, `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'messages'::regclass`).Scan(&waiting); err != nil {
				return err
			}
			most = max(most, waiting)
			if err := cluster.Pause(ctx, 100*time.Millisecond); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	after, err := s.terms(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("%d connections waited, %d of each process at most; %d terms before, %d after\n", most, poolMax, before, after)
	if most <= poolMax {
		return fmt.Errorf("only %d connections waited: no pool was surely exhausted", most)
	}
	s.v.TermsLost += after - before
	return nil
}

// terms counts the leases that were ever claimed.
func (s *servers) terms(ctx context.Context) (n int, err error) {
	return n, s.DB.QueryRowContext(ctx, `SELECT count(*) FROM lease_log`).Scan(&n)
}
