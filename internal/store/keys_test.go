package store_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

func TestOrganizationHasADefaultProjectAndAUniqueSlug(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		o := newOrg(t, s, "org-a")
		if o.Label != "Org org-a" || o.Strategy != fleet.StrategyWeighted || o.CreatedAt.IsZero() {
			t.Errorf("CreateOrganization = %+v", o)
		}
		if p, err := s.DefaultProject(t.Context(), "org-a"); err != nil || p == "" {
			t.Errorf("DefaultProject = %q, %v", p, err)
		}
		if _, err := s.CreateOrganization(t.Context(), fleet.Organization{ID: "org-a"}); !errors.Is(err, fleet.ErrConflict) {
			t.Errorf("CreateOrganization again = %v, want ErrConflict", err)
		}
		for _, id := range []fleet.OrgID{"", " ", "*", "%", "Org-A", "org--a", "-a"} {
			if _, err := s.CreateOrganization(t.Context(), fleet.Organization{ID: id}); !errors.Is(err, fleet.ErrInvalid) {
				t.Errorf("CreateOrganization(%q) = %v, want ErrInvalid", id, err)
			}
		}
		label, priority := "new", fleet.StrategyPriority
		got, err := s.UpdateOrganization(t.Context(), "org-a", store.OrgChange{Label: &label, Strategy: &priority})
		if err != nil || got.Label != "new" || got.Strategy != priority {
			t.Errorf("UpdateOrganization = %+v, %v", got, err)
		}
		if _, err := s.UpdateOrganization(t.Context(), "org-z", store.OrgChange{Label: &label}); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("UpdateOrganization(unknown) = %v, want ErrNotFound", err)
		}
		newOrg(t, s, "org-b")
		list, err := s.ListOrganizations(t.Context(), "org-a", 10)
		if err != nil || len(list) != 1 || list[0].ID != "org-b" {
			t.Errorf("ListOrganizations(after org-a) = %v, %v", list, err)
		}
	})
}

func TestKeysAreFoundByHashAndStayRevoked(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		newOrg(t, s, "org-b")
		project, err := s.DefaultProject(t.Context(), "org-a")
		if err != nil {
			t.Fatal(err)
		}
		org := fleet.APIKey{
			ID: fleet.NewKeyID(), OrgID: "org-a", ProjectID: project, Label: "crm", Prefix: "wfk_abcdef",
			LookupHash: []byte("hash 1"), VerifyHash: "verify",
		}
		if org, err = s.InsertKey(t.Context(), org); err != nil {
			t.Fatal(err)
		}
		admin, err := s.InsertKey(t.Context(), fleet.APIKey{ID: fleet.NewKeyID(), Admin: true, LookupHash: []byte("hash 2"), VerifyHash: "v"})
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.KeysByLookup(t.Context(), [][]byte{[]byte("nothing"), []byte("hash 1")})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]fleet.APIKey{org}, got); diff != "" {
			t.Errorf("KeysByLookup (-want +got):\n%s", diff)
		}
		if n, err := s.LiveAdminKeys(t.Context()); err != nil || n != 1 {
			t.Errorf("LiveAdminKeys = %d, %v, want 1", n, err)
		}
		if k, err := s.RevokeKey(t.Context(), admin.ID); err != nil || k.RevokedAt.IsZero() {
			t.Errorf("RevokeKey = %v, %v", k.RevokedAt, err)
		}
		if n, err := s.LiveAdminKeys(t.Context()); err != nil || n != 0 {
			t.Errorf("LiveAdminKeys after revoking = %d, %v, want 0", n, err)
		}
		list, err := s.ListKeys(t.Context(), store.KeyQuery{Limit: 10})
		if err != nil || len(list) != 2 {
			t.Errorf("ListKeys = %d keys, %v, want both", len(list), err)
		}
		if list, err = s.ListKeys(t.Context(), store.KeyQuery{Org: "org-a", Limit: 10}); err != nil || len(list) != 1 || list[0].ID != org.ID {
			t.Errorf("ListKeys(org-a) = %v, %v", list, err)
		}

		for _, id := range []fleet.KeyID{"", " ", "%", "*", "key_"} {
			if _, err := s.RevokeKey(t.Context(), id); !errors.Is(err, fleet.ErrNotFound) {
				t.Errorf("RevokeKey(%q) = %v, want ErrNotFound", id, err)
			}
		}
		if got, err := s.KeysByLookup(t.Context(), [][]byte{[]byte("hash 1")}); err != nil || len(got) != 1 || !got[0].RevokedAt.IsZero() {
			t.Errorf("a blank or wildcard id revoked a key: %v, %v", got, err)
		}

		bad := org
		bad.ID, bad.LookupHash, bad.OrgID = fleet.NewKeyID(), []byte("hash 3"), "org-b"
		if _, err := s.InsertKey(t.Context(), bad); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("InsertKey with another organization's project = %v, want ErrNotFound", err)
		}
		bad.Admin = true
		if _, err := s.InsertKey(t.Context(), bad); !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("InsertKey(admin with an organization) = %v, want ErrInvalid", err)
		}
	})
}
