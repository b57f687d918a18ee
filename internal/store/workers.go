package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

// RegisterWorker writes the worker's row: it is here from now on. A second call under the same owner starts
// over, but what an operator has asked of it since stands. StartedAt and BeatAt of w are not read: the database knows.
func (s *Store) RegisterWorker(ctx context.Context, w fleet.WorkerInfo) error {
	if w.ID == "" || w.Owner == "" {
		return errors.New("register worker: no id or no owner")
	}
	_, err := s.exec(ctx, `INSERT INTO workers (owner, id, version, sessions, max_sessions, draining, drain, shard_count, shard_index, started_at, beat_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, @now@, @now@)
		ON CONFLICT (owner) DO UPDATE SET id = excluded.id, version = excluded.version, sessions = excluded.sessions,
			max_sessions = excluded.max_sessions, draining = excluded.draining, shard_count = excluded.shard_count,
			shard_index = excluded.shard_index, beat_at = excluded.beat_at`,
		w.Owner, w.ID, w.Version, w.Sessions, w.MaxSessions, w.Draining, w.Drain, max(w.Shard.Count, 1), w.Shard.Index)
	if err != nil {
		return fmt.Errorf("register worker %s: %w", w.Owner, err)
	}
	return nil
}

// BeatWorker says that the worker lives and how much it owns, and returns whether an operator wants it
// empty. fleet.ErrNotFound: its row was cleaned up, and it must register again.
func (s *Store) BeatWorker(ctx context.Context, owner string, sessions int, draining bool) (drain bool, err error) {
	err = s.row(ctx, `UPDATE workers SET sessions = $2, draining = $3, beat_at = @now@ WHERE owner = $1 RETURNING drain`,
		owner, sessions, draining).Scan(&drain)
	if err != nil {
		return false, fmt.Errorf("beat of worker %s: %w", owner, notFound(err))
	}
	return drain, nil
}

// DrainWorker asks the worker of this WORKER_ID to hand its sessions over and to claim none, or with drain
// false to claim again. A new start of it knows nothing of that. fleet.ErrNotFound: there is none.
func (s *Store) DrainWorker(ctx context.Context, id string, drain bool) error {
	err := s.InTx(ctx, func(ctx context.Context) error {
		n, err := s.exec(ctx, `UPDATE workers SET drain = $2 WHERE id = $1`, id, drain)
		if err == nil && n == 0 {
			err = fleet.ErrNotFound
		}
		if err != nil {
			return err
		}
		action := "worker.drain"
		if !drain {
			action = "worker.resume"
		}
		return s.Audit(ctx, action, "", id, nil)
	})
	if err != nil {
		return fmt.Errorf("drain worker %s: %w", id, err)
	}
	return nil
}

// HeldBy counts the sessions that a worker of this WORKER_ID holds now, under whatever start of it.
func (s *Store) HeldBy(ctx context.Context, id string) (n int, err error) {
	err = s.row(ctx, `SELECT count(*) FROM leases l JOIN workers w ON w.owner = l.owner WHERE w.id = $1 AND l.expires_at > @now@`, id).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count sessions of worker %s: %w", id, unavailable(err))
	}
	return n, nil
}

// RemoveWorker takes the worker's row away. Its leases are not touched.
func (s *Store) RemoveWorker(ctx context.Context, owner string) error {
	if _, err := s.exec(ctx, `DELETE FROM workers WHERE owner = $1`, owner); err != nil {
		return fmt.Errorf("remove worker %s: %w", owner, err)
	}
	return nil
}

// Workers returns every registered worker by id. A killed one stays until it is cleaned up: Alive
// says so.
func (s *Store) Workers(ctx context.Context) ([]fleet.WorkerInfo, error) {
	var out []fleet.WorkerInfo
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var w fleet.WorkerInfo
		var age int64
		err := row.Scan(&w.Owner, &w.ID, &w.Version, &w.Sessions, &w.MaxSessions, &w.Draining, &w.Drain, &w.Shard.Count, &w.Shard.Index,
			at{&w.StartedAt}, at{&w.BeatAt}, &age, &w.Alive)
		w.BeatAge = time.Duration(age) * time.Millisecond
		out = append(out, w)
		return err
	}, `SELECT owner, id, version, sessions, max_sessions, draining, drain, shard_count, shard_index, started_at, beat_at, @now@ - beat_at, beat_at > @now@ - 35000 FROM workers ORDER BY id, owner`)
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	return out, nil
}
