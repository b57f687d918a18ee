package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/wafleet/wafleet/internal/fleet"
)

// maxPushName bounds a name that a stranger chose, in code points.
const maxPushName = 256

// InsertInbound stores what somebody sent, once: the unique index on session, chat, WhatsApp id,
// kind and version decides, not a look before. It returns whether the row is new, and the message
// with the id and conversation of the row that is stored now. NUL and invalid UTF-8 don't get in.
func (s *Store) InsertInbound(ctx context.Context, m fleet.Inbound) (bool, fleet.Inbound, error) {
	for _, text := range []*string{&m.Chat, &m.Sender, &m.SenderPhone, &m.SenderLID, &m.PushName, &m.WAID, &m.Kind, &m.Text} {
		*text = clean(*text)
	}
	m.PushName = clip(m.PushName, maxPushName)
	m.ID = fleet.NewInboundID()
	var content []byte
	if m.Content != nil {
		var err error
		if content, err = json.Marshal(m.Content); err != nil {
			return false, m, fmt.Errorf("insert inbound on session %s: %w", m.SessionID, err)
		}
	}
	err := s.row(ctx, `INSERT INTO inbound_messages (id, org_id, session_id, conversation_id, chat, sender, sender_phone, sender_lid, push_name,
			wa_id, kind, version, body, content, raw, offline, sent_at, received_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, @now@)
		ON CONFLICT (session_id, chat, wa_id, kind, version) DO NOTHING RETURNING received_at`,
		m.ID, m.OrgID, m.SessionID, m.ConversationID, m.Chat, m.Sender, m.SenderPhone, m.SenderLID, m.PushName,
		m.WAID, m.Kind, m.Version, s.ring.Seal(string(m.ID), []byte(m.Text)), s.ring.Seal(contentID(m.ID), content), s.ring.Seal(rawID(m.ID), m.Raw), m.Offline, ms(m.SentAt)).
		Scan(at{&m.ReceivedAt})
	if err == nil {
		return true, m, nil
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return false, m, fmt.Errorf("insert inbound on session %s: %w", m.SessionID, unavailable(err))
	}
	err = s.row(ctx, `SELECT id, conversation_id, received_at FROM inbound_messages
		WHERE session_id = $1 AND chat = $2 AND wa_id = $3 AND kind = $4 AND version = $5`, m.SessionID, m.Chat, m.WAID, m.Kind, m.Version).
		Scan(&m.ID, &m.ConversationID, at{&m.ReceivedAt})
	if err != nil {
		return false, m, fmt.Errorf("read inbound of session %s: %w", m.SessionID, notFound(err))
	}
	return false, m, nil
}

// rawID and contentID keep the sealed columns of a row from being swapped.
func rawID(id fleet.InboundID) string     { return string(id) + "/raw" }
func contentID(id fleet.InboundID) string { return string(id) + "/content" }

func clean(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "")
}

func clip(text string, limit int) string {
	if utf8.RuneCountInString(text) <= limit {
		return text
	}
	return string([]rune(text)[:limit])
}

// GetInbound returns one stored message of an organization, opened. org "" is the operator, who
// sees all.
func (s *Store) GetInbound(ctx context.Context, org fleet.OrgID, id fleet.InboundID) (fleet.Inbound, error) {
	var m fleet.Inbound
	var body, content, raw []byte
	err := s.row(ctx, `SELECT id, org_id, session_id, conversation_id, chat, sender, sender_phone, sender_lid, push_name,
			wa_id, kind, version, body, content, raw, offline, sent_at, received_at,
			coalesce((SELECT a.contact_id FROM contact_aliases a WHERE a.org_id = m.org_id AND a.alias = $2 || m.sender_lid),
				(SELECT c.id FROM contacts c WHERE c.conversation_id = m.conversation_id), '')
		FROM inbound_messages m WHERE id = $1`, id, "lid:").
		Scan(&m.ID, &m.OrgID, &m.SessionID, &m.ConversationID, &m.Chat, &m.Sender, &m.SenderPhone, &m.SenderLID, &m.PushName,
			&m.WAID, &m.Kind, &m.Version, &body, &content, &raw, &m.Offline, at{&m.SentAt}, at{&m.ReceivedAt}, &m.ContactID)
	if err == nil && org != "" && m.OrgID != org {
		err = sql.ErrNoRows
	}
	if err != nil {
		return fleet.Inbound{}, fmt.Errorf("inbound %q: %w", id, notFound(err))
	}
	text, err := s.ring.Open(string(m.ID), body)
	if err != nil {
		return fleet.Inbound{}, fmt.Errorf("inbound %s: %w", id, err)
	}
	m.Text = string(text)
	if content, err = s.ring.Open(contentID(m.ID), content); err != nil {
		return fleet.Inbound{}, fmt.Errorf("inbound %s: %w", id, err)
	}
	if content != nil {
		if err := json.Unmarshal(content, &m.Content); err != nil {
			return fleet.Inbound{}, fmt.Errorf("inbound %s: %w", id, err)
		}
	}
	if m.Raw, err = s.ring.Open(rawID(m.ID), raw); err != nil {
		return fleet.Inbound{}, fmt.Errorf("inbound %s: %w", id, err)
	}
	return m, nil
}

// AboutID finds the message that an inbound message is about, in the words of the API: the id of one
// that we sent, or of one that came before it in the chat; "" if neither is known.
func (s *Store) AboutID(ctx context.Context, m fleet.Inbound) (string, error) {
	if m.Content == nil || m.Content.About == "" {
		return "", nil
	}
	var id string
	err := s.row(ctx, `SELECT id FROM messages WHERE session_id = $1 AND wa_id = $2
		UNION ALL
		SELECT id FROM (SELECT id FROM inbound_messages WHERE session_id = $1 AND chat = $3 AND wa_id = $2 ORDER BY n LIMIT 1) AS came
		LIMIT 1`, m.SessionID, m.Content.About, m.Chat).Scan(&id)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("what inbound %s is about: %w", m.ID, unavailable(err))
	}
	return id, nil
}

// PurgeInbound deletes up to limit messages received before a time. It returns how many are gone;
// fewer than limit means that none is left.
func (s *Store) PurgeInbound(ctx context.Context, before time.Time, limit int) (int, error) {
	n, err := s.exec(ctx, `DELETE FROM inbound_messages WHERE n IN (SELECT n FROM inbound_messages WHERE received_at < $1 ORDER BY received_at LIMIT $2)`,
		ms(before), limit)
	if err != nil {
		return 0, fmt.Errorf("purge inbound: %w", err)
	}
	return int(n), nil
}
