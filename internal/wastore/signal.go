package wastore

import (
	"context"
	"database/sql"
	"errors"

	"go.mau.fi/whatsmeow/store"
	"go.mau.fi/whatsmeow/store/sqlstore"
	"go.mau.fi/whatsmeow/types"
)

// deviceStore is everything whatsmeow stores for one device, behind its fence. The raw store is a
// field and not embedded: a method that a newer whatsmeow adds does not compile here until somebody
// has said how it is fenced.
type deviceStore struct {
	f   *Fence
	raw *sqlstore.SQLStore
	jid string

	preKeys    chan struct{} // one slot: pre-key ids are counted up, so one commit after the other
	identities cache[string, [32]byte]
	sessions   cache[string, []byte]
	ratchet    ratchet
	migrated   cache[string, struct{}] // phone numbers whose sessions are under their LID
	contacts   cache[types.JID, types.ContactInfo]
	tokens     cache[types.JID, heldToken]
	salt       cache[struct{}, []byte]
}

var _ store.AllSessionSpecificStores = (*deviceStore)(nil)

func newDeviceStore(f *Fence, jid types.JID) *deviceStore {
	s := &deviceStore{f: f, raw: sqlstore.NewSQLStore(f.c.raw, jid), jid: jid.String(), preKeys: make(chan struct{}, 1), ratchet: newRatchet()}
	s.sessions.max = sessionsMax
	return s
}

// forget empties every cache: the device's rows were replaced.
func (s *deviceStore) forget() {
	s.identities.clear()
	s.sessions.clear()
	s.migrated.clear()
	s.contacts.clear()
	s.tokens.clear()
	s.salt.clear()
}

// ---- identities: libsignal saves one with every encryption and every decryption, nearly always the
// one that is stored already.

var (
	getIdentity = newQuery(`SELECT identity FROM whatsmeow_identity_keys WHERE our_jid=$1 AND their_id=$2`)
	putIdentity = fencedQuery(`INSERT INTO whatsmeow_identity_keys (our_jid, their_id, identity)
		SELECT $4::text, $5::text, $6::bytea FROM f WHERE TRUE
		ON CONFLICT (our_jid, their_id) DO UPDATE SET identity=excluded.identity`)
)

func (s *deviceStore) PutIdentity(ctx context.Context, address string, key [32]byte) error {
	if err := s.f.check(ctx); err != nil {
		return err
	}
	if s.f.cached(ctx, &s.identities) {
		if have, ok := s.identities.get(address); ok && have == key {
			return nil
		}
	}
	version := s.identities.change(address)
	s.f.changing(ctx, &s.identities)
	if err := s.f.write(ctx, putIdentity, s.jid, address, key[:]); err != nil {
		return err
	}
	s.f.committed(ctx, func() { s.identities.changed(address, key, version) })
	return nil
}

func (s *deviceStore) IsTrustedIdentity(ctx context.Context, address string, key [32]byte) (bool, error) {
	if err := s.f.check(ctx); err != nil {
		return false, err
	}
	if s.f.cached(ctx, &s.identities) {
		if have, ok := s.identities.get(address); ok {
			return have == key, nil
		}
	}
	version := s.identities.reading()
	var raw []byte
	err := s.f.c.db.QueryRow(ctx, s.f.c.text(getIdentity), s.jid, address).Scan(&raw)
	if errors.Is(err, sql.ErrNoRows) {
		return true, nil // unknown: trusted now, and saved right after
	} else if err == nil && len(raw) != 32 {
		err = sqlstore.ErrInvalidLength
	}
	if err != nil {
		return false, s.f.fail(ctx, err)
	}
	have := [32]byte(raw)
	if s.f.cached(ctx, &s.identities) {
		s.f.committed(ctx, func() { s.identities.fill(address, have, version) })
	}
	return have == key, nil
}

func (s *deviceStore) DeleteIdentity(ctx context.Context, address string) error {
	return s.dropIdentities(ctx, func(ctx context.Context) error { return s.raw.DeleteIdentity(ctx, address) })
}

func (s *deviceStore) DeleteAllIdentities(ctx context.Context, phone string) error {
	return s.dropIdentities(ctx, func(ctx context.Context) error { return s.raw.DeleteAllIdentities(ctx, phone) })
}

func (s *deviceStore) dropIdentities(ctx context.Context, fn func(ctx context.Context) error) error {
	s.identities.clear()
	s.f.changing(ctx, &s.identities)
	err := s.f.do(ctx, fn)
	if err == nil {
		s.f.committed(ctx, s.identities.clear)
	}
	return err
}

var hasUnderPN = newQuery(`SELECT EXISTS (SELECT 1 FROM whatsmeow_sessions WHERE our_jid=$1 AND their_id LIKE $2)
	OR EXISTS (SELECT 1 FROM whatsmeow_identity_keys WHERE our_jid=$1 AND their_id LIKE $2)
	OR EXISTS (SELECT 1 FROM whatsmeow_sender_keys WHERE our_jid=$1 AND sender_id LIKE $2)`)

// MigratePNToLID moves what is stored under a phone number to its LID. whatsmeow believes it done
// before it has begun, so one failure would be for good; here it is done once it is committed.
func (s *deviceStore) MigratePNToLID(ctx context.Context, pn, lid types.JID) error {
	if err := s.f.check(ctx); err != nil {
		return err
	}
	user := pn.SignalAddressUser()
	if _, ok := s.migrated.get(user); ok {
		return nil
	}
	version := s.migrated.reading()
	var found bool
	if err := s.f.c.db.QueryRow(ctx, s.f.c.text(hasUnderPN), s.jid, user+":%").Scan(&found); err != nil {
		return s.f.fail(ctx, err)
	}
	if found {
		s.identities.clear()
		s.f.changing(ctx, &s.identities)
		err := s.dropSessions(ctx, func(ctx context.Context) error {
			// A raw store of its own: the one we keep remembers a migration that failed.
			return sqlstore.NewSQLStore(s.f.c.raw, s.own()).MigratePNToLID(ctx, pn, lid)
		})
		if err != nil {
			return err
		}
		s.f.committed(ctx, s.identities.clear)
	}
	s.f.committed(ctx, func() { s.migrated.fill(user, struct{}{}, version) })
	return nil
}

// own is the device's JID; it was one before it was text.
func (s *deviceStore) own() types.JID {
	jid, _ := types.ParseJID(s.jid)
	return jid
}

// ---- sender keys

func (s *deviceStore) PutSenderKey(ctx context.Context, group, user string, session []byte) error {
	return s.f.do(ctx, func(ctx context.Context) error { return s.raw.PutSenderKey(ctx, group, user, session) })
}

func (s *deviceStore) GetSenderKey(ctx context.Context, group, user string) ([]byte, error) {
	return read(ctx, s.f, func(ctx context.Context) ([]byte, error) { return s.raw.GetSenderKey(ctx, group, user) })
}
