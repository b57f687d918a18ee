package store_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

func newOrg(t *testing.T, s *store.Store, id fleet.OrgID) fleet.Organization {
	t.Helper()
	o, err := s.CreateOrganization(t.Context(), fleet.Organization{ID: id, Label: "Org " + string(id), Strategy: fleet.StrategyWeighted})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func newSession(t *testing.T, s *store.Store, n store.NewSession) fleet.Session {
	t.Helper()
	v, err := s.CreateSession(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func slugs(list []fleet.Session) []fleet.SessionSlug {
	out := []fleet.SessionSlug{}
	for _, v := range list {
		out = append(out, v.Slug)
	}
	return out
}

func orgSlugs(t *testing.T, s *store.Store) []fleet.SessionSlug {
	t.Helper()
	list, err := s.OrgSessions(t.Context(), "org-a")
	if err != nil {
		t.Fatal(err)
	}
	return slugs(list)
}

func TestNewSessionIsUnownedUnpairedAndWantedRunning(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		v := newSession(t, s, store.NewSession{Org: "org-a", Label: "front desk"})
		if v.Slug != "org-a-01" || v.Desired != fleet.DesiredRunning || v.Observed != fleet.ObservedNeedsPairing ||
			v.LeaseOwner != "" || v.LeaseLive || v.LeaseEpoch != 0 || v.Ever() || v.CanLogin() || v.Label != "front desk" {
			t.Errorf("CreateSession = %+v", v)
		}
		if v.CreatedAt.IsZero() || v.ObservedSince.IsZero() {
			t.Errorf("CreateSession times = %v, %v, want set", v.CreatedAt, v.ObservedSince)
		}
		var key int64
		if err := s.DB().QueryRow(t.Context(), `SELECT shard_key FROM sessions WHERE id = $1`, v.ID).Scan(&key); err != nil {
			t.Fatal(err)
		}
		if want, _ := strconv.ParseInt(string(v.ID[:8]), 16, 64); key != want {
			t.Errorf("shard_key of %s = %d, want %d", v.ID, key, want)
		}
		if v.ID[14] != '4' {
			t.Errorf("session id %s is not a UUIDv4", v.ID)
		}
	})
}

func TestSessionNumbersGoOnAndSkipNamesChosenByHand(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		newSession(t, s, store.NewSession{Org: "org-a"})
		newSession(t, s, store.NewSession{Org: "org-a", Slug: "org-a-02"})
		newSession(t, s, store.NewSession{Org: "org-a", Slug: "hotline"})
		if v := newSession(t, s, store.NewSession{Org: "org-a"}); v.Slug != "org-a-03" {
			t.Errorf("next slug = %s, want org-a-03", v.Slug)
		}
		want := []fleet.SessionSlug{"org-a-01", "org-a-02", "hotline", "org-a-03"}
		if diff := cmp.Diff(want, orgSlugs(t, s)); diff != "" {
			t.Errorf("list order (-want +got):\n%s", diff)
		}
		if _, err := s.CreateSession(t.Context(), store.NewSession{Org: "org-a", Slug: "hotline"}); !errors.Is(err, fleet.ErrConflict) {
			t.Errorf("CreateSession with a taken slug = %v, want ErrConflict", err)
		}
		if _, err := s.CreateSession(t.Context(), store.NewSession{Org: "org-z"}); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("CreateSession in an unknown organization = %v, want ErrNotFound", err)
		}
	})
}

func TestSessionsMadeAtOnceGetDifferentNumbersAndPositions(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		const n = 8
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { _, errs[i] = s.CreateSession(t.Context(), store.NewSession{Org: "org-a"}) })
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		list, err := s.OrgSessions(t.Context(), "org-a")
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range list {
			if want := fleet.SessionSlug(fmt.Sprintf("org-a-%02d", i+1)); v.Slug != want || v.Position != i+1 {
				t.Errorf("session %d = %s at %d, want %s at %d", i, v.Slug, v.Position, want, i+1)
			}
		}
		if len(list) != n {
			t.Errorf("%d sessions, want %d", len(list), n)
		}
	})
}

