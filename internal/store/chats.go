package store

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

// A chat says what one session and one person have written to each other, by the person's match key.
// Accepting the first message to somebody writes when we first wrote; the owner of a session writes
// when somebody wrote to it. Times of what came last are accurate to an hour, so that most messages
// write nothing here.

// chatStale is how far behind a chat's last times may be.
const chatStale = time.Hour

// chatLook asks for one person's chats.
type chatLook struct {
	key   string
	found []fleet.Chat
}

// Chats reads what one person, by match key, and each of the sessions of all organizations have written to
// each other. Callers that ask at about the same time share one statement, which begins after they asked.
func (s *Store) Chats(ctx context.Context, contactKey string) ([]fleet.Chat, error) {
	look := &chatLook{key: contactKey}
	if err := s.chatLooks.Do(ctx, look); err != nil {
		return nil, fmt.Errorf("look for chats: %w", err)
	}
	return look.found, nil
}

func (s *Store) lookForChats(ctx context.Context, looks []*chatLook) error {
	found := map[string][]fleet.Chat{}
	keys := make([]string, 0, len(looks))
	for _, look := range looks {
		if _, ok := found[look.key]; !ok {
			found[look.key] = nil
			keys = append(keys, look.key)
		}
	}
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var key string
		var c fleet.Chat
		err := row.Scan(&key, &c.SessionID, at{&c.FirstOutAt}, at{&c.LastOutAt}, at{&c.FirstInAt}, at{&c.LastInAt}, at{&c.TokenAt})
		found[key] = append(found[key], c)
		return err
	}, `SELECT c.contact_key, c.session_id, c.first_out_at, c.last_out_at, c.first_in_at, c.last_in_at, c.token_at
		FROM @ids:$1@ AS wanted `+s.perRow("chats", "c", "c.contact_key=wanted.id"), rowList(keys))
	if err != nil {
		return err
	}
	for _, look := range looks {
		look.found = found[look.key]
	}
	return nil
}

type chatArg struct {
	Contact string          `json:"contact"`
	Session fleet.SessionID `json:"session"`
}

// byChat is the order in which chats are locked.
func byChat(a, b chatArg) int {
	return cmp.Or(cmp.Compare(a.Contact, b.Contact), cmp.Compare(a.Session, b.Session))
}

// writeOut notes that messages were queued which open their chat, or whose chat was last written to a
// while ago. Chats are locked in the order of their keys.
func (s *Store) writeOut(ctx context.Context, messages []*fleet.Message, stored map[fleet.MessageID]bool, wanted map[fleet.MessageID]wish) error {
	var args []chatArg
	for _, m := range messages {
		if stored[m.ID] && (m.Opened || wanted[m.ID].touch) && !m.Parked {
			args = append(args, chatArg{m.ContactKey, m.SessionID})
		}
	}
	if len(args) == 0 {
		return nil
	}
	slices.SortFunc(args, byChat)
	_, err := s.exec(ctx, `INSERT INTO chats (contact_key, session_id, first_out_at, last_out_at)
		SELECT r.contact, r.session, @now@, @now@ FROM @rows:$1(contact text, session text)@ AS r WHERE TRUE
		ON CONFLICT (contact_key, session_id) DO UPDATE SET last_out_at=@now@,
			first_out_at=CASE WHEN chats.first_out_at=0 THEN @now@ ELSE chats.first_out_at END`, rowList(slices.Compact(args)))
	if err != nil {
		return fmt.Errorf("write chats: %w", err)
	}
	return nil
}

// unopen takes back that a message opened a chat, unless another one has been written there since.
func (s *Store) unopen(ctx context.Context, chat chatArg) error {
	_, err := s.exec(ctx, `UPDATE chats SET first_out_at=0 WHERE contact_key=$1 AND session_id=$2 AND first_out_at>0
		AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.session_id=$2 AND m.contact_key=$1 AND m.created_at>=chats.first_out_at
			AND NOT `+endedUnsent+`)`, chat.Contact, chat.Session)
	return err
}

// ChatStale reports whether the next message out should be noted in the chat.
func ChatStale(c *fleet.Chat, now time.Time) bool { return now.Sub(c.LastOutAt) >= chatStale }

// WriteIn notes, in the caller's transaction, that somebody wrote to a session at a time by WhatsApp's
// clock, now at the latest. It reports whether it is the first for an hour or the first ever.
func (s *Store) WriteIn(ctx context.Context, session fleet.SessionID, contactKey string, when time.Time) (bool, error) {
	n, err := s.exec(ctx, `INSERT INTO chats (contact_key, session_id, first_in_at, last_in_at)
		SELECT $1, $2, t.at, t.at FROM (SELECT CASE WHEN CAST($3 AS BIGINT)=0 OR CAST($3 AS BIGINT)>@now@ THEN @now@ ELSE CAST($3 AS BIGINT) END AS at) AS t WHERE TRUE
		ON CONFLICT (contact_key, session_id) DO UPDATE SET last_in_at=excluded.last_in_at,
			first_in_at=CASE WHEN chats.first_in_at=0 THEN excluded.first_in_at ELSE chats.first_in_at END
		WHERE chats.last_in_at<=excluded.last_in_at-3600000`, contactKey, session, ms(when))
	if err != nil {
		return false, fmt.Errorf("write chat of session %s: %w", session, err)
	}
	return n > 0, nil
}

// Token is when somebody gave a session their trusted-contact token: WhatsApp's proof that they are no strangers.
type Token struct {
	Person fleet.Person // as far as it is known
	At     time.Time
}

