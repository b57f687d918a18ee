package auth

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/alexedwards/argon2id"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
)

// NewKey says what key to make: an admin's, or one of an organization.
type NewKey struct {
	Admin   bool
	Org     fleet.OrgID     // "" for an admin key
	Project fleet.ProjectID // "" = the organization's default
	Label   string
}

// Create makes and stores a key. The secret exists only in the answer. fleet.ErrNotFound: no such
// organization.
func (a *Auth) Create(ctx context.Context, n NewKey) (Secret, fleet.APIKey, error) {
	k := fleet.APIKey{ID: fleet.NewKeyID(), Admin: n.Admin, OrgID: n.Org, Label: n.Label}
	k.ProjectID = n.Project
	if !n.Admin && n.Project == "" {
		var err error
		if k.ProjectID, err = a.store.DefaultProject(ctx, n.Org); err != nil {
			return Secret{}, k, fmt.Errorf("create key: %w", err)
		}
	}
	secret := Mint(n.Admin)
	verify, err := argon2id.CreateHash(secret.text, cost)
	if err != nil {
		return Secret{}, k, fmt.Errorf("create key: %w", err)
	}
	k.Prefix, k.LookupHash, k.VerifyHash = secret.Shown(), a.lookup.Hash(secret.text), verify
	if k, err = a.store.InsertKey(ctx, k); err != nil {
		return Secret{}, k, fmt.Errorf("create key: %w", err)
	}
	return secret, k, nil
}

// Revoke ends a key for good, in this process at once and in others when the nudge arrives or 10 s
// later. Revoking again changes nothing; an unknown id is fleet.ErrNotFound.
func (a *Auth) Revoke(ctx context.Context, id fleet.KeyID) (fleet.APIKey, error) {
	k, err := a.store.RevokeKey(ctx, id)
	if err != nil {
		return k, err
	}
	a.KeysChanged(ctx, id)
	return k, nil
}

// KeysChanged drops what is cached, here at once and elsewhere when the nudge arrives: for keys that
// were revoked together with something else.
func (a *Auth) KeysChanged(ctx context.Context, id fleet.KeyID) {
	a.forget()
	if err := a.bus.Publish(ctx, bus.TopicKeys, string(id)); err != nil {
		a.log.WarnContext(ctx, "revocation was not announced, other processes notice within 10 s",
			slog.String("key_id", string(id)), slog.Any("err", err))
	}
}

// Bootstrap makes the first admin key of a new database, and nothing if a live one exists: then the
// secret is empty (Reveal gives "").
func (a *Auth) Bootstrap(ctx context.Context) (Secret, error) {
	n, err := a.store.LiveAdminKeys(ctx)
	if err != nil || n > 0 {
		return Secret{}, err
	}
	secret, _, err := a.Create(ctx, NewKey{Admin: true, Label: "first start"})
	return secret, err
}
