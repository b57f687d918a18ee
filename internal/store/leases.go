package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/plant"
)

// Everything here but CheckTimeouts runs on the beat connection: a pool that is busy with work
// must never make a worker lose its terms. Every statement that touches several leases locks them
// in id order, or a beat and a batch deadlock.

// ClaimQuery says what a worker would like to own.
type ClaimQuery struct {
	Owner string        // WORKER_ID plus a boot nonce
	Limit int           // at most this many
	TTL   time.Duration // how long the claim lasts without a beat
	All   bool          // whatever others hold too, for a process that is alone by a lock of its own
	Shard fleet.Shard   // which sessions
}

// dueLease is a lease that q.Owner may claim: unowned or expired, of a session wanted running, in
// the shard. $1 owner, $2 all, $3 shard count, $4 shard index.
const dueLease = `(l.owner = '' OR l.expires_at <= @now@ OR ($2 AND l.owner <> $1))
	AND EXISTS (SELECT 1 FROM sessions s WHERE s.id = l.session_id AND s.desired = 'running' AND s.shard_key % $3 = $4)`

// ClaimLeases takes unowned and expired leases of sessions wanted running, each under its next
// epoch, and writes lease_log. It never waits for a row: one that another transaction holds, such
// as a frozen owner's open write, is skipped and counted in locked (at most; a row that another
// worker took at the same moment may be counted too).
func (s *Store) ClaimLeases(ctx context.Context, q ClaimQuery) (terms []fleet.Term, locked int, err error) {
	if q.Owner == "" || q.TTL <= 0 {
		return nil, 0, errors.New("claim leases: no owner or no TTL")
	}
	if q.Limit <= 0 {
		return nil, 0, nil
	}
	count, index := 1, 0
	if !q.Shard.All() {
		count, index = q.Shard.Count, q.Shard.Index
	}
	args := []any{q.Owner, q.All, count, index, q.Limit}
	if s.Postgres() {
		terms, locked, err = s.claimAtOnce(ctx, q, args)
	} else {
		terms, err = s.claimAlone(ctx, q, args)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("claim leases: %w", err)
	}
	return terms, locked, nil
}

func (s *Store) claimAtOnce(ctx context.Context, q ClaimQuery, args []any) (terms []fleet.Term, locked int, err error) {
	var due int
	err = each(ctx, s.beat, func(row dbutil.Scannable) error {
		t := fleet.Term{Owner: q.Owner}
		if err := row.Scan(&t.SessionID, &t.Epoch, &due); err != nil {
			return err
		}
		if t.SessionID != "" {
			terms = append(terms, t)
		}
		return nil
	}, s.sql(`WITH due AS (
			SELECT l.session_id FROM leases l WHERE `+dueLease+` ORDER BY l.session_id LIMIT $5 @skip@
		), claimed AS (
			UPDATE leases SET owner = $1, epoch = leases.epoch + 1, expires_at = @now@ + $6
			FROM due WHERE leases.session_id = due.session_id
			RETURNING leases.session_id, leases.epoch, leases.owner
		), logged AS (
			INSERT INTO lease_log (session_id, epoch, owner, at) SELECT session_id, epoch, owner, @now@ FROM claimed
		), total AS (
			SELECT count(*) AS n FROM (SELECT 1 FROM leases l WHERE `+dueLease+` LIMIT $5) few
		)
		SELECT coalesce(c.session_id, ''), coalesce(c.epoch, 0), total.n FROM total LEFT JOIN claimed c ON TRUE ORDER BY 1`),
		append(args, q.TTL.Milliseconds())...)
	return terms, max(due-len(terms), 0), err
}

