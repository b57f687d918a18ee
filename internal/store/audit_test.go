package store_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

func auditLines(t *testing.T, s *store.Store, q store.AuditQuery) []string {
	t.Helper()
	q.Limit = 100
	list, err := s.AuditLog(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list {
		out = append(out, strings.TrimSpace(strings.Join([]string{e.Actor, e.Action, e.Subject, e.Before, e.After}, " ")))
	}
	return out
}

func TestAChangeAndItsEntryStandOrFallTogether(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		ctx := store.AsActor(t.Context(), "key_1")
		newOrg(t, s, "org-b") // by nobody that is logged
		if _, err := s.CreateOrganization(ctx, fleet.Organization{ID: "org-a", Label: "A", Strategy: fleet.StrategyWeighted}); err != nil {
			t.Fatal(err)
		}
		label, same := "B", "B"
		for _, l := range []*string{&label, &same} {
			if _, err := s.UpdateOrganization(ctx, "org-a", store.OrgChange{Label: l}); err != nil {
				t.Fatal(err)
			}
		}
		boom := errors.New("boom")
		err := s.InTx(ctx, func(ctx context.Context) error {
			if _, err := s.CreateSession(ctx, store.NewSession{Org: "org-a"}); err != nil {
				return err
			}
			return boom
		})
		if !errors.Is(err, boom) {
			t.Fatalf("InTx = %v, want the error", err)
		}
		want := []string{
			`key_1 organization.update org-a {"affinityTtlSeconds":86400,"label":"A","rate":{"perMinute":0,"burst":0},"strategy":"weighted","timeZone":"UTC"} {"affinityTtlSeconds":86400,"label":"B","rate":{"perMinute":0,"burst":0},"strategy":"weighted","timeZone":"UTC"}`,
			`key_1 organization.create org-a  {"affinityTtlSeconds":86400,"label":"A","rate":{"perMinute":0,"burst":0},"strategy":"weighted","timeZone":"UTC"}`,
		}
		if diff := cmp.Diff(want, auditLines(t, s, store.AuditQuery{})); diff != "" {
			t.Errorf("audit log (-want +got):\n%s", diff)
		}
		if got := auditLines(t, s, store.AuditQuery{Org: "org-b"}); len(got) != 0 {
			t.Errorf("entries of org-b = %q, want none", got)
		}
		if got := auditLines(t, s, store.AuditQuery{Action: "organization.create"}); len(got) != 1 {
			t.Errorf("entries of one action = %q, want 1", got)
		}
	})
}

func TestAnOrganizationIsDeletedWhenItsSessionsAre(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		v := newSession(t, s, store.NewSession{Org: "org-a"})
		project, err := s.DefaultProject(t.Context(), "org-a")
		if err != nil {
			t.Fatal(err)
		}
		key, err := s.InsertKey(t.Context(), fleet.APIKey{ID: fleet.NewKeyID(), OrgID: "org-a", ProjectID: project, LookupHash: []byte("l"), VerifyHash: "v"})
		if err != nil {
			t.Fatal(err)
		}
		i := newInvite(t, s, "org-a", 1)
		wantCode(t, "DeleteOrganization with a session", s.DeleteOrganization(t.Context(), "org-a"), "ORGANIZATION_IN_USE")
		if _, err := s.DeleteSession(t.Context(), v.Slug); err != nil {
			t.Fatal(err)
		}
		if err := s.DeleteOrganization(t.Context(), "org-a"); err != nil {
			t.Fatal(err)
		}
		if err := s.DeleteOrganization(t.Context(), "org-a"); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("DeleteOrganization again = %v, want ErrNotFound", err)
		}
		if _, err := s.GetOrganization(t.Context(), "org-a"); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("GetOrganization = %v, want ErrNotFound", err)
		}
		if keys, err := s.KeysByLookup(t.Context(), [][]byte{[]byte("l")}); err != nil || len(keys) != 1 || keys[0].ID != key.ID || keys[0].RevokedAt.IsZero() {
			t.Errorf("its key = %v, %v, want it revoked", keys, err)
		}
		if _, err := s.AddThroughInvite(t.Context(), i.ID, pairQR()); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("its link adds a number: %v, want ErrNotFound", err)
		}
		if _, err := s.CreateOrganization(t.Context(), fleet.Organization{ID: "org-a", Strategy: fleet.StrategyWeighted}); !errors.Is(err, fleet.ErrConflict) {
			t.Errorf("CreateOrganization under its name = %v, want ErrConflict", err)
		}
	})
}

