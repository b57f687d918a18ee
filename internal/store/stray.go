package store

import (
	"context"
	"fmt"
	"time"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

// A stray is a message without a session that could send it: it was to be sent later and is due now, a number
// was refused to it because its recipient is a stranger there, or its session can't send any more. Frames of
// it surely reached nobody.

// Stray names the messages of one session to one person of which the first is stray.
type Stray struct {
	SessionID  fleet.SessionID
	ContactKey string
	// Exempt says that it is the confirmation of an opt-out, which waits for none of the others: they don't leave.
	Exempt bool
}

// strandedAfter is how long a session may be away before what waits for it goes to another one.
const strandedAfter = `60000`

// Strays finds up to limit people whose messages have no session that could send them. It takes no locks.
func (s *Store) Strays(ctx context.Context, limit int) ([]Stray, error) {
	var out []Stray
	scan := func(row dbutil.Scannable) error {
		var v Stray
		err := row.Scan(&v.SessionID, &v.ContactKey, &v.Exempt)
		out = append(out, v)
		return err
	}
	err := s.query(ctx, scan, `SELECT m.session_id, m.contact_key, m.exempt FROM messages m
		WHERE m.parked AND m.status='queued' AND m.due_at<=@now@ AND m.expires_at>@now@ ORDER BY m.due_at LIMIT CAST($1 AS BIGINT)`, limit)
	if err == nil {
		err = s.query(ctx, scan, `SELECT DISTINCT m.session_id, m.contact_key, m.exempt FROM sessions s
			JOIN leases l ON l.session_id=s.id
			JOIN messages m ON m.session_id=s.id AND m.status IN ('queued', 'sending')
			WHERE (s.desired<>'running' OR s.paused OR s.detached OR s.observed IN ('logged_out', 'locked', 'banned', 'temp_banned', 'conflict', 'failed')
					OR s.observed<>'connected' AND s.observed_since<@now@-`+strandedAfter+` OR l.expires_at<@now@-`+strandedAfter+`)
				AND m.status='queued' AND NOT m.parked AND m.attempts=0 AND m.due_at<=@now@ AND m.expires_at>@now@
			LIMIT CAST($1 AS BIGINT)`, limit)
	}
	if err != nil {
		return nil, fmt.Errorf("look for stray messages: %w", err)
	}
	return out, nil
}

// StrayMessages reads a person's messages on a session that may move to another one, in their order. It ends
// before the first whose frame may be on its way, or is to be tried again here.
func (s *Store) StrayMessages(ctx context.Context, v Stray) ([]fleet.Message, error) {
	var out []fleet.Message
	blocked := false
	err := s.query(ctx, func(row dbutil.Scannable) error {
		m, err := s.scanMessage(row)
		blocked = blocked || m.Status == fleet.StatusSending || !m.Parked && m.Attempts > 0
		if !blocked {
			out = append(out, m)
		}
		return err
	}, `SELECT `+messageColumns+` FROM messages m WHERE m.session_id=$1 AND m.contact_key=$2 AND m.status IN ('queued', 'sending')
			AND m.due_at<=@now@ AND m.expires_at>@now@ AND (m.exempt OR NOT $3) ORDER BY m.seq LIMIT 500`, v.SessionID, v.ContactKey, v.Exempt)
	if err != nil {
		return nil, fmt.Errorf("read stray messages of session %s: %w", v.SessionID, err)
	}
	return out, nil
}

// strayIs is true for a message that is as it was read: nobody has claimed, ended or moved it.
const strayIs = `seq=$1 AND session_id=$2 AND status='queued' AND attempts=$3`

// TakeReservation takes a stray's reservation off it, so that it can pass on to another one. False: the message
// is not what it was.
func (s *Store) TakeReservation(ctx context.Context, m *fleet.Message) (bool, error) {
	n, err := s.exec(ctx, `UPDATE messages SET reservation='' WHERE `+strayIs+` AND reservation=$4`, m.Seq, m.SessionID, m.Attempts, m.Reservation)
	if err != nil {
		return false, fmt.Errorf("take reservation of message %s: %w", m.ID, err)
	}
	return n > 0, nil
}

// PutReservation gives a stray back what TakeReservation took. False: the message is not what it was, and the
// reservation is the caller's to give back.
func (s *Store) PutReservation(ctx context.Context, m *fleet.Message) (bool, error) {
	n, err := s.exec(ctx, `UPDATE messages SET reservation=$4 WHERE `+strayIs+` AND reservation=''`, m.Seq, m.SessionID, m.Attempts, m.Reservation)
	if err != nil {
		return false, fmt.Errorf("put back reservation of message %s: %w", m.ID, err)
	}
	return n > 0, nil
}

// Move is where a stray goes.
type Move struct {
	To          fleet.SessionID
	Reservation string
	Generation  int64 // of the ledger that gave it
	Opened      bool  // it opens the chat there
	TouchChat   bool
}

// MoveMessage gives a stray to a session, whose lane sends it. False: the message is not what it was, or the ledger
// was rebuilt since; then nothing was written. Locks are taken in the order messages, chats.
func (s *Store) MoveMessage(ctx context.Context, m *fleet.Message, to Move) (moved bool, err error) {
	err = s.InTx(ctx, func(ctx context.Context) error {
		n, err := s.exec(ctx, `UPDATE messages SET session_id=$4, reservation=$5, ledger_generation=$6, opened=$7, parked=FALSE,
				error_code='', error_detail='', trails=coalesce((`+lastElsewhere("messages.contact_key", "messages.org_id", "$4", "$2", " AND e.seq<messages.seq")+`), trails)
			WHERE `+strayIs+` AND reservation='' AND (SELECT l.generation FROM ledger l WHERE l.name='ledger')=$6`,
			m.Seq, m.SessionID, m.Attempts, to.To, to.Reservation, to.Generation, to.Opened)
		if moved = n > 0; err != nil || !moved {
			return err
		}
		if m.Opened && m.Attempts == 0 {
			if err := s.unopen(ctx, chatArg{m.ContactKey, m.SessionID}); err != nil {
				return err
			}
		}
		after := *m
		after.SessionID, after.Opened, after.Parked = to.To, to.Opened, false
		return s.writeOut(ctx, []*fleet.Message{&after}, map[fleet.MessageID]bool{m.ID: true}, map[fleet.MessageID]wish{m.ID: {touch: to.TouchChat}})
	})
	if err != nil {
		return false, fmt.Errorf("move message %s: %w", m.ID, err)
	}
	return moved, nil
}

// FailStray ends a message that was refused on one number and has no other, with its event.
func (s *Store) FailStray(ctx context.Context, m *fleet.Message) (bool, error) {
	var changed []fleet.Message
	err := s.InTx(ctx, func(ctx context.Context) (err error) {
		changed, err = s.changeMessages(ctx, `UPDATE messages SET status='failed', outcome='refused', parked=FALSE
			WHERE `+strayIs+` AND parked AND hops>0 RETURNING `+changedColumns, m.Seq, m.SessionID, m.Attempts)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("end message %s: %w", m.ID, err)
	}
	return len(changed) > 0, nil
}

// LimitNumber notes that WhatsApp restricts the number of a session until a time, or until zero does not any more, and
// tells operators once per restriction. It is kept with the number and outlives the session.
func (s *Store) LimitNumber(ctx context.Context, term fleet.Term, kind fleet.LimitKind, until time.Time) (told bool, err error) {
	column, event := "cold", fleet.EventReachoutRestricted
	if kind == fleet.LimitNewChats {
		column, event = "capped", fleet.EventNewChatsCapped
	}
	err = s.Fenced(ctx, term, func(ctx context.Context) error {
		var org fleet.OrgID
		var phone string
		if err := s.row(ctx, `SELECT org_id, phone FROM sessions WHERE id=$1`, term.SessionID).Scan(&org, &phone); err != nil {
			return notFound(err)
		}
		if phone == "" {
			return nil
		}
		if until.IsZero() {
			_, err := s.exec(ctx, `UPDATE number_limits SET `+column+`_until=0, `+column+`_told=FALSE WHERE phone=$1`, phone)
			return err
		}
		_, err := s.exec(ctx, `INSERT INTO number_limits (phone, `+column+`_until) VALUES ($1, CAST($2 AS BIGINT))
			ON CONFLICT (phone) DO UPDATE SET `+column+`_told=(number_limits.`+column+`_told AND number_limits.`+column+`_until>@now@),
				`+column+`_until=CASE WHEN number_limits.`+column+`_until>excluded.`+column+`_until THEN number_limits.`+column+`_until ELSE excluded.`+column+`_until END`,
			phone, ms(until))
		if err != nil {
			return err
		}
		n, err := s.exec(ctx, `UPDATE number_limits SET `+column+`_told=TRUE WHERE phone=$1 AND NOT `+column+`_told`, phone)
		if told = n > 0; err != nil || !told {
			return err
		}
		_, err = s.AppendEvent(ctx, fleet.Event{OrgID: org, Kind: event, SessionID: term.SessionID, Data: fleet.EventData{Until: ms(until)}})
		return err
	})
	if err != nil {
		return false, fmt.Errorf("limit number of session %s: %w", term.SessionID, err)
	}
	return told, nil
}

// StrangersRefused counts the people, but for one, to whom WhatsApp refused messages of this session with a code within
// the last hour.
func (s *Store) StrangersRefused(ctx context.Context, session fleet.SessionID, code int, but string) (int, error) {
	var n int
	err := s.row(ctx, `SELECT count(DISTINCT m.contact_key) FROM attempts a JOIN messages m ON m.id=a.message_id
		WHERE a.session_id=$1 AND a.at>@now@-3600000 AND a.code=$2 AND m.contact_key<>$3`, session, code, but).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count refusals of session %s: %w", session, unavailable(err))
	}
	return n, nil
}