// claimAlone is the same where a writing transaction is alone. It looks first, so that an idle
// worker never takes the write lock.
func (s *Store) claimAlone(ctx context.Context, q ClaimQuery, args []any) (terms []fleet.Term, err error) {
	look := s.sql(`SELECT l.session_id FROM leases l WHERE ` + dueLease + ` ORDER BY l.session_id LIMIT $5`)
	due := func(ctx context.Context) (ids []fleet.SessionID, err error) {
		err = each(ctx, s.beat, func(row dbutil.Scannable) error {
			var id fleet.SessionID
			err := row.Scan(&id)
			ids = append(ids, id)
			return err
		}, look, args...)
		return ids, err
	}
	if ids, err := due(ctx); err != nil || len(ids) == 0 {
		return nil, err
	}
	err = s.beat.DoTxn(ctx, nil, func(ctx context.Context) error {
		terms = nil
		ids, err := due(ctx)
		if err != nil || len(ids) == 0 {
			return err
		}
		err = each(ctx, s.beat, func(row dbutil.Scannable) error {
			t := fleet.Term{Owner: q.Owner}
			err := row.Scan(&t.SessionID, &t.Epoch)
			terms = append(terms, t)
			return err
		}, s.sql(`UPDATE leases SET owner = $1, epoch = epoch + 1, expires_at = @now@ + $2
			WHERE session_id IN (SELECT id FROM @ids:$3@) RETURNING session_id, epoch`), q.Owner, q.TTL.Milliseconds(), idList(ids))
		if err != nil {
			return err
		}
		_, err = s.beat.Exec(ctx, s.sql(`INSERT INTO lease_log (session_id, epoch, owner, at)
			SELECT session_id, epoch, owner, @now@ FROM leases WHERE session_id IN (SELECT id FROM @ids:$1@)`), idList(ids))
		return unavailable(err)
	})
	if err != nil {
		return nil, unavailable(TxError(ctx, err))
	}
	sortTerms(terms)
	return terms, nil
}

// updateMine updates the rows that still carry these (session, epoch) pairs. PostgreSQL locks them in
// id order first; SQLite has no row locks, and joins a list far more slowly than it looks into one.
// $1 owner, $2 terms.
func (s *Store) updateMine(set string) string {
	if s.Postgres() {
		return s.sql(`WITH mine AS (
				SELECT l.session_id FROM leases l JOIN @rows:$2(id text, epoch bigint)@ t ON t.id = l.session_id AND t.epoch = l.epoch
				WHERE l.owner = $1 ORDER BY l.session_id @update@
			) UPDATE leases SET ` + set + ` FROM mine WHERE leases.session_id = mine.session_id
			RETURNING leases.session_id, leases.epoch`)
	}
	return s.sql(`UPDATE leases SET ` + set + ` WHERE owner = $1 AND (session_id, epoch) IN (SELECT id, epoch FROM @rows:$2(id text, epoch bigint)@ t)
		RETURNING session_id, epoch`)
}

// BeatLeases prolongs the terms by ttl from now in one statement and returns those it prolonged;
// what is missing is lost. An error says nothing about any of them.
func (s *Store) BeatLeases(ctx context.Context, owner string, terms []fleet.Term, ttl time.Duration) ([]fleet.Term, error) {
	if owner == "" || ttl <= 0 {
		return nil, errors.New("beat leases: no owner or no TTL")
	}
	if len(terms) == 0 {
		return nil, nil
	}
	kept := make([]fleet.Term, 0, len(terms))
	err := each(ctx, s.beat, func(row dbutil.Scannable) error {
		t := fleet.Term{Owner: owner}
		err := row.Scan(&t.SessionID, &t.Epoch)
		kept = append(kept, t)
		return err
	}, s.updateMine(`expires_at = @now@ + $3`), owner, termList(terms), ttl.Milliseconds())
	if err != nil {
		return nil, fmt.Errorf("beat %d leases: %w", len(terms), err)
	}
	sortTerms(kept)
	return kept, nil
}

// ReleaseLeases gives the terms away, so that any worker may claim at once. Those that are not held
// any more are left alone. The epoch stays: the next claim counts on from it.
func (s *Store) ReleaseLeases(ctx context.Context, owner string, terms []fleet.Term) error {
	if owner == "" || len(terms) == 0 || plant.NoRelease {
		return nil // nothing is held by nobody: a blank owner matches no row
	}
	_, err := s.beat.Exec(ctx, s.updateMine(`owner = '', expires_at = 0`), owner, termList(terms))
	if err != nil {
		return fmt.Errorf("release %d leases: %w", len(terms), unavailable(err))
	}
	return nil
}

