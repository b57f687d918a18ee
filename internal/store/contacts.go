package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

// Known is what an organization knows of a person.
type Known struct {
	fleet.Contact
	OptedOut bool
}

// name is one thing that a person is found under in an organization: a match key, or the id of a contact.
type name struct {
	Org  fleet.OrgID `json:"org"`
	Name string      `json:"name"`
}

func compareNames(a, b name) int {
	return cmp.Or(cmp.Compare(a.Org, b.Org), cmp.Compare(a.Name, b.Name))
}

// contactLook asks who a recipient is.
type contactLook struct {
	name  name
	found *Known
}

// Recipient says what the organization knows of a recipient: nil if nothing, or fleet.ErrNotFound for a
// contact's id that is none of its own. Callers that ask at about the same time share one statement.
func (s *Store) Recipient(ctx context.Context, org fleet.OrgID, r fleet.Recipient) (*Known, error) {
	look := &contactLook{name: name{org, cmp.Or(string(r.Contact), r.ContactKey)}}
	err := s.contactLooks.Do(ctx, look)
	if err == nil && look.found == nil && r.Contact != "" {
		err = fleet.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("look up recipient: %w", err)
	}
	return look.found, nil
}

func (s *Store) lookAtContacts(ctx context.Context, looks []*contactLook) error {
	names := make([]name, len(looks))
	for i, look := range looks {
		names[i] = look.name
	}
	found, err := s.findContacts(ctx, names)
	for _, look := range looks {
		if k, ok := found[look.name]; ok {
			look.found = &k
		}
	}
	return err
}

const contactColumns = `c.id, c.org_id, c.contact_key, c.phone, c.lid, c.jid, c.conversation_id, c.checked_at, c.absent, c.created_at`

func contactFields(c *fleet.Contact) []any {
	return []any{&c.ID, &c.OrgID, &c.Key, &c.Phone, &c.LID, &c.JID, &c.ConversationID, at{&c.CheckedAt}, &c.Absent, at{&c.CreatedAt}}
}

const findContacts = `SELECT w.org, w.name, ` + contactColumns + `, (SELECT 1 FROM opt_outs o WHERE o.org_id=w.org AND o.contact_key=c.contact_key AND o.active LIMIT 1) IS NOT NULL
	FROM (SELECT r.org, r.name, coalesce((SELECT a.contact_id FROM contact_aliases a WHERE a.org_id=r.org AND a.alias=r.name), r.name) AS contact
		FROM @rows:$1(org text, name text)@ AS r) AS w `

func (s *Store) findContacts(ctx context.Context, names []name) (map[name]Known, error) {
	names = slices.Clone(names)
	slices.SortFunc(names, compareNames)
	names = slices.Compact(names)
	found := make(map[name]Known, len(names))
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var n name
		var k Known
		err := row.Scan(append(append([]any{&n.Org, &n.Name}, contactFields(&k.Contact)...), &k.OptedOut)...)
		found[n] = k
		return err
	}, findContacts+s.perRow("contacts", "c", "c.id=w.contact AND c.org_id=w.org"), rowList(names))
	return found, err
}

// newContact is a contact to be made, and one of the names it is to be found under.
type newContact struct {
	Org          fleet.OrgID          `json:"org"`
	Alias        string               `json:"alias"`
	ID           fleet.ContactID      `json:"contact"`
	Key          string               `json:"match,omitempty"`
	Phone        string               `json:"phone"`
	LID          string               `json:"lid"`
	Conversation fleet.ConversationID `json:"exchange"`
}

// makeContacts makes contacts under the names that nobody took meanwhile. Whoever else makes the same at the
// same time waits for us, or we for them.
func (s *Store) makeContacts(ctx context.Context, fresh []newContact) error {
	slices.SortFunc(fresh, func(a, b newContact) int { return cmp.Or(cmp.Compare(a.Org, b.Org), cmp.Compare(a.Alias, b.Alias)) })
	made := map[fleet.ContactID]bool{}
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var id fleet.ContactID
		err := row.Scan(&id)
		made[id] = true
		return err
	}, `INSERT INTO contact_aliases (org_id, alias, contact_id) SELECT r.org, r.alias, r.contact
		FROM @rows:$1(org text, alias text, contact text)@ AS r WHERE TRUE ORDER BY r.org, r.alias
		ON CONFLICT (org_id, alias) DO NOTHING RETURNING contact_id`, rowList(fresh))
	if err != nil {
		return err
	}
	mine := slices.DeleteFunc(slices.Clone(fresh), func(n newContact) bool { return n.Key == "" || !made[n.ID] })
	if len(mine) == 0 {
		return nil
	}
	_, err = s.exec(ctx, `INSERT INTO contacts (id, org_id, contact_key, phone, lid, conversation_id, created_at)
		SELECT r.contact, r.org, r.match, r.phone, r.lid, r.exchange, @now@
		FROM @rows:$1(contact text, org text, match text, phone text, lid text, exchange text)@ AS r`, rowList(mine))
	return err
}

