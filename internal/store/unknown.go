package store

import (
	"context"
	"fmt"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

// What happens to frames whose outcome nobody knows. The owner repeats (lane.go), tells after 60 s
// and closes after 24 h. The scheduler tells and closes where no live lease is, and never repeats.

const (
	// noLiveLease is true for a message whose session nobody owns now.
	noLiveLease = ` AND NOT EXISTS (SELECT 1 FROM leases l WHERE l.session_id=messages.session_id AND l.owner<>'' AND l.expires_at>@now@)`

	closeUnconfirmed = `UPDATE messages SET status='unconfirmed', outcome='unknown', next_repeat_at=0, locked_until=0,
		error_code='UNCONFIRMED', error_detail='WhatsApp did not confirm the message within 24 hours; it may have arrived.'`
)

// AdoptUnknown takes over what earlier frames of the session left open, at the end of the offline
// queue: by then WhatsApp has told every receipt it held. Frames of an earlier term, and those whose
// lock ran out, become unknown with T0 now (or when their lock ran out, if that is a day ago: nothing
// is repeated then). Outcomes that were unknown before belong to this term now, so their repeats go
// on, in 15 s at the earliest. It returns how many wait under this term.
func (s *Store) AdoptUnknown(ctx context.Context, term fleet.Term) (int, error) {
	var n int
	err := s.Fenced(ctx, term, func(ctx context.Context) error {
		_, err := s.exec(ctx, `UPDATE messages SET outcome='unknown', claim_epoch=$2, locked_until=0, next_repeat_at=@now@+15000,
				unknown_since=CASE WHEN locked_until>@now@-86400000 THEN @now@ ELSE locked_until END
			WHERE session_id=$1 AND status IN ('queued', 'sending') AND status='sending' AND outcome=''
				AND (claim_epoch<$2 OR locked_until<@now@)`, term.SessionID, term.Epoch)
		if err != nil {
			return err
		}
		_, err = s.exec(ctx, `UPDATE messages SET claim_epoch=$2, locked_until=0,
				next_repeat_at=CASE WHEN next_repeat_at>0 AND next_repeat_at<@now@+15000 THEN @now@+15000 ELSE next_repeat_at END
			WHERE session_id=$1 AND status IN ('queued', 'sending') AND status='sending' AND outcome='unknown' AND claim_epoch<$2`,
			term.SessionID, term.Epoch)
		if err != nil {
			return err
		}
		return s.row(ctx, `SELECT count(*) FROM messages
			WHERE session_id=$1 AND status IN ('queued', 'sending') AND status='sending' AND outcome='unknown' AND claim_epoch=$2`,
			term.SessionID, term.Epoch).Scan(&n)
	})
	if err != nil {
		return 0, fmt.Errorf("adopt unknown messages of session %s: %w", term.SessionID, unavailable(err))
	}
	return n, nil
}

// HasUnknown reports whether any message of the session is sending: its outcome is unknown, or may
// become so.
func (s *Store) HasUnknown(ctx context.Context, session fleet.SessionID) (bool, error) {
	var open bool
	err := s.row(ctx, `SELECT EXISTS (SELECT 1 FROM messages WHERE session_id=$1 AND status IN ('queued', 'sending') AND status='sending')`, session).Scan(&open)
	if err != nil {
		return false, fmt.Errorf("look for unknown messages of session %s: %w", session, unavailable(err))
	}
	return open, nil
}

// TellUnknown writes the event of every message of the session whose outcome has been unknown for
// 60 s, once per message, and returns their number.
func (s *Store) TellUnknown(ctx context.Context, term fleet.Term) (int, error) {
	var told []fleet.Message
	err := s.Fenced(ctx, term, func(ctx context.Context) (err error) {
		told, err = s.changeMessages(ctx, `UPDATE messages SET unknown_told=TRUE
			WHERE session_id=$1 AND status IN ('queued', 'sending') AND status='sending' AND outcome='unknown'
				AND NOT unknown_told AND unknown_since<=@now@-60000
			RETURNING `+changedColumns, term.SessionID)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("tell unknown messages of session %s: %w", term.SessionID, err)
	}
	return len(told), nil
}

// TellUnknownUnowned does what TellUnknown does for up to limit messages of sessions without a live
// lease, where frames nobody answered for count as unknown since their lock ran out.
func (s *Store) TellUnknownUnowned(ctx context.Context, limit int) (int, error) {
	const open = `status IN ('queued', 'sending') AND status='sending' AND NOT unknown_told AND (
		outcome='unknown' AND unknown_since<=@now@-60000 OR outcome='' AND locked_until<=@now@-60000)` + noLiveLease
	n, err := s.changeUnowned(ctx, `UPDATE messages SET unknown_told=TRUE, outcome='unknown',
			next_repeat_at=CASE WHEN outcome='' THEN locked_until+15000 ELSE next_repeat_at END,
			unknown_since=CASE WHEN outcome='' THEN locked_until ELSE unknown_since END`, open, limit)
	if err != nil {
		return 0, fmt.Errorf("tell unknown messages without an owner: %w", err)
	}
	return n, nil
}

// CloseOwnUnconfirmed ends the session's messages whose outcome has been unknown for 24 h and
// returns their number. A late receipt may still raise them.
func (s *Store) CloseOwnUnconfirmed(ctx context.Context, term fleet.Term) (int, error) {
	var closed []fleet.Message
	err := s.Fenced(ctx, term, func(ctx context.Context) (err error) {
		closed, err = s.changeMessages(ctx, closeUnconfirmed+`
			WHERE session_id=$1 AND status IN ('queued', 'sending') AND status='sending' AND outcome='unknown' AND unknown_since<=@now@-86400000
			RETURNING `+changedColumns, term.SessionID)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("close unconfirmed messages of session %s: %w", term.SessionID, err)
	}
	return len(closed), nil
}

// CloseUnconfirmed does what CloseOwnUnconfirmed does for up to limit messages of sessions without a
// live lease.
func (s *Store) CloseUnconfirmed(ctx context.Context, limit int) (int, error) {
	const open = `status IN ('queued', 'sending') AND status='sending' AND (
		outcome='unknown' AND unknown_since<=@now@-86400000 OR outcome='' AND locked_until<=@now@-86400000)` + noLiveLease
	n, err := s.changeUnowned(ctx, closeUnconfirmed, open, limit)
	if err != nil {
		return 0, fmt.Errorf("close unconfirmed messages: %w", err)
	}
	return n, nil
}

// OpenSends counts the messages that are still sending five minutes after their frame's outcome
// should have been known. With WhatsApp answering and owners alive it is 0.
func (s *Store) OpenSends(ctx context.Context) (int, error) {
	var n int
	err := s.row(ctx, `SELECT count(*) FROM messages WHERE status IN ('queued', 'sending') AND status='sending' AND (
		outcome='unknown' AND unknown_since<=@now@-300000 OR outcome='' AND locked_until<=@now@-300000)`).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count open sends: %w", unavailable(err))
	}
	return n, nil
}

// changeUnowned picks up to limit messages for which open is true and changes each of them under the
// same condition and the epoch it was picked at, so that an owner who came in between wins.
func (s *Store) changeUnowned(ctx context.Context, update, open string, limit int) (n int, err error) {
	type pick struct {
		id    fleet.MessageID
		epoch int64
	}
	err = s.InTx(ctx, func(ctx context.Context) error {
		n = 0
		var picks []pick
		err := s.query(ctx, func(row dbutil.Scannable) error {
			var p pick
			err := row.Scan(&p.id, &p.epoch)
			picks = append(picks, p)
			return err
		}, `SELECT id, claim_epoch FROM messages WHERE `+open+` ORDER BY conversation_id, seq LIMIT CAST($1 AS BIGINT) @skip@`, limit)
		if err != nil {
			return err
		}
		for _, p := range picks {
			changed, err := s.changeMessages(ctx, update+` WHERE id=$1 AND claim_epoch=$2 AND `+open+` RETURNING `+changedColumns, p.id, p.epoch)
			if err != nil {
				return err
			}
			n += len(changed)
		}
		return nil
	})
	return n, err
}
