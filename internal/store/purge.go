package store

import (
	"context"
	"fmt"
	"time"
)

// PurgeAttempts deletes up to limit frames older than a time and returns how many. Lanes seed their
// sliding counts from the last 24 hours, so callers keep 25 hours at least.
func (s *Store) PurgeAttempts(ctx context.Context, before time.Time, limit int) (int, error) {
	n, err := s.exec(ctx, `DELETE FROM attempts WHERE (message_id, n) IN (
		SELECT a.message_id, a.n FROM sessions s CROSS JOIN attempts a WHERE a.session_id=s.id AND a.at < $1 LIMIT $2)`, ms(before), limit)
	if err != nil {
		return 0, fmt.Errorf("purge attempts: %w", err)
	}
	return int(n), nil
}

// PurgeWorkers forgets workers that have not been heard of since a time and own nothing any more.
func (s *Store) PurgeWorkers(ctx context.Context, before time.Time) (int, error) {
	n, err := s.exec(ctx, `DELETE FROM workers WHERE beat_at < $1
		AND NOT EXISTS (SELECT 1 FROM leases l WHERE l.owner = workers.owner AND l.expires_at > @now@)`, ms(before))
	if err != nil {
		return 0, fmt.Errorf("purge workers: %w", err)
	}
	return int(n), nil
}

// PurgeLeaseLog deletes up to limit claims made before a time and returns how many. A session's last one stays.
func (s *Store) PurgeLeaseLog(ctx context.Context, before time.Time, limit int) (int, error) {
	n, err := s.exec(ctx, `DELETE FROM lease_log WHERE (session_id, epoch) IN (
		SELECT g.session_id, g.epoch FROM leases l CROSS JOIN lease_log g WHERE g.session_id=l.session_id AND g.epoch<l.epoch AND g.at<$1 LIMIT $2)`, ms(before), limit)
	if err != nil {
		return 0, fmt.Errorf("purge lease log: %w", err)
	}
	return int(n), nil
}