// newContacts are the rows that make one contact of a person. The first carries what the contact is.
func newContacts(org fleet.OrgID, p fleet.Person) []newContact {
	n := newContact{Org: org, ID: fleet.NewContactID(), Phone: p.Phone, LID: p.LID, Conversation: fleet.NewConversationID()}
	var rows []newContact
	for i, key := range p.Keys() {
		row := n
		if row.Alias = key; i == 0 {
			row.Key = key
		}
		rows = append(rows, row)
	}
	return rows
}

// conversations fills in the conversations of messages that have none yet, and makes contacts of people who
// are none.
func (s *Store) conversations(ctx context.Context, messages []*fleet.Message) error {
	var wanted []name
	for _, m := range messages {
		if m.ConversationID != "" {
			continue
		}
		if m.OrgID == "" || m.ContactKey == "" {
			return fmt.Errorf("conversation of organization %q: blank organization or contact: %w", m.OrgID, fleet.ErrInvalid)
		}
		wanted = append(wanted, name{m.OrgID, m.ContactKey})
	}
	if len(wanted) == 0 {
		return nil
	}
	found, err := s.findContacts(ctx, wanted)
	if err != nil {
		return fmt.Errorf("conversations: %w", err)
	}
	var fresh []newContact
	for _, m := range messages {
		n := name{m.OrgID, m.ContactKey}
		if _, ok := found[n]; ok || m.ConversationID != "" {
			continue
		}
		rows := newContacts(m.OrgID, personOf(m.ToJID, m.ContactKey))
		fresh = append(fresh, rows...)
		found[n] = Known{Contact: fleet.Contact{ConversationID: rows[0].Conversation}}
	}
	if len(fresh) > 0 {
		if err = s.makeContacts(ctx, fresh); err == nil {
			found, err = s.findContacts(ctx, wanted)
		}
	}
	if err != nil {
		return fmt.Errorf("conversations: %w", err)
	}
	for _, m := range messages {
		m.ConversationID = cmp.Or(m.ConversationID, found[name{m.OrgID, m.ContactKey}].ConversationID)
		if m.ConversationID == "" {
			return errors.New("conversations: a contact is gone that another request made")
		}
	}
	return nil
}

// Conversation returns the id of an organization's exchange with one person and makes the contact at the
// first. contactKey is a match key (fleet.ContactKey) and never blank. Two callers at once get the same id.
func (s *Store) Conversation(ctx context.Context, org fleet.OrgID, contactKey string) (fleet.ConversationID, error) {
	m := fleet.Message{OrgID: org, ContactKey: contactKey}
	err := s.InTx(ctx, func(ctx context.Context) error { return s.conversations(ctx, []*fleet.Message{&m}) })
	return m.ConversationID, err
}

// personOf reads a person from what a message says of its recipient.
func personOf(jid, key string) fleet.Person {
	if phone, ok := strings.CutSuffix(jid, "@s.whatsapp.net"); ok {
		return fleet.Person{Phone: phone}
	}
	if lid, ok := strings.CutPrefix(key, "lid:"); ok {
		return fleet.Person{LID: lid}
	}
	return fleet.Person{Phone: key}
}

// GetContact reads a contact, also by the id of one that was merged into it; another organization's is
// fleet.ErrNotFound.
func (s *Store) GetContact(ctx context.Context, org fleet.OrgID, id fleet.ContactID) (Known, error) {
	n := name{org, string(id)}
	found, err := s.findContacts(ctx, []name{n})
	k, ok := found[n]
	if err == nil && !ok {
		err = fleet.ErrNotFound
	}
	if err != nil {
		return Known{}, fmt.Errorf("contact %q: %w", id, err)
	}
	return k, nil
}

// Asker is a session of the organization that can ask WhatsApp something now; fleet.ErrNotFound if there is none.
func (s *Store) Asker(ctx context.Context, org fleet.OrgID) (fleet.SessionID, error) {
	var id fleet.SessionID
	err := s.row(ctx, `SELECT s.id FROM sessions s JOIN leases l ON l.session_id=s.id
		WHERE s.org_id=$1 AND s.desired='running' AND s.observed='connected' AND s.observed_epoch=l.epoch AND l.expires_at>@now@
		ORDER BY s.paused, s.position LIMIT 1`, org).Scan(&id)
	if err != nil {
		return "", fmt.Errorf("session of %s that can ask WhatsApp: %w", org, notFound(err))
	}
	return id, nil
}
