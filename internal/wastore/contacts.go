package wastore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"go.mau.fi/util/dbutil"
	"go.mau.fi/whatsmeow/store"
	"go.mau.fi/whatsmeow/types"
)

// Contacts are written here and not by whatsmeow's store, which holds a mutex while it asks the
// database: with a fenced transaction around it, senders and receivers would wait for each other
// until the pool is used up.

const contactColumns = `their_jid, first_name, full_name, push_name, business_name, redacted_phone`

var (
	getContact     = newQuery(`SELECT ` + contactColumns + ` FROM whatsmeow_contacts WHERE our_jid=$1 AND their_jid=$2`)
	getAllContacts = newQuery(`SELECT ` + contactColumns + ` FROM whatsmeow_contacts WHERE our_jid=$1`)
	putPushName    = fencedQuery(`INSERT INTO whatsmeow_contacts (our_jid, their_jid, push_name)
		SELECT $4::text, $5::text, $6::text FROM f WHERE TRUE
		ON CONFLICT (our_jid, their_jid) DO UPDATE SET push_name=excluded.push_name`)
	putBusinessName = fencedQuery(`INSERT INTO whatsmeow_contacts (our_jid, their_jid, business_name)
		SELECT $4::text, $5::text, $6::text FROM f WHERE TRUE
		ON CONFLICT (our_jid, their_jid) DO UPDATE SET business_name=excluded.business_name`)
	putContactName = fencedQuery(`INSERT INTO whatsmeow_contacts (our_jid, their_jid, first_name, full_name)
		SELECT $4::text, $5::text, $6::text, $7::text FROM f WHERE TRUE
		ON CONFLICT (our_jid, their_jid) DO UPDATE SET first_name=excluded.first_name, full_name=excluded.full_name`)
)

type contactRow struct {
	jid  types.JID
	info types.ContactInfo
}

func scanContact(row dbutil.Scannable) (c contactRow, err error) {
	var first, full, push, business, redacted sql.NullString
	err = row.Scan(&c.jid, &first, &full, &push, &business, &redacted)
	c.info = types.ContactInfo{
		Found: err == nil, FirstName: first.String, FullName: full.String,
		PushName: push.String, BusinessName: business.String, RedactedPhone: redacted.String,
	}
	return c, err
}

func (s *deviceStore) GetContact(ctx context.Context, user types.JID) (types.ContactInfo, error) {
	if err := s.f.check(ctx); err != nil {
		return types.ContactInfo{}, err
	}
	if s.f.cached(ctx, &s.contacts) {
		if info, ok := s.contacts.get(user); ok {
			return info, nil
		}
	}
	version := s.contacts.reading()
	c, err := scanContact(s.f.c.db.QueryRow(ctx, s.f.c.text(getContact), s.jid, user.String()))
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return types.ContactInfo{}, s.f.fail(ctx, err)
	}
	if s.f.cached(ctx, &s.contacts) {
		s.f.committed(ctx, func() { s.contacts.fill(user, c.info, version) })
	}
	return c.info, nil
}

func (s *deviceStore) GetAllContacts(ctx context.Context) (map[types.JID]types.ContactInfo, error) {
	return read(ctx, s.f, func(ctx context.Context) (map[types.JID]types.ContactInfo, error) {
		out := map[types.JID]types.ContactInfo{}
		rows, err := s.f.c.db.Query(ctx, s.f.c.text(getAllContacts), s.jid)
		err = dbutil.NewRowIterWithError(rows, scanContact, err).Iter(func(c contactRow) (bool, error) {
			out[c.jid] = c.info
			return true, nil
		})
		return out, err
	})
}

// putName writes one contact where change says that something changes.
func (s *deviceStore) putName(ctx context.Context, user types.JID, change func(*types.ContactInfo) bool, q query, args ...any) (bool, error) {
	info, err := s.GetContact(ctx, user)
	if err != nil || !change(&info) {
		return false, err
	}
	info.Found = true
	version := s.contacts.change(user)
	s.f.changing(ctx, &s.contacts)
	if err := s.f.write(ctx, q, append([]any{s.jid, user.String()}, args...)...); err != nil {
		return false, err
	}
	s.f.committed(ctx, func() { s.contacts.changed(user, info, version) })
	return true, nil
}

func (s *deviceStore) PutPushName(ctx context.Context, user types.JID, pushName string) (changed bool, previous string, err error) {
	changed, err = s.putName(ctx, user, func(c *types.ContactInfo) bool {
		if c.PushName == pushName {
			return false
		}
		previous, c.PushName = c.PushName, pushName
		return true
	}, putPushName, pushName)
	if !changed {
		previous = ""
	}
	return changed, previous, err
}

func (s *deviceStore) PutBusinessName(ctx context.Context, user types.JID, businessName string) (changed bool, previous string, err error) {
	changed, err = s.putName(ctx, user, func(c *types.ContactInfo) bool {
		if c.BusinessName == businessName {
			return false
		}
		previous, c.BusinessName = c.BusinessName, businessName
		return true
	}, putBusinessName, businessName)
	if !changed {
		previous = ""
	}
	return changed, previous, err
}

func (s *deviceStore) PutContactName(ctx context.Context, user types.JID, fullName, firstName string) error {
	_, err := s.putName(ctx, user, func(c *types.ContactInfo) bool {
		if c.FullName == fullName && c.FirstName == firstName {
			return false
		}
		c.FullName, c.FirstName = fullName, firstName
		return true
	}, putContactName, firstName, fullName)
	return err
}

func (s *deviceStore) PutAllContactNames(ctx context.Context, contacts []store.ContactEntry) error {
	return s.putContacts(ctx, func(ctx context.Context) error { return s.raw.PutAllContactNames(ctx, contacts) })
}

func (s *deviceStore) PutManyRedactedPhones(ctx context.Context, entries []store.RedactedPhoneEntry) error {
	return s.putContacts(ctx, func(ctx context.Context) error { return s.raw.PutManyRedactedPhones(ctx, entries) })
}

func (s *deviceStore) putContacts(ctx context.Context, fn func(ctx context.Context) error) error {
	s.contacts.clear()
	s.f.changing(ctx, &s.contacts)
	err := s.f.do(ctx, fn)
	if err == nil {
		s.f.committed(ctx, s.contacts.clear)
	}
	return err
}

// ---- chat settings

func (s *deviceStore) PutMutedUntil(ctx context.Context, chat types.JID, mutedUntil time.Time) error {
	return s.f.do(ctx, func(ctx context.Context) error { return s.raw.PutMutedUntil(ctx, chat, mutedUntil) })
}

func (s *deviceStore) PutPinned(ctx context.Context, chat types.JID, pinned bool) error {
	return s.f.do(ctx, func(ctx context.Context) error { return s.raw.PutPinned(ctx, chat, pinned) })
}

func (s *deviceStore) PutArchived(ctx context.Context, chat types.JID, archived bool) error {
	return s.f.do(ctx, func(ctx context.Context) error { return s.raw.PutArchived(ctx, chat, archived) })
}

func (s *deviceStore) GetChatSettings(ctx context.Context, chat types.JID) (types.LocalChatSettings, error) {
	return read(ctx, s.f, func(ctx context.Context) (types.LocalChatSettings, error) { return s.raw.GetChatSettings(ctx, chat) })
}
