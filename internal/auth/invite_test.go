package auth_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/seal"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
)

func TestTokenOfALinkOpensTheLinkAndNothingElse(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		f := newFixture(t, s)
		secret, made, err := f.CreateInvite(t.Context(), auth.NewInvite{Org: "org-a", MaxSessions: 3, TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			got, err := f.Invite(t.Context(), secret.Reveal())
			if err != nil || got.ID != made.ID || got.OrgID != "org-a" || got.State() != fleet.InviteLive {
				t.Errorf("Invite = %+v, %v, want %s", got, err, made.ID)
			}
		}
		if got := f.verifications(t); got != 1 {
			t.Errorf("verifications = %d, want 1 for two looks", got)
		}
		if _, err := f.Authenticate(t.Context(), secret.Reveal()); !errors.Is(err, auth.ErrUnauthorized) {
			t.Errorf("Authenticate with a link's token = %v, want ErrUnauthorized", err)
		}
		key, _ := f.create(t, auth.NewKey{Org: "org-a"})
		for name, token := range map[string]string{
			"an API key": key.Reveal(), "nothing": "", "its id": string(made.ID), "a cut token": secret.Reveal()[:20],
			"another token": "wfp_" + strings.Repeat("a", 58),
		} {
			if _, err := f.Invite(t.Context(), token); !errors.Is(err, auth.ErrUnauthorized) {
				t.Errorf("Invite with %s = %v, want ErrUnauthorized", name, err)
			}
		}
		if _, _, err := s.RevokeInvite(t.Context(), made.ID); err != nil {
			t.Fatal(err)
		}
		if got, err := f.Invite(t.Context(), secret.Reveal()); err != nil || got.State() != fleet.InviteRevoked {
			t.Errorf("Invite after the revocation = %s, %v, want revoked at once", got.State(), err)
		}
		other := auth.New(auth.Options{Store: s, Bus: f.bus, Lookup: seal.NewLookup(seal.NewKey()), Log: testkit.Logger(t)})
		if _, err := other.Invite(t.Context(), secret.Reveal()); !errors.Is(err, auth.ErrUnauthorized) {
			t.Errorf("Invite under another LOOKUP_KEY = %v, want ErrUnauthorized", err)
		}
		next := auth.New(auth.Options{Store: s, Bus: f.bus, Lookup: seal.NewLookup(seal.NewKey(), f.lookup), Log: testkit.Logger(t)})
		if _, err := next.Invite(t.Context(), secret.Reveal()); err != nil {
			t.Errorf("Invite after LOOKUP_KEY was rotated = %v", err)
		}
	})
}
