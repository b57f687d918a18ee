package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

const messageColumns = `m.seq, m.id, m.org_id, m.project_id, m.session_id, m.conversation_id, m.contact_key, m.to_input, m.to_jid,
	m.kind, m.client_ref, m.body, m.wa_id, m.status, m.outcome, m.error_code, m.error_detail, m.attempts, m.repeats, m.claim_epoch,
	m.due_at, m.expires_at, m.unknown_since, m.next_repeat_at, m.created_at, m.sent_at, m.delivered_at, m.read_at, m.played_at,
	m.unresolved, m.exempt, m.reservation, m.ledger_generation, m.opened, m.parked, m.hops, m.send_at`

// scanMessage reads messageColumns and what more the statement selects, and opens the body.
func (s *Store) scanMessage(row dbutil.Scannable, more ...any) (fleet.Message, error) {
	var m fleet.Message
	var body []byte
	err := row.Scan(append([]any{
		&m.Seq, &m.ID, &m.OrgID, &m.ProjectID, &m.SessionID, &m.ConversationID, &m.ContactKey, &m.To, &m.ToJID,
		&m.Kind, &m.ClientRef, &body, &m.WAID, &m.Status, &m.Outcome, &m.ErrorCode, &m.ErrorDetail, &m.Attempts, &m.Repeats, &m.ClaimEpoch,
		at{&m.DueAt},
		at{&m.ExpiresAt},
		at{&m.UnknownSince},
		at{&m.NextRepeatAt},
		at{&m.CreatedAt},
		at{&m.SentAt},
		at{&m.DeliveredAt},
		at{&m.ReadAt},
		at{&m.PlayedAt},
		&m.Unresolved, &m.Exempt,
		&m.Reservation, &m.Generation, &m.Opened, &m.Parked, &m.Hops,
		at{&m.SendAt},
	}, more...)...)
	if err != nil {
		return m, err
	}
	text, err := s.ring.Open(string(m.ID), body)
	if err != nil {
		return m, fmt.Errorf("open text of message %s: %w", m.ID, err)
	}
	m.Text = string(text)
	return m, nil
}

// payloadRow is the row id that a message's payload is sealed under; the text has the message's id,
// so neither column can be taken for the other.
func payloadRow(id fleet.MessageID) string { return string(id) + "/payload" }

// CreateMessage inserts a queued message, in the caller's transaction if there is one, and returns
// it as stored. It fills what is zero of ID, WAID, ConversationID and DueAt (now); the message
// expires ttl after it is due. The WhatsApp id is therefore in the row before anything can leave.
func (s *Store) CreateMessage(ctx context.Context, m fleet.Message, ttl time.Duration) (fleet.Message, error) {
	err := checkMessage(&m, ttl)
	if err == nil {
		m.ID = cmp.Or(m.ID, fleet.NewMessageID())
		err = s.InTx(ctx, func(ctx context.Context) error {
			stored, err := s.createMessages(ctx, []*fleet.Message{&m}, map[fleet.MessageID]wish{m.ID: {ttl: ttl}})
			if err == nil && !stored[m.ID] {
				err = ErrReservedBefore
			}
			return err
		})
	}
	if err != nil {
		return m, fmt.Errorf("create message: %w", err)
	}
	return m, nil
}

// GetMessage returns an organization's message; another organization's is fleet.ErrNotFound.
func (s *Store) GetMessage(ctx context.Context, org fleet.OrgID, id fleet.MessageID) (fleet.Message, error) {
	m, err := s.scanMessage(s.row(ctx, `SELECT `+messageColumns+` FROM messages m WHERE m.id=$1 AND m.org_id=$2`, id, org))
	if err != nil {
		return fleet.Message{}, fmt.Errorf("get message %s: %w", id, notFound(err))
	}
	return m, nil
}

// MessageQuery selects an organization's messages. Zero fields do not filter.
type MessageQuery struct {
	Org        fleet.OrgID // required
	Status     fleet.Status
	ContactKey string // of a person: those under all of their names
	Session    fleet.SessionID
	Before     int64 // only messages with a lower Seq: the cursor of the page before
	Limit      int   // 0 means 50
}

// ListMessages returns messages, newest first, and the cursor of the next page (0 = no more).
func (s *Store) ListMessages(ctx context.Context, q MessageQuery) (page []fleet.Message, next int64, err error) {
	limit := cmp.Or(q.Limit, 50)
	err = s.query(ctx, func(row dbutil.Scannable) error {
		m, err := s.scanMessage(row)
		page = append(page, m)
		return err
	}, `SELECT `+messageColumns+` FROM messages m
		WHERE m.org_id=$1 AND ($2='' OR m.status=$2) AND ($3='' OR m.contact_key=$3 OR m.contact_key IN (SELECT a.alias FROM contact_aliases a WHERE a.org_id=$1 AND a.contact_id=(
				SELECT b.contact_id FROM contact_aliases b WHERE b.org_id=$1 AND b.alias=$3))) AND ($4='' OR m.session_id=$4)
			AND (CAST($5 AS BIGINT)=0 OR m.seq<CAST($5 AS BIGINT))
		ORDER BY m.seq DESC LIMIT CAST($6 AS BIGINT)`,
		q.Org, q.Status, q.ContactKey, q.Session, q.Before, limit+1)
	if err != nil {
		return nil, 0, fmt.Errorf("list messages: %w", err)
	}
	if len(page) > limit {
		page = page[:limit]
		next = page[limit-1].Seq
	}
	return page, next, nil
}

