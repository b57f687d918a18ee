package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// HoldSingleton takes the singleton row for owner, or prolongs it, so that it lasts ttl from now. Zero:
// it is held. Otherwise another owner has it, and this is how long it lasts unless that one prolongs
// it; never less than a millisecond.
func (s *Store) HoldSingleton(ctx context.Context, owner string, ttl time.Duration) (time.Duration, error) {
	if owner == "" || ttl <= 0 {
		return 0, errors.New("hold singleton: no owner or no TTL")
	}
	n, err := Exec(ctx, s.beat, s.sql(`INSERT INTO singleton (name, owner, expires_at) VALUES ('process', $1, @now@ + CAST($2 AS BIGINT))
		ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at
		WHERE singleton.owner = excluded.owner OR singleton.expires_at <= @now@`), owner, ttl.Milliseconds())
	if err != nil {
		return 0, fmt.Errorf("hold singleton: %w", unavailable(err))
	}
	if n == 1 {
		return 0, nil
	}
	var left int64
	err = s.beat.QueryRow(ctx, s.sql(`SELECT coalesce(max(expires_at), 0) - @now@ FROM singleton`)).Scan(&left)
	if err != nil {
		return 0, fmt.Errorf("hold singleton: %w", unavailable(err))
	}
	return max(time.Duration(left)*time.Millisecond, time.Millisecond), nil
}

// DropSingleton lets the next process have the row at once, if owner holds it.
func (s *Store) DropSingleton(ctx context.Context, owner string) error {
	if _, err := s.beat.Exec(ctx, `DELETE FROM singleton WHERE owner = $1`, owner); err != nil {
		return fmt.Errorf("drop singleton: %w", unavailable(err))
	}
	return nil
}
