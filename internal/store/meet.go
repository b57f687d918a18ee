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

// Sighting is what WhatsApp told of a person.
type Sighting struct {
	Person fleet.Person // what belongs together, as WhatsApp writes it
	Asked  string       // the number that it was asked for, in digits; "" = none
	// Present: there is an account. Absent: there is none. Neither: it was not asked.
	Present, Absent bool
}

// keys are all names that the person goes by, in one order for everybody.
func (g Sighting) keys() []string {
	keys := g.Person.Keys()
	if g.Asked != "" {
		keys = append(keys, fleet.ContactKey(g.Asked, ""))
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// Met is the contact that Meet found.
type Met struct {
	Known
	// Merged are the match keys that went by others before; what goes by them belongs to Key now.
	Merged []string
}

// retold is how often the same word of WhatsApp is written down again.
const retold = 24 * time.Hour

// Meet finds the contact that WhatsApp told of, or makes it, and remembers what was told. Contacts that turn
// out to be one person become one: the oldest stays, with its conversation, and takes the names, the open
// messages and the opt-outs of the others. Locks are taken in the order contacts by id, messages by seq,
// streams by id.
func (s *Store) Meet(ctx context.Context, org fleet.OrgID, g Sighting) (Met, error) {
	keys := g.keys()
	if org == "" || len(keys) == 0 {
		return Met{}, fmt.Errorf("meet a person of organization %q: blank organization or person: %w", org, fleet.ErrInvalid)
	}
	var met Met
	err := s.InTx(ctx, func(ctx context.Context) (err error) {
		met, err = s.meet(ctx, org, keys, g)
		return err
	})
	if err != nil {
		return Met{}, fmt.Errorf("meet a person of organization %s: %w", org, err)
	}
	return met, nil
}

func (s *Store) meet(ctx context.Context, org fleet.OrgID, keys []string, g Sighting) (Met, error) {
	names := make([]name, len(keys))
	for i, key := range keys {
		names[i] = name{org, key}
	}
	var merged []fleet.Contact
	var learned []string // names that led to nobody before
	for range 8 {        // nearly always the first look is the last
		found, err := s.findContacts(ctx, names)
		if err != nil {
			return Met{}, err
		}
		contacts := map[fleet.ContactID]Known{}
		var unknown []newContact
		for _, n := range names {
			if k, ok := found[n]; ok {
				contacts[k.ID] = k
			} else {
				unknown = append(unknown, newContact{Org: org, Alias: n.Name})
				learned = append(learned, n.Name)
			}
		}
		ids := slices.Sorted(maps.Keys(contacts))
		switch {
		case len(ids) == 0:
			err = s.makeContacts(ctx, newContacts(org, g.person()))
		case len(ids) > 1:
			var gone []fleet.Contact
			gone, err = s.mergeContacts(ctx, org, ids)
			merged = append(merged, gone...)
		case len(unknown) > 0:
			for i := range unknown {
				unknown[i].ID = ids[0]
			}
			if err = s.makeContacts(ctx, unknown); err == nil {
				err = s.spreadOptOuts(ctx, ids)
			}
		default:
			return s.remember(ctx, contacts[ids[0]], merged, learned, g)
		}
		if err != nil {
			return Met{}, err
		}
	}
	return Met{}, fmt.Errorf("its contacts change all the time: %w", fleet.ErrUnavailable)
}

// person is what a contact is made of.
func (g Sighting) person() fleet.Person {
	p := g.Person
	p.Phone = cmp.Or(p.Phone, g.Asked)
	return p
}

// remember writes down what was told of a contact, as far as it is news, and tells of a person who has become
// known under another name. Chats that waited under a name of nobody become the person's.
func (s *Store) remember(ctx context.Context, k Known, merged []fleet.Contact, learned []string, g Sighting) (Met, error) {
	before := k.Contact
	k.Phone = cmp.Or(g.Person.Phone, k.Phone, g.Asked)
	k.LID = cmp.Or(g.Person.LID, k.LID)
	for _, m := range merged {
		k.Phone, k.LID, k.JID = cmp.Or(k.Phone, m.Phone), cmp.Or(k.LID, m.LID), cmp.Or(k.JID, m.JID)
	}
	k.Key = fleet.ContactKey(k.Phone, k.LID)
	if g.Present || g.Absent {
		if k.Absent, k.JID = g.Absent, ""; g.Present {
			k.JID = k.Person().Address()
		}
		if now := s.clockTime(); g.Absent || before.Absent || k.JID != before.JID || now.Sub(before.CheckedAt) > retold {
			k.CheckedAt = now
		}
	}
	met := Met{Known: k}
	for _, m := range slices.Concat(merged, []fleet.Contact{before}) {
		if m.Key != k.Key && !slices.Contains(met.Merged, m.Key) {
			met.Merged = append(met.Merged, m.Key)
		}
	}
	former := slices.DeleteFunc(append(learned, met.Merged...), func(key string) bool { return key == k.Key })
	slices.Sort(former)
	if err := s.moveChats(ctx, k.OrgID, k.Key, slices.Compact(former)); err != nil {
		return met, err
	}
	if k.Contact == before && len(merged) == 0 {
		return met, nil
	}
	_, err := s.exec(ctx, `UPDATE contacts SET contact_key=$2, phone=$3, lid=$4, jid=$5, checked_at=$6, absent=$7 WHERE id=$1`,
		k.ID, k.Key, k.Phone, k.LID, k.JID, ms(k.CheckedAt), k.Absent)
	if err != nil || len(met.Merged) == 0 && len(merged) == 0 {
		return met, err
	}
	if err := s.moveMessages(ctx, k.Contact, append(slices.Clone(met.Merged), k.Key)); err != nil {
		return met, err
	}
	data := fleet.EventData{Contact: k.ID}
	for _, m := range merged {
		data.MergedContacts = append(data.MergedContacts, m.ID)
		data.MergedConversations = append(data.MergedConversations, m.ConversationID)
	}
	_, err = s.AppendEvent(ctx, fleet.Event{OrgID: k.OrgID, Kind: fleet.EventContactUpdated, ConversationID: k.ConversationID, Data: data})
	return met, err
}

// clockTime is the process's time, or the test's.
func (s *Store) clockTime() time.Time {
	if s.now != nil {
		return s.now().UTC().Truncate(time.Millisecond)
	}
	return time.Now().UTC().Truncate(time.Millisecond)
}

// mergeContacts makes one contact of several and returns those that are gone. It does nothing if somebody
// else was faster: the next look sees what they made.
func (s *Store) mergeContacts(ctx context.Context, org fleet.OrgID, ids []fleet.ContactID) ([]fleet.Contact, error) {
	var keyed string
	if err := s.row(ctx, `SELECT @keyed@`).Scan(&keyed); err != nil {
		return nil, unavailable(err)
	}
	var all []fleet.Contact
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var c fleet.Contact
		err := row.Scan(contactFields(&c)...)
		all = append(all, c)
		return err
	}, `SELECT `+contactColumns+` FROM contacts c WHERE c.id IN (SELECT id FROM @ids:$1@ AS wanted) ORDER BY c.id @update@`, idList(ids))
	if err != nil || len(all) != len(ids) {
		return nil, err
	}
	slices.SortFunc(all, func(a, b fleet.Contact) int { return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID)) })
	stays, gone := all[0].ID, all[1:]
	var former []newContact
	for _, c := range gone {
		former = append(former, newContact{Org: org, Alias: string(c.ID), ID: stays})
		if _, err := s.exec(ctx, `UPDATE contact_aliases SET contact_id=$2 WHERE contact_id=$1`, c.ID, stays); err != nil {
			return nil, err
		}
		if _, err := s.exec(ctx, `DELETE FROM contacts WHERE id=$1`, c.ID); err != nil {
			return nil, err
		}
	}
	if err := s.makeContacts(ctx, former); err != nil { // their ids still lead to the one that stays
		return nil, err
	}
	order := []fleet.ContactID{stays}
	for _, c := range gone {
		order = append(order, c.ID)
	}
	return gone, s.spreadOptOuts(ctx, order)
}

// moveMessages gives a person's open messages the match key and the conversation that count now, so that they
// go one after the other. Those whose life is over stay as they were told.
func (s *Store) moveMessages(ctx context.Context, c fleet.Contact, keys []string) error {
	_, err := s.exec(ctx, `WITH moved AS MATERIALIZED (SELECT m.seq AS place FROM sessions s JOIN messages m ON m.session_id=s.id AND m.status IN ('queued', 'sending')
			WHERE s.org_id=$1 AND m.contact_key IN (SELECT id FROM @ids:$2@ AS names)
				AND (m.contact_key<>$3 OR m.conversation_id<>$4) ORDER BY m.seq `+s.forUpdateOf("m")+`)
		UPDATE messages SET contact_key=$3, conversation_id=$4 FROM moved WHERE seq=moved.place`, c.OrgID, idList(keys), c.Key, c.ConversationID)
	return err
}

func (s *Store) forUpdateOf(table string) string {
	if s.Postgres() {
		return "FOR UPDATE OF " + table
	}
	return ""
}
