package wastore

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.mau.fi/util/dbutil"
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
	migrated   cache[string, struct{}] // phone numbers whose sessions are under their LID
	contacts   cache[types.JID, types.ContactInfo]
	tokens     cache[types.JID, heldToken]
	salt       cache[struct{}, []byte]
}

var _ store.AllSessionSpecificStores = (*deviceStore)(nil)

func newDeviceStore(f *Fence, jid types.JID) *deviceStore {
	return &deviceStore{f: f, raw: sqlstore.NewSQLStore(f.c.raw, jid), jid: jid.String(), preKeys: make(chan struct{}, 1)}
}

// forget empties every cache: the device's rows were replaced.
func (s *deviceStore) forget() {
	s.identities.clear()
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

// ---- sessions

const putSessions = ` INSERT INTO whatsmeow_sessions (our_jid, their_id, session)
	SELECT $4::text, u.k, u.v FROM f CROSS JOIN u WHERE TRUE
	ON CONFLICT (our_jid, their_id) DO UPDATE SET session=excluded.session`

var (
	putSession = fencedQuery(`INSERT INTO whatsmeow_sessions (our_jid, their_id, session)
		SELECT $4::text, $5::text, $6::bytea FROM f WHERE TRUE
		ON CONFLICT (our_jid, their_id) DO UPDATE SET session=excluded.session`)
	putManySessions = `WITH f AS (` + fenceRow + `), u (k, v) AS (SELECT * FROM unnest($5::text[], $6::bytea[]))` + putSessions
)

func (s *deviceStore) PutSession(ctx context.Context, address string, session []byte) error {
	return s.f.write(ctx, putSession, s.jid, address, session)
}

// PutManySessions stores what one send encrypted with, in one statement whatever the number of
// devices. It runs after the encryption and before the frame, so it is the last place to see that
// the recipient's phone was left out.
func (s *deviceStore) PutManySessions(ctx context.Context, sessions map[string][]byte) error {
	if err := s.f.check(ctx); err != nil {
		return err
	}
	w := s.f.sendOf(ctx)
	if w != nil && w.direct {
		if ok, err := w.covers(ctx, sessions); err != nil {
			return s.f.fail(ctx, err)
		} else if !ok {
			return s.f.fail(ctx, ErrRecipientSkipped)
		}
	}
	if len(sessions) == 0 {
		return nil
	}
	text, args := s.manySessions(sessions)
	if err := s.f.writeText(ctx, text, args); err != nil {
		return err
	}
	if w != nil {
		s.f.committed(ctx, func() { w.saved.Store(true) })
	}
	return nil
}

func (s *deviceStore) manySessions(sessions map[string][]byte) (text string, args []any) {
	addresses := slices.Sorted(maps.Keys(sessions))
	if s.f.c.postgres {
		values := make([][]byte, len(addresses))
		for i, a := range addresses {
			values[i] = sessions[a]
		}
		return putManySessions, []any{s.jid, addresses, values}
	}
	args = append(make([]any, 0, 1+2*len(addresses)), s.jid)
	for _, a := range addresses {
		args = append(args, a, sessions[a])
	}
	return `WITH f AS (` + takeFence.sqlite + `), u (k, v) AS (VALUES ` + pairs(5, len(addresses)) + `)` +
		strings.Replace(putSessions, "::text", "", 1), args
}

// pairs writes n rows of two parameters each, the first of them numbered from.
func pairs(from, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("($" + strconv.Itoa(from+2*i) + ",$" + strconv.Itoa(from+1+2*i) + ")")
	}
	return b.String()
}

func (s *deviceStore) GetSession(ctx context.Context, address string) ([]byte, error) {
	return read(ctx, s.f, func(ctx context.Context) ([]byte, error) { return s.raw.GetSession(ctx, address) })
}

func (s *deviceStore) HasSession(ctx context.Context, address string) (bool, error) {
	return read(ctx, s.f, func(ctx context.Context) (bool, error) { return s.raw.HasSession(ctx, address) })
}

// GetManySessions is whatsmeow's with one text for any number of addresses.
func (s *deviceStore) GetManySessions(ctx context.Context, addresses []string) (map[string][]byte, error) {
	return read(ctx, s.f, func(ctx context.Context) (map[string][]byte, error) {
		if !s.f.c.postgres {
			return s.raw.GetManySessions(ctx, addresses)
		}
		out := make(map[string][]byte, len(addresses))
		for _, a := range addresses {
			out[a] = nil
		}
		rows, err := s.f.c.db.Query(ctx, `SELECT their_id, session FROM whatsmeow_sessions WHERE our_jid=$1 AND their_id=ANY($2::text[])`, s.jid, addresses)
		err = dbutil.NewRowIterWithError(rows, func(row dbutil.Scannable) (struct{}, error) {
			var a string
			var session []byte
			err := row.Scan(&a, &session)
			out[a] = session
			return struct{}{}, err
		}, err).Iter(func(struct{}) (bool, error) { return true, nil })
		return out, err
	})
}

func (s *deviceStore) DeleteSession(ctx context.Context, address string) error {
	return s.f.do(ctx, func(ctx context.Context) error { return s.raw.DeleteSession(ctx, address) })
}

func (s *deviceStore) DeleteAllSessions(ctx context.Context, phone string) error {
	return s.f.do(ctx, func(ctx context.Context) error { return s.raw.DeleteAllSessions(ctx, phone) })
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
		err := s.f.do(ctx, func(ctx context.Context) error {
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
