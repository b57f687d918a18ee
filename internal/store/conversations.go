package store

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

// Conversation returns the id of an organization's exchange with one person and makes it at the
// first contact. contactKey is a match key (fleet.ContactKey) and never blank. Two callers at once
// get the same id.
func (s *Store) Conversation(ctx context.Context, org fleet.OrgID, contactKey string) (fleet.ConversationID, error) {
	m := fleet.Message{OrgID: org, ContactKey: contactKey}
	err := s.conversations(ctx, []*fleet.Message{&m})
	return m.ConversationID, err
}

// exchange is what a conversation is between.
type exchange struct {
	Org     fleet.OrgID          `json:"org"`
	Contact string               `json:"contact"`
	Fresh   fleet.ConversationID `json:"fresh,omitempty"` // of one to be made
}

// conversations fills in the conversations of messages that have none yet.
func (s *Store) conversations(ctx context.Context, messages []*fleet.Message) error {
	var wanted []exchange
	for _, m := range messages {
		if m.ConversationID != "" {
			continue
		}
		if m.OrgID == "" || m.ContactKey == "" {
			return fmt.Errorf("conversation of organization %q: blank organization or contact: %w", m.OrgID, fleet.ErrInvalid)
		}
		wanted = append(wanted, exchange{Org: m.OrgID, Contact: m.ContactKey})
	}
	if len(wanted) == 0 {
		return nil
	}
	slices.SortFunc(wanted, func(a, b exchange) int { return cmp.Or(cmp.Compare(a.Org, b.Org), cmp.Compare(a.Contact, b.Contact)) })
	wanted = slices.Compact(wanted)
	// Look first: nearly every message belongs to a conversation that exists.
	found, missing, err := s.findConversations(ctx, wanted)
	if err == nil && len(missing) > 0 {
		for i := range missing {
			missing[i].Fresh = fleet.NewConversationID()
		}
		_, err = s.exec(ctx, `INSERT INTO conversations (id, org_id, contact_key, created_at)
			SELECT r.fresh, r.org, r.contact, @now@ FROM @rows:$1(org text, contact text, fresh text)@ AS r WHERE TRUE
			ON CONFLICT (org_id, contact_key) DO NOTHING`, rowList(missing))
		if err == nil {
			found, missing, err = s.findConversations(ctx, wanted)
		}
		if err == nil && len(missing) > 0 {
			err = sql.ErrNoRows // they are never deleted
		}
	}
	if err != nil {
		return fmt.Errorf("conversations: %w", unavailable(err))
	}
	for _, m := range messages {
		m.ConversationID = cmp.Or(m.ConversationID, found[exchange{Org: m.OrgID, Contact: m.ContactKey}])
	}
	return nil
}

func (s *Store) findConversations(ctx context.Context, wanted []exchange) (found map[exchange]fleet.ConversationID, missing []exchange, err error) {
	found = make(map[exchange]fleet.ConversationID, len(wanted))
	err = s.query(ctx, func(row dbutil.Scannable) error {
		var e exchange
		var id sql.Null[fleet.ConversationID]
		if err := row.Scan(&e.Org, &e.Contact, &id); err != nil {
			return err
		}
		if !id.Valid {
			missing = append(missing, e)
			return nil
		}
		found[e] = id.V
		return nil
	}, `SELECT r.org, r.contact, (SELECT c.id FROM conversations c WHERE c.org_id=r.org AND c.contact_key=r.contact)
		FROM @rows:$1(org text, contact text)@ AS r`, rowList(wanted))
	return found, missing, err
}
