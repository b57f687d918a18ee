package store

import (
	"context"
	"errors"
	"fmt"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

// RegisterWorker writes the worker's row: it is here from now on, owning nothing yet. A second call
// under the same owner starts over. StartedAt and BeatAt of w are not read: the database knows.
func (s *Store) RegisterWorker(ctx context.Context, w fleet.WorkerInfo) error {
	if w.ID == "" || w.Owner == "" {
		return errors.New("register worker: no id or no owner")
	}
	_, err := s.exec(ctx, `INSERT INTO workers (owner, id, version, sessions, max_sessions, draining, started_at, beat_at)
		VALUES ($1, $2, $3, $4, $5, $6, @now@, @now@)
		ON CONFLICT (owner) DO UPDATE SET id = excluded.id, version = excluded.version, sessions = excluded.sessions,
			max_sessions = excluded.max_sessions, draining = excluded.draining, beat_at = excluded.beat_at`,
		w.Owner, w.ID, w.Version, w.Sessions, w.MaxSessions, w.Draining)
	if err != nil {
		return fmt.Errorf("register worker %s: %w", w.Owner, err)
	}
	return nil
}

// BeatWorker says that the worker lives and how much it owns. fleet.ErrNotFound: its row was
// cleaned up, and it must register again.
func (s *Store) BeatWorker(ctx context.Context, owner string, sessions int, draining bool) error {
	n, err := s.exec(ctx, `UPDATE workers SET sessions = $2, draining = $3, beat_at = @now@ WHERE owner = $1`, owner, sessions, draining)
	if err == nil && n == 0 {
		err = fleet.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("beat of worker %s: %w", owner, err)
	}
	return nil
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
		err := row.Scan(&w.Owner, &w.ID, &w.Version, &w.Sessions, &w.MaxSessions, &w.Draining, at{&w.StartedAt}, at{&w.BeatAt}, &w.Alive)
		out = append(out, w)
		return err
	}, `SELECT owner, id, version, sessions, max_sessions, draining, started_at, beat_at, beat_at > @now@ - 35000 FROM workers ORDER BY id, owner`)
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	return out, nil
}
