package auth

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/alexedwards/argon2id"

	"github.com/wafleet/wafleet/internal/fleet"
)

// NewInvite says what pairing link to make.
type NewInvite struct {
	Org         fleet.OrgID
	MaxSessions int
	TTL         time.Duration
	MadeBy      fleet.KeyID
}

// CreateInvite makes and stores a pairing link. Its token exists only in the answer.
// fleet.ErrNotFound: no such organization.
func (a *Auth) CreateInvite(ctx context.Context, n NewInvite) (Secret, fleet.Invite, error) {
	secret := mint(PrefixInvite)
	verify, err := argon2id.CreateHash(secret.text, cost)
	if err != nil {
		return Secret{}, fleet.Invite{}, fmt.Errorf("create invite: %w", err)
	}
	i, err := a.store.InsertInvite(ctx, fleet.Invite{
		ID: fleet.NewInviteID(), OrgID: n.Org, MaxSessions: n.MaxSessions, MadeBy: n.MadeBy,
		LookupHash: a.lookup.Hash(secret.text), VerifyHash: verify,
	}, n.TTL)
	if err != nil {
		return Secret{}, fleet.Invite{}, fmt.Errorf("create invite: %w", err)
	}
	return secret, i, nil
}

// Invite reads the pairing link of a token, whatever its state: the row is read every time, so a
// revocation counts at once. Malformed and unknown tokens are ErrUnauthorized. As with keys, only a
// token whose HMAC is in the table costs an argon2id, once per process.
func (a *Auth) Invite(ctx context.Context, token string) (fleet.Invite, error) {
	secret, err := parse(token, PrefixInvite)
	if err != nil {
		return fleet.Invite{}, ErrUnauthorized
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	invites, err := a.store.InvitesByLookup(ctx, a.lookup.Hashes(secret.text))
	if err != nil {
		return fleet.Invite{}, fmt.Errorf("check pairing link: %w", err)
	}
	hash := sha256.Sum256([]byte(secret.text))
	for _, i := range invites {
		ok, err := a.prove(secret, hash, i.VerifyHash)
		if err != nil {
			return fleet.Invite{}, fmt.Errorf("verify invite %s: %w", i.ID, err)
		}
		if ok {
			return i, nil
		}
	}
	return fleet.Invite{}, ErrUnauthorized
}

// prove compares a secret with its stored argon2id hash, and remembers that they belong together.
func (a *Auth) prove(secret Secret, hash [sha256.Size]byte, verify string) (bool, error) {
	if against, ok := a.proven.GetIfPresent(hash); ok && against == verify {
		return true, nil
	}
	a.metrics.verifications.Inc()
	ok, err := argon2id.ComparePasswordAndHash(secret.text, verify)
	if err == nil && ok {
		a.proven.Set(hash, verify)
	}
	return ok, err
}