// MessagesByID returns those of the messages that exist, in no particular order, with one
// statement. It knows no organization: the caller has checked that it may see them.
func (s *Store) MessagesByID(ctx context.Context, ids []fleet.MessageID) ([]fleet.Message, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var out []fleet.Message
	err := s.query(ctx, func(row dbutil.Scannable) error {
		m, err := s.scanMessage(row)
		out = append(out, m)
		return err
	}, `SELECT `+messageColumns+` FROM messages m WHERE m.id IN (SELECT id FROM @ids:$1@ AS wanted)`, idList(ids))
	if err != nil {
		return nil, fmt.Errorf("read messages: %w", err)
	}
	return out, nil
}

// CancelMessage takes back a message that is still queued and returns it. One that is not queued
// any more is fleet.ErrConflict: a frame may have left, or its life is over.
func (s *Store) CancelMessage(ctx context.Context, org fleet.OrgID, id fleet.MessageID) (fleet.Message, error) {
	var m fleet.Message
	err := s.InTx(ctx, func(ctx context.Context) error {
		changed, err := s.changeMessages(ctx,
			`UPDATE messages SET status='cancelled' WHERE id=$1 AND org_id=$2 AND status='queued' RETURNING `+changedColumns, id, org)
		if err != nil {
			return err
		}
		if m, err = s.GetMessage(ctx, org, id); err != nil {
			return err
		}
		if len(changed) == 0 {
			return fmt.Errorf("it is %s: %w", m.Status, fleet.ErrConflict)
		}
		return nil
	})
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		err = fmt.Errorf("cancel message %s: %w", id, err)
	}
	return m, err
}

// ExpireQueued ends up to limit messages that waited for their frame longer than their time to live.
func (s *Store) ExpireQueued(ctx context.Context, limit int) (int, error) {
	var n int
	err := s.InTx(ctx, func(ctx context.Context) error {
		changed, err := s.changeMessages(ctx, `WITH over AS MATERIALIZED (SELECT id AS over_id FROM messages WHERE status='queued' AND expires_at<=@now@
				ORDER BY expires_at LIMIT CAST($1 AS BIGINT) @skip@)
			UPDATE messages SET status='expired', error_code='EXPIRED',
				error_detail='The message waited longer than its time to live and was not sent.'
			FROM over WHERE id=over_id AND status='queued'
			RETURNING `+changedColumns, limit)
		n = len(changed)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("expire messages: %w", err)
	}
	return n, nil
}

// changedColumns is what a statement returns so that changeMessages can tell of it.
const changedColumns = `id, seq, org_id, session_id, conversation_id, status, outcome, error_code, error_detail, @now@`

// changeMessages runs an UPDATE … RETURNING changedColumns and writes a message.status event for
// every message it changed, and message.suppressed for those that are, in the caller's transaction. The events tell the statement's time. All rows
// are changed before the first event, and streams are locked in id order, so that two such
// transactions lock in the same order.
func (s *Store) changeMessages(ctx context.Context, q string, args ...any) ([]fleet.Message, error) {
	var changed []fleet.Message
	var now time.Time
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var m fleet.Message
		err := row.Scan(&m.ID, &m.Seq, &m.OrgID, &m.SessionID, &m.ConversationID, &m.Status, &m.Outcome, &m.ErrorCode, &m.ErrorDetail, at{&now})
		changed = append(changed, m)
		return err
	}, q, args...)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(changed, func(a, b fleet.Message) int {
		return cmp.Or(cmp.Compare(a.ConversationID, b.ConversationID), cmp.Compare(a.Seq, b.Seq))
	})
	events := make([]fleet.Event, 0, len(changed))
	for _, m := range changed {
		ev := statusEvent(m, now)
		events = append(events, ev)
		if m.Status == fleet.StatusSuppressed {
			ev.Kind = fleet.EventMessageSuppressed
			events = append(events, ev)
		}
	}
	if err := s.appendEvents(ctx, events); err != nil {
		return nil, err
	}
	return changed, nil
}

// statusEvent tells what a message has become.
func statusEvent(m fleet.Message, when time.Time) fleet.Event {
	return fleet.Event{
		OrgID: m.OrgID, Kind: fleet.EventMessageStatus, SessionID: m.SessionID, ConversationID: m.ConversationID,
		Data: fleet.EventData{MessageID: m.ID, Status: m.Status, Outcome: m.Outcome, Code: m.ErrorCode, Detail: m.ErrorDetail, At: ms(when)},
	}
}

// HeadSlug is what an organization's consumers see as sessionId, whichever session sends: the slug of
// its head session, "" before the first one.
func (s *Store) HeadSlug(ctx context.Context, org fleet.OrgID) (fleet.SessionSlug, error) {
	var slug fleet.SessionSlug
	err := s.row(ctx, `SELECT h.slug FROM organizations o JOIN sessions h ON h.id=o.head_session_id WHERE o.id=$1`, org).Scan(&slug)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("head session of %s: %w", org, unavailable(err))
	}
	return slug, nil
}
