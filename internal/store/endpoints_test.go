package store_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

func TestEndpointInputIsChecked(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		tenant(t, s, "org-a")
		good := fleet.Endpoint{OrgID: "org-a", Scope: fleet.ScopeOrganization, URL: "https://hooks.example/"}
		for _, tc := range []struct {
			name   string
			change func(e *fleet.Endpoint)
			code   string
		}{
			{"a filter of another scope", func(e *fleet.Endpoint) { e.Events = []fleet.EventKind{fleet.EventSessionStatus} }, "EVENT_UNKNOWN"},
			{"a misspelt filter", func(e *fleet.Endpoint) { e.Events = []fleet.EventKind{"mesage"} }, "EVENT_UNKNOWN"},
			{"a filter with a comma", func(e *fleet.Endpoint) { e.Events = []fleet.EventKind{"message,message.status"} }, "EVENT_UNKNOWN"},
			{"an unknown scope", func(e *fleet.Endpoint) { e.Scope = "world" }, "SCOPE_UNKNOWN"},
			{"organization scope without organization", func(e *fleet.Endpoint) { e.OrgID = "" }, "ORGANIZATION_MISSING"},
			{"no URL", func(e *fleet.Endpoint) { e.URL = "" }, "URL_INVALID"},
			{"too many at once", func(e *fleet.Endpoint) { e.MaxConcurrency = 65 }, "CONCURRENCY_INVALID"},
			{"a long description", func(e *fleet.Endpoint) { e.Description = strings.Repeat("é", 501) }, "DESCRIPTION_TOO_LONG"},
		} {
			e := good
			tc.change(&e)
			_, err := s.CreateEndpoint(t.Context(), e)
			if invalid, ok := errors.AsType[*fleet.InvalidError](err); !ok || invalid.Code != tc.code {
				t.Errorf("%s: CreateEndpoint = %v, want code %s", tc.name, err, tc.code)
			}
		}
		unknown := good
		unknown.OrgID = "org-x"
		if _, err := s.CreateEndpoint(t.Context(), unknown); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("CreateEndpoint of an unknown organization = %v, want ErrNotFound", err)
		}
		if list, err := s.ListEndpoints(t.Context(), ""); err != nil || len(list) != 0 {
			t.Errorf("after refusals there are %d endpoints, %v, want none", len(list), err)
		}
	})
}

func TestEndpointsOfOthersDoNotExist(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		tenant(t, s, "org-a")
		tenant(t, s, "org-b")
		mine := hook(t, s, fleet.Endpoint{OrgID: "org-a", Description: "mine"})
		operator := hook(t, s, fleet.Endpoint{OrgID: "org-a", Scope: fleet.ScopeOperator})
		for _, tc := range []struct {
			name string
			org  fleet.OrgID
			id   fleet.EndpointID
			want error
		}{
			{"its own", "org-a", mine.ID, nil},
			{"the operator", "", mine.ID, nil},
			{"another organization's", "org-b", mine.ID, fleet.ErrNotFound},
			{"an operator endpoint about it", "org-a", operator.ID, fleet.ErrNotFound},
			{"blank", "org-a", "", fleet.ErrNotFound},
			{"wildcard", "org-a", "%", fleet.ErrNotFound},
		} {
			got, err := s.GetEndpoint(t.Context(), tc.org, tc.id)
			if !errors.Is(err, tc.want) {
				t.Errorf("%s: GetEndpoint = %v, want %v", tc.name, err, tc.want)
			}
			if got.Secrets != nil {
				t.Errorf("%s: GetEndpoint shows secrets", tc.name)
			}
			if tc.want == nil {
				continue
			}
			text := "taken"
			if _, err := s.UpdateEndpoint(t.Context(), tc.org, tc.id, store.EndpointChange{Description: &text}); !errors.Is(err, tc.want) {
				t.Errorf("%s: UpdateEndpoint = %v, want %v", tc.name, err, tc.want)
			}
			if _, err := s.RotateSecret(t.Context(), tc.org, tc.id, time.Hour); !errors.Is(err, tc.want) {
				t.Errorf("%s: RotateSecret = %v, want %v", tc.name, err, tc.want)
			}
			if err := s.DeleteEndpoint(t.Context(), tc.org, tc.id); !errors.Is(err, tc.want) {
				t.Errorf("%s: DeleteEndpoint = %v, want %v", tc.name, err, tc.want)
			}
		}
		list, err := s.ListEndpoints(t.Context(), "org-a")
		if err != nil || len(list) != 1 || list[0].Description != "mine" {
			t.Errorf("ListEndpoints(org-a) = %v, %v, want its own one unchanged", list, err)
		}
		if list, err := s.ListEndpoints(t.Context(), ""); err != nil || len(list) != 2 {
			t.Errorf("ListEndpoints(operator) has %d, %v, want 2", len(list), err)
		}
	})
}