func TestHeadSessionIsTheFirstAttachedAndMovesOnlyWhenRemoved(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		head := func() fleet.SessionID {
			o, err := s.GetOrganization(t.Context(), "org-a")
			if err != nil {
				t.Fatal(err)
			}
			return o.HeadSessionID
		}
		newOrg(t, s, "org-a")
		if got := head(); got != "" {
			t.Errorf("head before the first session = %q, want none", got)
		}
		first := newSession(t, s, store.NewSession{Org: "org-a"})
		second := newSession(t, s, store.NewSession{Org: "org-a"})
		order := []fleet.SessionSlug{second.Slug, first.Slug}
		if _, err := s.UpdateOrganization(t.Context(), "org-a", store.OrgChange{Order: order}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(order, orgSlugs(t, s)); diff != "" {
			t.Errorf("list order (-want +got):\n%s", diff)
		}
		if got := head(); got != first.ID {
			t.Errorf("head after a new order = %s, want it untouched (%s)", got, first.ID)
		}
		if _, err := s.DeleteSession(t.Context(), first.Slug); err != nil {
			t.Fatal(err)
		}
		if got := head(); got != second.ID {
			t.Errorf("head after its removal = %s, want the next in list order (%s)", got, second.ID)
		}
		if _, err := s.DeleteSession(t.Context(), second.Slug); err != nil {
			t.Fatal(err)
		}
		if got := head(); got != "" {
			t.Errorf("head of an empty organization = %s, want none", got)
		}
	})
}

func TestOrderMustNameEverySessionOnce(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		newOrg(t, s, "org-b")
		newSession(t, s, store.NewSession{Org: "org-a"})
		newSession(t, s, store.NewSession{Org: "org-a"})
		newSession(t, s, store.NewSession{Org: "org-b"})
		before := orgSlugs(t, s)
		for name, order := range map[string][]fleet.SessionSlug{
			"one is missing":                 {"org-a-01"},
			"one is named twice":             {"org-a-01", "org-a-01"},
			"one is another organization's":  {"org-a-02", "org-b-01"},
			"one too many":                   {"org-a-02", "org-a-01", "org-b-01"},
			"none":                           {},
			"a blank one":                    {"org-a-02", ""},
			"a wildcard":                     {"org-a-02", "%"},
			"the last is wrong, after moves": {"org-a-02", "org-a-03"},
		} {
			if _, err := s.UpdateOrganization(t.Context(), "org-a", store.OrgChange{Order: order}); !errors.Is(err, store.ErrOrder) {
				t.Errorf("%s: UpdateOrganization(%q) = %v, want ErrOrder", name, order, err)
			}
		}
		if diff := cmp.Diff(before, orgSlugs(t, s)); diff != "" {
			t.Errorf("a refused order changed the list (-want +got):\n%s", diff)
		}
	})
}

func TestUpdateSessionChangesOnlyWhatIsGiven(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		v := newSession(t, s, store.NewSession{Org: "org-a", Label: "one"})
		yes, stopped := true, fleet.DesiredStopped
		got, err := s.UpdateSession(t.Context(), v.Slug, store.SessionChange{Paused: &yes})
		if err != nil {
			t.Fatal(err)
		}
		v.Paused = true
		if diff := cmp.Diff(v, got); diff != "" {
			t.Errorf("after pausing (-want +got):\n%s", diff)
		}
		if got, err = s.UpdateSession(t.Context(), v.Slug, store.SessionChange{Desired: &stopped}); err != nil {
			t.Fatal(err)
		}
		v.Desired = stopped
		if diff := cmp.Diff(v, got); diff != "" {
			t.Errorf("after stopping (-want +got):\n%s", diff)
		}
		deleted := fleet.DesiredDeleted
		if _, err := s.UpdateSession(t.Context(), v.Slug, store.SessionChange{Desired: &deleted}); !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("UpdateSession(desired deleted) = %v, want ErrInvalid", err)
		}
	})
}

