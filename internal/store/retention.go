package store

import (
	"context"
	"fmt"
	"time"
)

// PurgePayloads drops the marshalled message of up to limit settled messages whose last frame left
// before the given time. Nobody will be answered from them any more.
func (s *Store) PurgePayloads(ctx context.Context, before time.Time, limit int) (int, error) {
	n, err := s.exec(ctx, `UPDATE messages SET payload=NULL WHERE id IN (
		SELECT m.id FROM messages m WHERE m.payload IS NOT NULL AND m.created_at<CAST($1 AS BIGINT) AND m.status NOT IN ('queued', 'sending')
			AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.message_id=m.id AND a.kind<>'retry' AND a.at>=CAST($1 AS BIGINT))
		ORDER BY m.created_at LIMIT CAST($2 AS BIGINT))`, ms(before), limit)
	if err != nil {
		return 0, fmt.Errorf("purge payloads: %w", err)
	}
	return int(n), nil
}

// PurgeMessages deletes up to limit settled messages made before the given time, with their attempts.
// before must lie at least 25 h back: that long every frame stays on record.
func (s *Store) PurgeMessages(ctx context.Context, before time.Time, limit int) (int, error) {
	var n int64
	err := s.InTx(ctx, func(ctx context.Context) error {
		const old = `SELECT id FROM messages WHERE created_at<CAST($1 AS BIGINT) AND created_at<@now@-90000000
			AND status NOT IN ('queued', 'sending') ORDER BY created_at, seq LIMIT CAST($2 AS BIGINT)`
		if _, err := s.exec(ctx, `DELETE FROM attempts WHERE message_id IN (`+old+`)`, ms(before), limit); err != nil {
			return err
		}
		var err error
		n, err = s.exec(ctx, `DELETE FROM messages WHERE id IN (`+old+`)`, ms(before), limit)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("purge messages: %w", err)
	}
	return int(n), nil
}
