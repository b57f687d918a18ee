package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// byAge is a table whose rows are numbered in the order of time.
type byAge struct{ table, number string }

var (
	messagesByAge = byAge{"messages", "seq"}
	eventsByAge   = byAge{"events", "n"}
)

// commitSkew is how much younger than its number a row may be.
const commitSkew = time.Minute

// before returns the number from which on rows are made at a time or later: a row whose transaction took long may stand
// among younger ones, and counts as one of them. It halves the numbers and looks at some thirty rows.
func (s *Store) before(ctx context.Context, rows byAge, t time.Time) (int64, error) {
	var low, high int64
	if err := s.row(ctx, `SELECT coalesce(min(`+rows.number+`), 0), coalesce(max(`+rows.number+`), 0) + 1 FROM `+rows.table).Scan(&low, &high); err != nil {
		return 0, unavailable(err)
	}
	for low < high {
		middle := low + (high-low)/2
		var number, created int64
		err := s.row(ctx, `SELECT `+rows.number+`, created_at FROM `+rows.table+` WHERE `+rows.number+`>=$1 ORDER BY `+rows.number+` LIMIT 1`, middle).
			Scan(&number, &created)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			high = middle
		case err != nil:
			return 0, unavailable(err)
		case created < ms(t):
			low = number + 1
		default:
			high = middle
		}
	}
	return low, nil
}

// PurgePayloads drops the marshalled message of up to limit settled messages whose last frame left
// before the given time. Nobody will be answered from them any more.
func (s *Store) PurgePayloads(ctx context.Context, before time.Time, limit int) (int, error) {
	bound, err := s.before(ctx, messagesByAge, before)
	if err != nil {
		return 0, fmt.Errorf("purge payloads: %w", err)
	}
	n, err := s.exec(ctx, `DELETE FROM payloads WHERE message IN (
		SELECT p.message FROM payloads p JOIN messages m ON m.seq=p.message WHERE p.message<$1 AND m.status NOT IN ('queued', 'sending')
			AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.message_id=m.id AND a.kind<>'retry' AND a.at>=CAST($2 AS BIGINT))
		ORDER BY p.message LIMIT CAST($3 AS BIGINT))`, bound, ms(before), limit)
	if err != nil {
		return 0, fmt.Errorf("purge payloads: %w", err)
	}
	return int(n), nil
}

// PurgeMessages deletes up to limit settled messages made before the given time, with their attempts.
// before must lie at least 25 h back: that long every frame stays on record.
func (s *Store) PurgeMessages(ctx context.Context, before time.Time, limit int) (int, error) {
	bound, err := s.before(ctx, messagesByAge, before)
	if err != nil {
		return 0, fmt.Errorf("purge messages: %w", err)
	}
	var n int64
	err = s.InTx(ctx, func(ctx context.Context) error {
		const old = ` FROM messages WHERE seq<$1 AND created_at<@now@-90000000
			AND status NOT IN ('queued', 'sending') ORDER BY seq LIMIT CAST($2 AS BIGINT)`
		for _, q := range []string{
			`DELETE FROM attempts WHERE message_id IN (SELECT id` + old + `)`,
			`DELETE FROM payloads WHERE message IN (SELECT seq` + old + `)`,
		} {
			if _, err := s.exec(ctx, q, bound, limit); err != nil {
				return err
			}
		}
		var err error
		n, err = s.exec(ctx, `DELETE FROM messages WHERE seq IN (SELECT seq`+old+`)`, bound, limit)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("purge messages: %w", err)
	}
	return int(n), nil
}
