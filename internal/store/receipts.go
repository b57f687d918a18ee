package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/wafleet/wafleet/internal/fleet"
)

// ApplyReceipt raises the session's messages that WhatsApp told about, writes their events, and
// returns those it changed. States only move forward, so repeating a receipt changes nothing, and an
// id that is not ours is not an error: another device of the number may have sent it. A receipt
// settles an unknown outcome. It may come before the ack, since the id is in the row before the frame.
func (s *Store) ApplyReceipt(ctx context.Context, term fleet.Term, r fleet.Receipt) ([]fleet.MessageID, error) {
	if len(r.WAIDs) == 0 {
		return nil, nil
	}
	step := &Step{Term: term, Receipt: &r}
	if err := s.Commit(ctx, step); err != nil {
		return nil, fmt.Errorf("apply receipt to session %s: %w", term.SessionID, err)
	}
	return step.Raised, nil
}

// PayloadForRetry returns the marshalled message of a frame that left in the last 72 h, to answer a
// retry receipt, or fleet.ErrNotFound.
func (s *Store) PayloadForRetry(ctx context.Context, session fleet.SessionID, waID string) ([]byte, error) {
	var id fleet.MessageID
	var sealed []byte
	err := s.row(ctx, `SELECT m.id, p.sealed FROM messages m JOIN payloads p ON p.message=m.seq WHERE m.session_id=$1 AND m.wa_id=$2
		AND EXISTS (SELECT 1 FROM attempts a WHERE a.message_id=m.id AND a.kind<>'retry' AND a.at>@now@-CAST($3 AS BIGINT))`,
		session, waID, fleet.PayloadRetention.Milliseconds()).Scan(&id, &sealed)
	if err != nil {
		return nil, fmt.Errorf("payload of message %s: %w", waID, notFound(err))
	}
	payload, err := s.ring.Open(payloadRow(id), sealed)
	if err != nil {
		return nil, fmt.Errorf("payload of message %s: %w", id, err)
	}
	return payload, nil
}

// CountRetryFrame counts a frame that is about to answer a retry receipt. False: it may not leave,
// because the message is unknown or fleet.MaxRetryFrames were sent already.
func (s *Store) CountRetryFrame(ctx context.Context, term fleet.Term, waID string) (bool, error) {
	ok := false
	err := s.Fenced(ctx, term, func(ctx context.Context) error {
		ok = false
		var id fleet.MessageID
		// The row's lock makes counts of one message wait for each other.
		err := s.row(ctx, `SELECT id FROM messages WHERE session_id=$1 AND wa_id=$2 @update@`, term.SessionID, waID).Scan(&id)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		} else if err != nil {
			return unavailable(err)
		}
		var sent int
		if err := s.row(ctx, `SELECT count(*) FROM attempts WHERE message_id=$1 AND kind='retry'`, id).Scan(&sent); err != nil {
			return unavailable(err)
		}
		if sent >= fleet.MaxRetryFrames {
			return nil
		}
		var n int
		if err := s.row(ctx, `UPDATE messages SET attempts=attempts+1 WHERE id=$1 RETURNING attempts`, id).Scan(&n); err != nil {
			return unavailable(err)
		}
		_, err = s.exec(ctx, `INSERT INTO attempts (message_id, n, session_id, epoch, kind, at) VALUES ($1, $2, $3, $4, 'retry', @now@)`,
			id, n, term.SessionID, term.Epoch)
		ok = err == nil
		return err
	})
	if err != nil {
		return false, fmt.Errorf("count retry frame of message %s: %w", waID, err)
	}
	return ok, nil
}