func TestProjectsHaveEntitlementsAndTheDefaultStays(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		newOrg(t, s, "org-b")
		p, err := s.CreateProject(t.Context(), fleet.Project{OrgID: "org-a", Name: "crm", Entitlements: fleet.Entitlements{MonthlyQuota: 1000}})
		if err != nil {
			t.Fatal(err)
		}
		backlog := int64(50)
		p, err = s.UpdateProject(t.Context(), "org-a", p.ID, store.ProjectChange{MaxBacklog: &backlog})
		if err != nil || p.MaxBacklog != 50 || p.MonthlyQuota != 1000 {
			t.Errorf("UpdateProject = %+v, %v, want both limits", p, err)
		}
		zone := "America/Sao_Paulo"
		if _, err := s.UpdateOrganization(t.Context(), "org-a", store.OrgChange{TimeZone: &zone}); err != nil {
			t.Fatal(err)
		}
		e, got, err := s.Entitlements(t.Context(), p.ID)
		if want := (fleet.Entitlements{MonthlyQuota: 1000, MaxBacklog: 50}); err != nil || e != want || got != zone {
			t.Errorf("Entitlements = %+v in %s, %v, want %+v in %s", e, got, err, want, zone)
		}
		if _, err := s.CreateProject(t.Context(), fleet.Project{OrgID: "org-a", Name: "crm"}); !errors.Is(err, fleet.ErrConflict) {
			t.Errorf("a second project of this name = %v, want ErrConflict", err)
		}
		if _, err := s.GetProject(t.Context(), "org-b", p.ID); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("another organization's project = %v, want ErrNotFound", err)
		}
		def, err := s.DefaultProject(t.Context(), "org-a")
		if err != nil {
			t.Fatal(err)
		}
		wantCode(t, "DeleteProject of the default", s.DeleteProject(t.Context(), "org-a", def), "DEFAULT_PROJECT")
		name := "other"
		_, err = s.UpdateProject(t.Context(), "org-a", def, store.ProjectChange{Name: &name})
		wantCode(t, "renaming the default", err, "DEFAULT_PROJECT")
		k, err := s.InsertKey(t.Context(), fleet.APIKey{ID: fleet.NewKeyID(), OrgID: "org-a", ProjectID: p.ID, LookupHash: []byte("l"), VerifyHash: "v"})
		if err != nil {
			t.Fatal(err)
		}
		wantCode(t, "DeleteProject with a live key", s.DeleteProject(t.Context(), "org-a", p.ID), "PROJECT_IN_USE")
		if _, err := s.RevokeKey(t.Context(), k.ID); err != nil {
			t.Fatal(err)
		}
		if err := s.DeleteProject(t.Context(), "org-a", p.ID); err != nil {
			t.Errorf("DeleteProject = %v", err)
		}
		if _, err := s.InsertKey(t.Context(), fleet.APIKey{ID: fleet.NewKeyID(), OrgID: "org-a", ProjectID: p.ID, LookupHash: []byte("m"), VerifyHash: "v"}); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("a key for a deleted project = %v, want ErrNotFound", err)
		}
		if list, err := s.ListProjects(t.Context(), "org-a"); err != nil || len(list) != 1 || list[0].ID != def {
			t.Errorf("ListProjects = %v, %v, want the default", list, err)
		}
	})
}