// ReleaseOwner gives away all that an owner holds who is gone for certain, such as a process whose end
// was seen, and returns the sessions.
func (s *Store) ReleaseOwner(ctx context.Context, owner string) (out []fleet.SessionID, err error) {
	if owner == "" || plant.NoRelease {
		return nil, nil
	}
	err = each(ctx, s.beat, func(row dbutil.Scannable) error {
		var id fleet.SessionID
		err := row.Scan(&id)
		out = append(out, id)
		return err
	}, s.sql(`WITH mine AS MATERIALIZED (SELECT session_id AS id FROM leases WHERE owner = $1 ORDER BY session_id @update@)
		UPDATE leases SET owner = '', expires_at = 0 FROM mine WHERE session_id = mine.id RETURNING session_id`), owner)
	if err != nil {
		return nil, fmt.Errorf("release leases of %s: %w", owner, err)
	}
	return out, nil
}

func sortTerms(terms []fleet.Term) {
	slices.SortFunc(terms, func(a, b fleet.Term) int { return strings.Compare(string(a.SessionID), string(b.SessionID)) })
}

// LeaseClaim is one line of a session's lease_log.
type LeaseClaim struct {
	Epoch int64
	Owner string
	At    time.Time
}

// LeaseHistory returns who claimed the session and when, by epoch.
func (s *Store) LeaseHistory(ctx context.Context, session fleet.SessionID) ([]LeaseClaim, error) {
	var out []LeaseClaim
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var c LeaseClaim
		err := row.Scan(&c.Epoch, &c.Owner, at{&c.At})
		out = append(out, c)
		return err
	}, `SELECT epoch, owner, at FROM lease_log WHERE session_id = $1 ORDER BY epoch`, session)
	if err != nil {
		return nil, fmt.Errorf("lease history of session %s: %w", session, err)
	}
	return out, nil
}

// timeoutSettings are ended or refused by the server, so that a frozen process can't hold a lease's
// row lock beyond them.
var timeoutSettings = []string{"idle_in_transaction_session_timeout", "lock_timeout"}

// withoutJIT goes with them: what PostgreSQL thinks that a look at a lane may cost makes it compile the statement, which takes
// seconds and a processor, while the look itself reads a few rows.
const withoutJIT = "jit"

// timeoutFor is how long a frozen owner may block its takeover.
func timeoutFor(ttl time.Duration) time.Duration { return max(ttl/3, 2*time.Second) }