func TestRotationKeepsTheOldSecretForATime(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		session := tenant(t, s, "org-a")
		e := hook(t, s, fleet.Endpoint{OrgID: "org-a"})
		rotated, err := s.RotateSecret(t.Context(), "org-a", e.ID, 24*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if len(rotated.Secrets) != 2 || rotated.Secrets[1].Value != e.Secrets[0].Value || rotated.Secrets[0].Value == e.Secrets[0].Value {
			t.Fatalf("RotateSecret = %d secrets, want a new one and the old one", len(rotated.Secrets))
		}
		if !strings.HasPrefix(e.Secrets[0].Value, "whsec_") {
			t.Errorf("secret has prefix %.6q, want whsec_", e.Secrets[0].Value)
		}
		if d := time.Until(rotated.Secrets[1].ExpiresAt); d < 23*time.Hour || d > 25*time.Hour {
			t.Errorf("the old secret ends in %v, want 24 h", d)
		}
		appendEvent(t, s, fleet.Event{OrgID: "org-a", Kind: fleet.EventMessage, SessionID: session})
		live := func() []fleet.Secret {
			claimed, err := s.ClaimDeliveries(t.Context(), store.ClaimDeliveryQuery{Owner: "w", Limit: 1, LockFor: time.Minute})
			if err != nil || len(claimed) != 1 {
				t.Fatalf("ClaimDeliveries = %v, %v, want one", claimed, err)
			}
			if _, err := s.ReleaseDelivery(t.Context(), claimed[0]); err != nil {
				t.Fatal(err)
			}
			return claimed[0].Endpoint.Secrets
		}
		if diff := cmp.Diff(rotated.Secrets, live()); diff != "" {
			t.Errorf("live secrets during rotation (-want +got):\n%s", diff)
		}
		sqlNow(t, s, `UPDATE endpoints SET previous_secret_ends = 1`)
		if diff := cmp.Diff(rotated.Secrets[:1], live()); diff != "" {
			t.Errorf("live secrets after it (-want +got):\n%s", diff)
		}
	})
}

func TestSecretsAreSealedAtRest(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		tenant(t, s, "org-a")
		e := hook(t, s, fleet.Endpoint{OrgID: "org-a"})
		var stored []byte
		if err := s.DB().QueryRow(t.Context(), `SELECT secret FROM endpoints WHERE id = $1`, e.ID).Scan(&stored); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Ring().Open(string(e.ID), stored); err != nil {
			t.Errorf("the stored secret does not open under its row: %v", err)
		}
		if strings.Contains(string(stored), e.Secrets[0].Value[6:]) {
			t.Error("the secret is stored in clear")
		}
	})
}

func TestDisablingTellsOperatorsOnceAndEnablingForgetsFailures(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		tenant(t, s, "org-a")
		e := hook(t, s, fleet.Endpoint{OrgID: "org-a"})
		for range 3 {
			if _, _, err := s.EndpointFailure(t.Context(), e.ID, func(int, time.Duration) time.Duration { return time.Hour }); err != nil {
				t.Fatal(err)
			}
		}
		hook(t, s, fleet.Endpoint{Scope: fleet.ScopeOperator, Events: []fleet.EventKind{fleet.EventEndpointDisabled}})
		for i, want := range []bool{true, false} {
			if got, err := s.DisableEndpoint(t.Context(), e.ID, store.DisabledFailing); got != want || err != nil {
				t.Errorf("DisableEndpoint, call %d = %v, %v, want %v", i+1, got, err, want)
			}
		}
		owed, err := s.ListDeliveries(t.Context(), store.DeliveryQuery{Limit: 10})
		if err != nil || len(owed) != 1 {
			t.Fatalf("operators are told %d times, %v, want once", len(owed), err)
		}
		ev, err := s.GetEvent(t.Context(), "", owed[0].EventID)
		if err != nil || ev.Kind != fleet.EventEndpointDisabled || ev.OrgID != "org-a" || ev.Data.Endpoint != string(e.ID) || ev.Data.Reason != store.DisabledFailing {
			t.Errorf("event = %+v, %v, want endpoint.disabled of %s", ev, err, e.ID)
		}
		no := false
		got, err := s.UpdateEndpoint(t.Context(), "org-a", e.ID, store.EndpointChange{Disabled: &no})
		if err != nil {
			t.Fatal(err)
		}
		if got.Disabled || got.DisabledWhy != "" || got.Failures != 0 || !got.FailingSince.IsZero() || !got.OpenUntil.IsZero() {
			t.Errorf("enabled endpoint = %+v, want a clean one", got)
		}
	})
}

func TestFailuresWhileTheBreakerIsOpenDoNotCountAgain(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		tenant(t, s, "org-a")
		e := hook(t, s, fleet.Endpoint{OrgID: "org-a"})
		open := func(failures int, _ time.Duration) time.Duration {
			if failures < 2 {
				return 0
			}
			return time.Hour
		}
		for i, want := range []int{1, 2, 2, 2} { // the second opens it, the others were in flight then
			_, left, err := s.EndpointFailure(t.Context(), e.ID, open)
			if err != nil {
				t.Fatal(err)
			}
			if (left > 0) != (i > 0) || left > time.Hour {
				t.Errorf("after failure %d it is left alone for %v, want up to an hour from the second on", i+1, left)
			}
			if got, err := s.GetEndpoint(t.Context(), "", e.ID); err != nil || got.Failures != want || got.FailingSince.IsZero() {
				t.Errorf("after failure %d: %d counted since %v, %v, want %d", i+1, got.Failures, got.FailingSince, err, want)
			}
		}
		if err := s.EndpointSuccess(t.Context(), e.ID); err != nil {
			t.Fatal(err)
		}
		if got, err := s.GetEndpoint(t.Context(), "", e.ID); err != nil || got.Failures != 0 || !got.OpenUntil.IsZero() || !got.FailingSince.IsZero() {
			t.Errorf("after a success: %+v, %v, want a closed breaker", got, err)
		}
	})
}
