package wastore

import (
	"context"
	"slices"
	"time"

	wmstore "go.mau.fi/whatsmeow/store"
	"go.mau.fi/whatsmeow/types"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// ---- message secrets

// putMessageSecret updates the key to itself where whatsmeow does nothing: the statement must touch
// a row whenever the fence holds.
var putMessageSecret = fencedQuery(`INSERT INTO whatsmeow_message_secrets (our_jid, chat_jid, sender_jid, message_id, key)
	SELECT $4::text, $5::text, $6::text, $7::text, $8::bytea FROM f WHERE TRUE
	ON CONFLICT (our_jid, chat_jid, sender_jid, message_id) DO UPDATE SET key=whatsmeow_message_secrets.key`)

func (s *deviceStore) PutMessageSecret(ctx context.Context, chat, sender types.JID, id types.MessageID, secret []byte) error {
	return s.f.write(ctx, putMessageSecret, s.jid, chat.ToNonAD().String(), sender.ToNonAD().String(), id, secret)
}

func (s *deviceStore) PutMessageSecrets(ctx context.Context, inserts []wmstore.MessageSecretInsert) error {
	if len(inserts) == 1 {
		return s.PutMessageSecret(ctx, inserts[0].Chat, inserts[0].Sender, inserts[0].ID, inserts[0].Secret)
	}
	return s.f.do(ctx, func(ctx context.Context) error { return s.raw.PutMessageSecrets(ctx, inserts) })
}

func (s *deviceStore) GetMessageSecret(ctx context.Context, chat, sender types.JID, id types.MessageID) (secret []byte, realSender types.JID, err error) {
	secret, err = read(ctx, s.f, func(ctx context.Context) (b []byte, err error) {
		b, realSender, err = s.raw.GetMessageSecret(ctx, chat, sender, id)
		return b, err
	})
	return secret, realSender, err
}

// ---- privacy tokens: one is looked for before every direct frame, and most people have none.

// heldToken is a token, or that there is none: which holds only while no LID mapping is added, since
// a token may be stored under the other name of the same person.
type heldToken struct {
	token *wmstore.PrivacyToken
	lids  uint64
}

func (s *deviceStore) PutPrivacyTokens(ctx context.Context, tokens ...wmstore.PrivacyToken) error {
	// One statement can't write a row twice, and none can write nothing.
	latest := make([]wmstore.PrivacyToken, 0, len(tokens))
	for _, t := range tokens {
		i := slices.IndexFunc(latest, func(o wmstore.PrivacyToken) bool { return o.User.ToNonAD() == t.User.ToNonAD() })
		switch {
		case i < 0:
			latest = append(latest, t)
		case !t.Timestamp.Before(latest[i].Timestamp):
			latest[i] = t
		}
	}
	fresh := s.freshTokens(latest)
	s.tokens.clear()
	s.f.changing(ctx, &s.tokens)
	err := s.f.do(ctx, func(ctx context.Context) error {
		if len(latest) == 0 {
			return nil
		}
		if err := s.raw.PutPrivacyTokens(ctx, latest...); err != nil {
			return err
		}
		return s.warm(ctx, fresh)
	})
	if err == nil {
		s.f.committed(ctx, s.tokens.clear)
	}
	return err
}

// freshTokens are those that make somebody warm: not what is too old to be shown, and not what whatsmeow only writes
// again because we gave that person a token of ours.
func (s *deviceStore) freshTokens(tokens []wmstore.PrivacyToken) []wmstore.PrivacyToken {
	now := time.Now()
	return slices.DeleteFunc(slices.Clone(tokens), func(t wmstore.PrivacyToken) bool {
		have, ok := s.tokens.get(t.User.ToNonAD())
		return len(t.Token) == 0 || now.Sub(t.Timestamp) >= fleet.WarmFor || ok && have.token != nil && have.token.Timestamp.Equal(t.Timestamp)
	})
}

// warm lets routers know who gave this session a token, in the transaction that stores it.
func (s *deviceStore) warm(ctx context.Context, tokens []wmstore.PrivacyToken) error {
	people := make([]store.Token, 0, len(tokens))
	for _, t := range tokens {
		other, err := s.f.c.lids.other(ctx, t.User.ToNonAD())
		if err != nil {
			return err
		}
		p := fleet.Person{Phone: t.User.User, LID: other.User}
		if t.User.Server == types.HiddenUserServer {
			p = fleet.Person{Phone: other.User, LID: t.User.User}
		}
		people = append(people, store.Token{Person: p, At: t.Timestamp})
	}
	return s.f.c.store.KeepTokens(ctx, s.f.term.SessionID, people)
}

func (s *deviceStore) GetPrivacyToken(ctx context.Context, user types.JID) (*wmstore.PrivacyToken, error) {
	if err := s.f.check(ctx); err != nil {
		return nil, err
	}
	user = user.ToNonAD()
	if user.Server == types.HiddenUserServer { // by phone number it is also looked for before the encryption
		if err := s.f.gate(ctx); err != nil {
			return nil, err
		}
	}
	lids := s.f.c.lids.version.Load()
	if s.f.cached(ctx, &s.tokens) {
		if have, ok := s.tokens.get(user); ok && (have.token != nil || have.lids == lids) {
			return cloneToken(have.token), nil
		}
	}
	version := s.tokens.reading()
	token, err := s.raw.GetPrivacyToken(ctx, user)
	if err != nil {
		return nil, s.f.fail(ctx, err)
	}
	if s.f.cached(ctx, &s.tokens) {
		s.f.committed(ctx, func() { s.tokens.fill(user, heldToken{cloneToken(token), lids}, version) })
	}
	return token, nil
}

// cloneToken: whatsmeow writes into the token that it gets.
func cloneToken(t *wmstore.PrivacyToken) *wmstore.PrivacyToken {
	if t == nil {
		return nil
	}
	c := *t
	return &c
}

var hasExpiredTokens = newQuery(`SELECT EXISTS (SELECT 1 FROM whatsmeow_privacy_tokens WHERE our_jid=$1 AND timestamp < $2)`)

// DeleteExpiredPrivacyTokens looks first: whatsmeow asks for it at every login, and mostly there is nothing.
func (s *deviceStore) DeleteExpiredPrivacyTokens(ctx context.Context, cutoff time.Time) (n int64, err error) {
	some, err := read(ctx, s.f, func(ctx context.Context) (some bool, err error) {
		err = s.f.c.db.QueryRow(ctx, s.f.c.text(hasExpiredTokens), s.jid, cutoff.Unix()).Scan(&some)
		return some, err
	})
	if err != nil || !some {
		return 0, err
	}
	s.tokens.clear()
	s.f.changing(ctx, &s.tokens)
	err = s.f.do(ctx, func(ctx context.Context) (err error) {
		n, err = s.raw.DeleteExpiredPrivacyTokens(ctx, cutoff)
		return err
	})
	if err == nil {
		s.f.committed(ctx, s.tokens.clear)
	}
	return n, err
}

// ---- the account's salt for tokens of strangers

func (s *deviceStore) PutNCTSalt(ctx context.Context, salt []byte) error {
	return s.setSalt(ctx, func(ctx context.Context) error { return s.raw.PutNCTSalt(ctx, salt) })
}

func (s *deviceStore) DeleteNCTSalt(ctx context.Context) error {
	return s.setSalt(ctx, s.raw.DeleteNCTSalt)
}

func (s *deviceStore) setSalt(ctx context.Context, fn func(ctx context.Context) error) error {
	s.salt.clear()
	s.f.changing(ctx, &s.salt)
	err := s.f.do(ctx, fn)
	if err == nil {
		s.f.committed(ctx, s.salt.clear)
	}
	return err
}

func (s *deviceStore) GetNCTSalt(ctx context.Context) ([]byte, error) {
	if err := s.f.check(ctx); err != nil {
		return nil, err
	}
	if err := s.f.gate(ctx); err != nil {
		return nil, err
	}
	if s.f.cached(ctx, &s.salt) {
		if salt, ok := s.salt.get(struct{}{}); ok {
			return slices.Clone(salt), nil
		}
	}
	version := s.salt.reading()
	salt, err := s.raw.GetNCTSalt(ctx)
	if err != nil {
		return nil, s.f.fail(ctx, err)
	}
	if s.f.cached(ctx, &s.salt) {
		s.f.committed(ctx, func() { s.salt.fill(struct{}{}, slices.Clone(salt), version) })
	}
	return salt, nil
}
