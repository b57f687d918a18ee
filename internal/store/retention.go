package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.mau.fi/util/dbutil"
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
	// Two lookups: SQLite reads all of a table for both ends of it in one SELECT.
	if err := s.row(ctx, `SELECT coalesce((SELECT min(`+rows.number+`) FROM `+rows.table+`), 0), coalesce((SELECT max(`+rows.number+`) FROM `+rows.table+`), 0) + 1`).Scan(&low, &high); err != nil {
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
		// Chosen once: a second look might choose others, and leave a payload that nothing refers to any more.
		n, err = s.deleteMessages(ctx, `seq<$1 AND created_at<@now@-90000000 AND status NOT IN ('queued', 'sending')`, limit, bound)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("purge messages: %w", err)
	}
	return int(n), nil
}

// oldMessage names a message by both of its numbers.
type oldMessage struct {
	Seq int64  `json:"seq"`
	ID  string `json:"id"`
}

// deleteMessages deletes up to limit of the oldest messages for which where is true, which has args, with what belongs
// to them alone. Call it in a transaction.
func (s *Store) deleteMessages(ctx context.Context, where string, limit int, args ...any) (int64, error) {
	var keyed string
	if err := s.row(ctx, `SELECT @keyed@`).Scan(&keyed); err != nil {
		return 0, unavailable(err)
	}
	var old []oldMessage
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var m oldMessage
		err := row.Scan(&m.Seq, &m.ID)
		old = append(old, m)
		return err
	}, `SELECT seq, id FROM messages WHERE `+where+` ORDER BY seq LIMIT CAST($`+strconv.Itoa(len(args)+1)+` AS BIGINT)`, append(args, limit)...)
	if err != nil || len(old) == 0 {
		return 0, err
	}
	const gone = `(SELECT g.seq FROM @rows:$1(seq bigint, id text)@ AS g)`
	for _, q := range []string{
		`DELETE FROM attempts WHERE message_id IN (SELECT g.id FROM @rows:$1(seq bigint, id text)@ AS g)`,
		`DELETE FROM local_times WHERE message_id IN (SELECT g.id FROM @rows:$1(seq bigint, id text)@ AS g)`,
		`DELETE FROM payloads WHERE message IN ` + gone,
	} {
		if _, err := s.exec(ctx, q, rowList(old)); err != nil {
			return 0, err
		}
	}
	return s.exec(ctx, `DELETE FROM messages WHERE seq IN `+gone, rowList(old))
}
