package store

import (
	"context"
	"fmt"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

type localArg struct {
	ID    fleet.MessageID `json:"id"`
	Local string          `json:"clock"`
	Zone  string          `json:"zone"`
}

// keepLocalTimes notes what clocks are to show when messages are sent. It costs nothing where nobody said so.
func (s *Store) keepLocalTimes(ctx context.Context, all []*Acceptance) error {
	var args []localArg
	for _, a := range all {
		if a.Local.Set() && !a.lost && !a.stale {
			args = append(args, localArg{a.Message.ID, a.Local.Time, a.Local.Zone})
		}
	}
	if len(args) == 0 {
		return nil
	}
	_, err := s.exec(ctx, `INSERT INTO local_times (message_id, local, zone) SELECT r.id, r.clock, r.zone FROM @rows:$1(id text, clock text, zone text)@ AS r`, rowList(args))
	if err != nil {
		return fmt.Errorf("keep local times: %w", err)
	}
	return nil
}

// Rezone moves messages that wait for a local time whose zone has other rules by now than when they were accepted, or
// looked at last, and forgets the local times of those that don't wait any more. It returns how many moved.
func (s *Store) Rezone(ctx context.Context, limit int) (moved int, err error) {
	type waiting struct {
		localArg
		at int64
	}
	for after := fleet.MessageID(""); ; {
		var batch []waiting
		err := s.query(ctx, func(row dbutil.Scannable) error {
			var w waiting
			err := row.Scan(&w.ID, &w.Local, &w.Zone, &w.at)
			batch = append(batch, w)
			return err
		}, `SELECT l.message_id, l.local, l.zone, m.send_at FROM local_times l JOIN messages m ON m.id=l.message_id
			WHERE l.message_id>$1 AND m.status='queued' AND m.parked AND m.attempts=0 AND m.send_at>@now@ ORDER BY l.message_id LIMIT $2`, after, limit)
		if err != nil {
			return moved, fmt.Errorf("look at local times: %w", err)
		}
		for _, w := range batch {
			after = w.ID
			at, err := fleet.LocalTime{Time: w.Local, Zone: w.Zone}.Instant()
			if err != nil || at.UnixMilli() == w.at {
				continue // a zone that is no more keeps the rules it had
			}
			n, err := s.exec(ctx, `UPDATE messages SET send_at=$3, due_at=$3, expires_at=expires_at+$3-send_at
				WHERE id=$1 AND status='queued' AND parked AND attempts=0 AND send_at=$2 AND due_at=$2`, w.ID, w.at, at.UnixMilli())
			if err != nil {
				return moved, fmt.Errorf("move message %s to its local time: %w", w.ID, err)
			}
			moved += int(n)
		}
		if len(batch) < limit {
			break
		}
	}
	for {
		n, err := s.deleteSome(ctx, "local_times", `NOT EXISTS (SELECT 1 FROM messages m WHERE m.id=local_times.message_id AND m.status='queued' AND m.parked)`, "$1", limit)
		if err != nil {
			return moved, fmt.Errorf("forget local times: %w", err)
		}
		if n < int64(limit) {
			return moved, nil
		}
	}
}