// EnsureTimeouts makes the role's transactions end when their process freezes. It is a setting of
// the role in this database and not of a connection, because PgBouncer hands connections around;
// a database copied from a template does not inherit it. Connections that are idle now are dropped,
// since they may be older than the setting, whichever process made it; a pooler's are ended at the
// server. On SQLite there is nothing to do.
func (s *Store) EnsureTimeouts(ctx context.Context, ttl time.Duration) error {
	if !s.Postgres() {
		return nil
	}
	want, altered := strconv.FormatInt(timeoutFor(ttl).Milliseconds(), 10), false
	err := s.beat.DoTxn(ctx, nil, func(ctx context.Context) error {
		// Two processes that alter one role at once fail: "tuple concurrently updated".
		if _, err := s.beat.Exec(ctx, `SELECT pg_advisory_xact_lock(7316093415121)`); err != nil {
			return err
		}
		var database, have string
		err := s.beat.QueryRow(ctx, `SELECT quote_ident(current_database()), coalesce((
			SELECT array_to_string(setconfig, ',') FROM pg_db_role_setting
			WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
			AND setrole = (SELECT oid FROM pg_roles WHERE rolname = current_user)), '')`).Scan(&database, &have)
		if err != nil {
			return err
		}
		for _, name := range append([]string{withoutJIT}, timeoutSettings...) {
			value := want
			if name == withoutJIT {
				value = "off"
			}
			if slices.Contains(strings.Split(have, ","), name+"="+value) {
				continue
			}
			altered = true
			if _, err := s.beat.Exec(ctx, `ALTER ROLE CURRENT_USER IN DATABASE `+database+` SET `+name+` = `+value); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("set timeouts of the database role: %w", unavailable(TxError(ctx, err)))
	}
	for _, db := range []*dbutil.Database{s.db, s.beat} {
		size := db.RawDB.Stats().MaxOpenConnections
		db.RawDB.SetMaxIdleConns(0)
		db.RawDB.SetMaxIdleConns(size)
	}
	pooled, err := s.pooled(ctx)
	if err != nil {
		return fmt.Errorf("look for a pooler: %w", unavailable(err))
	}
	if pooled && (altered || errors.Is(s.CheckTimeouts(ctx, ttl), ErrTimeouts)) {
		return s.endOlderBackends(ctx)
	}
	return nil
}

// pooled reports whether a pooler stands before the server: the process a connection was told at its start is not the
// one that answers.
func (s *Store) pooled(ctx context.Context) (pooled bool, err error) {
	if !s.pipes {
		return false, nil
	}
	return pooled, s.onConn(ctx, func(conn *pgx.Conn) error {
		var pid int64
		err := conn.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid)
		pooled = int64(conn.PgConn().PID()) != pid
		return err
	})
}

// olderBackendsLimit is how long backends that are in a transaction are waited for.
const olderBackendsLimit = 5 * time.Second

// endOlderBackends ends every backend of this role that a pooler keeps from before now, each when it is idle. A statement
// that the pooler gives to one just then fails as it does when the server restarts. What is busy for long is left:
// CheckTimeouts tells of it.
func (s *Store) endOlderBackends(ctx context.Context) error {
	var now string
	if err := s.row(ctx, `SELECT statement_timestamp()::text`).Scan(&now); err != nil {
		return fmt.Errorf("end older connections of the pooler: %w", unavailable(err))
	}
	for limit := time.Now().Add(olderBackendsLimit); time.Now().Before(limit); {
		var left, ended int
		err := s.row(ctx, `SELECT count(*), count(*) FILTER (WHERE (state = 'idle' OR pid = pg_backend_pid()) AND pg_terminate_backend(pid))
			FROM pg_stat_activity WHERE datname = current_database() AND usename = current_user AND backend_start < $1::timestamptz`, now).Scan(&left, &ended)
		if err == nil && left == 0 {
			return nil
		}
		if ctx.Err() != nil { // other errors: the backend that answered was one of them
			return fmt.Errorf("end older connections of the pooler: %w", unavailable(err))
		}
		again := time.NewTimer(20 * time.Millisecond)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
		}
	}
	return nil
}

// CheckTimeouts reports, for readiness, whether a connection for work is really under the timeouts
// that EnsureTimeouts sets: a role that may not alter itself, or a pooler with older connections,
// is not.
func (s *Store) CheckTimeouts(ctx context.Context, ttl time.Duration) error {
	if !s.Postgres() {
		return nil
	}
	want := timeoutFor(ttl).Milliseconds()
	for _, name := range timeoutSettings {
		var have int64
		if err := s.row(ctx, `SELECT setting::bigint FROM pg_settings WHERE name = $1`, name).Scan(&have); err != nil {
			return fmt.Errorf("check database timeouts: %w", notFound(err))
		}
		if have <= 0 || have > want {
			return fmt.Errorf("%w: %s is %d ms and must be at most %d: run ALTER ROLE … IN DATABASE … SET %s = %d, then reconnect",
				ErrTimeouts, name, have, want, name, want)
		}
	}
	return nil
}

// ErrTimeouts says that a frozen process could block a takeover for longer than the lease allows.
var ErrTimeouts = errors.New("database timeouts are not set")