// KeepTokens notes, in the caller's transaction, the times of people's tokens for a session. It makes no
// contacts: of people whom the organization doesn't know, the chats wait under the match key that a first
// message to them will have.
func (s *Store) KeepTokens(ctx context.Context, session fleet.SessionID, tokens []Token) error {
	type arg struct {
		Contact string `json:"contact"`
		Stamp   int64  `json:"stamp"`
	}
	if len(tokens) == 0 {
		return nil
	}
	var org fleet.OrgID
	err := s.row(ctx, `SELECT org_id FROM sessions WHERE id=$1`, session).Scan(&org)
	if err != nil {
		return fmt.Errorf("keep tokens of session %s: %w", session, notFound(err))
	}
	var names []name
	for _, t := range tokens {
		for _, key := range t.Person.Keys() {
			names = append(names, name{org, key})
		}
	}
	found, err := s.findContacts(ctx, names)
	if err != nil {
		return fmt.Errorf("keep tokens of session %s: %w", session, err)
	}
	latest := map[string]int64{}
	for _, t := range tokens {
		keys := t.Person.Keys()
		if len(keys) == 0 {
			continue
		}
		key := keys[0]
		for _, k := range keys {
			if c, ok := found[name{org, k}]; ok {
				key = c.Key
				break
			}
		}
		latest[key] = max(latest[key], ms(t.At))
	}
	args := make([]arg, 0, len(latest))
	for _, key := range slices.Sorted(maps.Keys(latest)) {
		args = append(args, arg{key, latest[key]})
	}
	_, err = s.exec(ctx, `INSERT INTO chats (contact_key, session_id, token_at)
		SELECT r.contact, $2, r.stamp FROM @rows:$1(contact text, stamp bigint)@ AS r WHERE TRUE ORDER BY r.contact
		ON CONFLICT (contact_key, session_id) DO UPDATE SET token_at=excluded.token_at WHERE chats.token_at<excluded.token_at`,
		rowList(args), session)
	if err != nil {
		return fmt.Errorf("keep tokens of session %s: %w", session, err)
	}
	return nil
}

// moveChats gives a person's chats with an organization's sessions, or with all that there are, the match key that
// counts now. Of two chats with one session the earliest first and the latest last times count.
func (s *Store) moveChats(ctx context.Context, org fleet.OrgID, key string, former []string) error {
	first := func(at string) string {
		return at + `=CASE WHEN chats.` + at + `=0 OR excluded.` + at + `>0 AND excluded.` + at + `<chats.` + at + ` THEN excluded.` + at + ` ELSE chats.` + at + ` END`
	}
	last := func(at string) string {
		return at + `=CASE WHEN excluded.` + at + `>chats.` + at + ` THEN excluded.` + at + ` ELSE chats.` + at + ` END`
	}
	type arg struct {
		Session  fleet.SessionID `json:"session"`
		FirstOut int64           `json:"first_out"`
		LastOut  int64           `json:"last_out"`
		FirstIn  int64           `json:"first_in"`
		LastIn   int64           `json:"last_in"`
		Token    int64           `json:"token"`
	}
	for _, old := range former {
		var moved []arg // nearly always none
		err := s.query(ctx, func(row dbutil.Scannable) error {
			var m arg
			err := row.Scan(&m.Session, &m.FirstOut, &m.LastOut, &m.FirstIn, &m.LastIn, &m.Token)
			moved = append(moved, m)
			return err
		}, `DELETE FROM chats WHERE contact_key=$2 AND ($1='' OR session_id IN (SELECT id FROM sessions WHERE org_id=$1))
			RETURNING session_id, first_out_at, last_out_at, first_in_at, last_in_at, token_at`, string(org), old)
		if err == nil && len(moved) > 0 {
			slices.SortFunc(moved, func(a, b arg) int { return cmp.Compare(a.Session, b.Session) })
			_, err = s.exec(ctx, `INSERT INTO chats (contact_key, session_id, first_out_at, last_out_at, first_in_at, last_in_at, token_at)
				SELECT $2, r.session, r.first_out, r.last_out, r.first_in, r.last_in, r.token
				FROM @rows:$1(session text, first_out bigint, last_out bigint, first_in bigint, last_in bigint, token bigint)@ AS r WHERE TRUE ORDER BY r.session
				ON CONFLICT (contact_key, session_id) DO UPDATE SET `+first("first_out_at")+`, `+last("last_out_at")+`, `+first("first_in_at")+`, `+
				last("last_in_at")+`, `+last("token_at"), rowList(moved), key)
		}
		if err != nil {
			return fmt.Errorf("chats of one person: %w", err)
		}
	}
	return nil
}

// chatAge is when a chat was last of use, word for word as in the index chats_age.
const chatAge = `(CASE WHEN last_out_at>=last_in_at AND last_out_at>=token_at THEN last_out_at WHEN last_in_at>=token_at THEN last_in_at ELSE token_at END)`

// PurgeChats deletes up to limit chats in which nobody wrote and no token came since a time, which is longer ago than
// anybody is warm. Who hears from that number again is a new chat. It returns how many are gone.
func (s *Store) PurgeChats(ctx context.Context, before time.Time, limit int) (int, error) {
	n, err := s.exec(ctx, `WITH old AS MATERIALIZED (SELECT contact_key AS old_key, session_id AS old_session FROM chats
			WHERE `+chatAge+`<$1 ORDER BY `+chatAge+` LIMIT CAST($2 AS BIGINT) @skip@)
		DELETE FROM chats WHERE (contact_key, session_id) IN (SELECT old_key, old_session FROM old)`, ms(before), limit)
	if err != nil {
		return 0, fmt.Errorf("purge chats: %w", err)
	}
	return int(n), nil
}