func TestBlankAndWildcardIdsMatchNothing(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		newSession(t, s, store.NewSession{Org: "org-a"})
		newSession(t, s, store.NewSession{Org: "org-a"})
		before, err := s.OrgSessions(t.Context(), "org-a")
		if err != nil {
			t.Fatal(err)
		}
		yes := true
		for _, id := range []fleet.SessionSlug{"", " ", "%", "*", "_", "org-a-0%", "org-a-01 ", "ORG-A-01", "null", "org-a-01\x00"} {
			calls := map[string]func(ctx context.Context) error{
				"SessionBySlug": func(ctx context.Context) error { _, err := s.SessionBySlug(ctx, id); return err },
				"UpdateSession": func(ctx context.Context) error {
					_, err := s.UpdateSession(ctx, id, store.SessionChange{Paused: &yes})
					return err
				},
				"DeleteSession": func(ctx context.Context) error { _, err := s.DeleteSession(ctx, id); return err },
			}
			for name, call := range calls {
				if err := call(t.Context()); !errors.Is(err, fleet.ErrNotFound) {
					t.Errorf("%s(%q) = %v, want ErrNotFound", name, id, err)
				}
			}
		}
		after, err := s.OrgSessions(t.Context(), "org-a")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("rows changed (-before +after):\n%s", diff)
		}
	})
}

func TestDeletedSessionFreesItsNumberAndIsGone(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		one := newSession(t, s, store.NewSession{Org: "org-a"})
		two := newSession(t, s, store.NewSession{Org: "org-a"})
		setPhone := func(id fleet.SessionID) error {
			_, err := s.DB().Exec(t.Context(), `UPDATE sessions SET phone = '5511900000001' WHERE id = $1`, id)
			return err
		}
		if err := setPhone(one.ID); err != nil {
			t.Fatal(err)
		}
		if err := setPhone(two.ID); err == nil {
			t.Error("two live sessions got the same number")
		}
		if _, err := s.DeleteSession(t.Context(), one.Slug); err != nil {
			t.Fatal(err)
		}
		if err := setPhone(two.ID); err != nil {
			t.Errorf("the number of a deleted session is still taken: %v", err)
		}
		if _, err := s.SessionBySlug(t.Context(), one.Slug); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("SessionBySlug(deleted) = %v, want ErrNotFound", err)
		}
		if _, err := s.DeleteSession(t.Context(), one.Slug); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("DeleteSession again = %v, want ErrNotFound", err)
		}
		if v, err := s.SessionByID(t.Context(), one.ID); err != nil || v.Desired != fleet.DesiredDeleted {
			t.Errorf("SessionByID(deleted) = %v, %v, want the row for its old messages", v.Desired, err)
		}
		if diff := cmp.Diff([]fleet.SessionSlug{two.Slug}, orgSlugs(t, s)); diff != "" {
			t.Errorf("list (-want +got):\n%s", diff)
		}
	})
}

func TestSessionListsPageWithoutGapsOrRepeats(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		newOrg(t, s, "org-b")
		var want []fleet.SessionSlug
		for range 5 {
			want = append(want, newSession(t, s, store.NewSession{Org: "org-a"}).Slug)
		}
		want = append(want, newSession(t, s, store.NewSession{Org: "org-b"}).Slug)
		var got []fleet.SessionSlug
		for after := fleet.SessionSlug(""); ; {
			page, err := s.ListSessions(t.Context(), store.SessionQuery{After: after, Limit: 2})
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			got = append(got, slugs(page)...)
			after = page[len(page)-1].Slug
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("all pages (-want +got):\n%s", diff)
		}
		page, err := s.ListSessions(t.Context(), store.SessionQuery{Org: "org-b", Limit: 10})
		if err != nil || len(page) != 1 || page[0].OrgID != "org-b" {
			t.Errorf("ListSessions(org-b) = %v, %v, want its one session", slugs(page), err)
		}
	})
}
