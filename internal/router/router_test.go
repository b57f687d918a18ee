package router

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

var now = time.UnixMilli(1_700_000_000_000)

// healthy is a session that may send, changed by edits.
func healthy(slug fleet.SessionSlug, edits ...func(*fleet.Session)) fleet.Session {
	s := fleet.Session{
		ID: "id-" + fleet.SessionID(slug), Slug: slug, OrgID: "org-a", Desired: fleet.DesiredRunning,
		Observed: fleet.ObservedConnected, Epoch: 3, LeaseEpoch: 3, LeaseOwner: "worker-1/boot", LeaseLive: true,
		Phone: "5511900000001", DeviceJID: "5511900000001:1@s.whatsapp.net",
	}
	for _, edit := range edits {
		edit(&s)
	}
	return s
}

func TestEligible(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(*fleet.Session)
		want Reason
	}{
		{"a running, connected and owned session may send", func(*fleet.Session) {}, ""},
		{"a stopped session may not", func(s *fleet.Session) { s.Desired = fleet.DesiredStopped }, ReasonStopped},
		{"a deleted session may not", func(s *fleet.Session) { s.Desired = fleet.DesiredDeleted }, ReasonStopped},
		{"a paused session may not", func(s *fleet.Session) { s.Paused = true }, ReasonPaused},
		{"a session without a number may not", func(s *fleet.Session) { s.Phone = "" }, ReasonUnpaired},
		{"a session whose login WhatsApp ended may not", func(s *fleet.Session) { s.RevokedAt = now }, ReasonUnpaired},
		{"a session whose worker's heartbeat stopped may not", func(s *fleet.Session) { s.LeaseLive = false }, ReasonUnowned},
		{"a reconnecting session may not", func(s *fleet.Session) { s.Observed = fleet.ObservedReconnecting }, ReasonDisconnected},
		{"a session whose client WhatsApp refuses may not", func(s *fleet.Session) { s.Observed = fleet.ObservedClientOutdated }, ReasonOutdated},
		{"a session that only an earlier owner saw connected may not", func(s *fleet.Session) { s.LeaseEpoch = 4 }, ReasonDisconnected},
		{"a session that has been connected for days may, though nothing was written since", func(s *fleet.Session) { s.ObservedSince = now.Add(-72 * time.Hour) }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := healthy("org-a-01", tc.edit)
			if ok, reason := eligible(&s); ok != (tc.want == "") || reason != tc.want {
				t.Errorf("eligible() = %v, %q, want %q", ok, reason, tc.want)
			}
		})
	}
	for _, observed := range []fleet.Observed{
		fleet.ObservedNeedsPairing, fleet.ObservedPairing, fleet.ObservedPairingExpired, fleet.ObservedConnecting, fleet.ObservedReconnecting,
		fleet.ObservedUnavailable, fleet.ObservedConflict, fleet.ObservedLoggedOut, fleet.ObservedLocked, fleet.ObservedTempBanned,
		fleet.ObservedBanned, fleet.ObservedClientOutdated, fleet.ObservedFailed,
	} {
		s := healthy("org-a-01", func(s *fleet.Session) { s.Observed = observed })
		if ok, _ := eligible(&s); ok {
			t.Errorf("eligible() of a session that is %s = true", observed)
		}
	}
}

func TestChooseTakesTheFirstEligibleInListOrder(t *testing.T) {
	paused := func(s *fleet.Session) { s.Paused = true }
	away := func(s *fleet.Session) { s.Observed = fleet.ObservedReconnecting }
	old := func(s *fleet.Session) { s.Observed = fleet.ObservedClientOutdated }
	gone := func(s *fleet.Session) { s.Desired = fleet.DesiredDeleted }
	for _, tc := range []struct {
		name    string
		list    []fleet.Session
		want    fleet.SessionSlug
		skipped []Skip
		code    string
		detail  string
	}{
		{name: "the only one", list: []fleet.Session{healthy("a")}, want: "a"},
		{name: "the first of several", list: []fleet.Session{healthy("b"), healthy("a")}, want: "b"},
		{
			name: "those before it are named with the reason", list: []fleet.Session{healthy("a", paused), healthy("b", away), healthy("c")},
			want: "c", skipped: []Skip{{"id-a", "a", ReasonPaused}, {"id-b", "b", ReasonDisconnected}},
		},
		{name: "no session", code: "NO_SESSIONS", detail: "the organization has no session: create one and pair it"},
		{name: "only deleted ones", list: []fleet.Session{healthy("a", gone)}, code: "NO_SESSIONS", detail: "the organization has no session: create one and pair it"},
		{
			name: "none eligible", list: []fleet.Session{healthy("a", paused), healthy("b", away), healthy("c", away)},
			code: "NONE_ELIGIBLE", detail: "no session can send now: 1 paused, 2 not connected",
			skipped: []Skip{{"id-a", "a", ReasonPaused}, {"id-b", "b", ReasonDisconnected}, {"id-c", "c", ReasonDisconnected}},
		},
		{
			name: "all that should send are refused for their version", list: []fleet.Session{healthy("a", paused), healthy("b", old)},
			code: "CLIENT_OUTDATED", detail: "WhatsApp refuses this version of the gateway; its operator has to upgrade it or set WA_WEB_VERSION",
			skipped: []Skip{{"id-a", "a", ReasonPaused}, {"id-b", "b", ReasonOutdated}},
		},
		{
			name: "one that may come back sooner than a version", list: []fleet.Session{healthy("a", old), healthy("b", away)},
			code: "NONE_ELIGIBLE", detail: "no session can send now: 1 client outdated, 1 not connected",
			skipped: []Skip{{"id-a", "a", ReasonOutdated}, {"id-b", "b", ReasonDisconnected}},
		},
		{
			name: "one that is connected although another is refused", list: []fleet.Session{healthy("a", old), healthy("b")},
			want: "b", skipped: []Skip{{"id-a", "a", ReasonOutdated}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := choose(tc.list)
			if got.Session.Slug != tc.want {
				t.Errorf("choose() = %q, want %q", got.Session.Slug, tc.want)
			}
			if diff := cmp.Diff(tc.skipped, got.Skipped); diff != "" {
				t.Errorf("skipped (-want +got):\n%s", diff)
			}
			coded, _ := errors.AsType[*fleet.CodedError](err)
			switch {
			case tc.code == "" && err != nil, tc.code != "" && (coded == nil || coded.Code != tc.code || coded.Detail != tc.detail):
				t.Errorf("choose() error = %v, want %s: %s", err, tc.code, tc.detail)
			case (tc.code == "NONE_ELIGIBLE" || tc.code == "CLIENT_OUTDATED") && (coded.RetryAfter <= 0 || !errors.Is(err, fleet.ErrUnavailable)):
				t.Errorf("%s = %+v, want 503 and a time to try again", tc.code, coded)
			case tc.code == "NO_SESSIONS" && !errors.Is(err, fleet.ErrConflict):
				t.Errorf("NO_SESSIONS = %+v, want a conflict", coded)
			}
		})
	}
}

func TestRefusalNamesNoSession(t *testing.T) {
	_, err := choose([]fleet.Session{healthy("secret-slug", func(s *fleet.Session) { s.Paused = true })})
	if err == nil || strings.Contains(err.Error(), "secret-slug") || strings.Contains(err.Error(), "5511900000001") {
		t.Errorf("refusal = %v, want no session's identity in it", err)
	}
}

func TestRouteReadsTheRowsAsTheyAre(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		if _, err := s.CreateOrganization(t.Context(), fleet.Organization{ID: "org-a", Label: "A", Strategy: fleet.StrategyWeighted}); err != nil {
			t.Fatal(err)
		}
		r := New(s)
		route := func(org fleet.OrgID) (fleet.SessionSlug, string) {
			t.Helper()
			c, err := r.Route(t.Context(), org, fleet.Recipient{ContactKey: "5511900000009"})
			coded, ok := errors.AsType[*fleet.CodedError](err)
			switch {
			case ok:
				return "", coded.Code
			case err != nil:
				t.Fatal(err)
			}
			return c.Session.Slug, ""
		}
		if slug, code := route("org-a"); code != "NO_SESSIONS" {
			t.Errorf("Route without sessions = %q, %q, want NO_SESSIONS", slug, code)
		}
		first, err := s.CreateSession(t.Context(), store.NewSession{Org: "org-a"})
		if err != nil {
			t.Fatal(err)
		}
		second, err := s.CreateSession(t.Context(), store.NewSession{Org: "org-a"})
		if err != nil {
			t.Fatal(err)
		}
		if slug, code := route("org-a"); code != "NONE_ELIGIBLE" {
			t.Errorf("Route with unpaired sessions = %q, %q, want NONE_ELIGIBLE", slug, code)
		}
		terms, _, err := s.ClaimLeases(t.Context(), store.ClaimQuery{Owner: "worker-1/boot", Limit: 10, TTL: time.Minute})
		if err != nil || len(terms) != 2 {
			t.Fatalf("ClaimLeases = %v, %v", terms, err)
		}
		for _, term := range terms {
			phone := "5511900000001"
			if term.SessionID == second.ID {
				phone = "5511900000002"
			}
			if err := s.RecordLogin(t.Context(), term, store.Login{DeviceJID: phone + ":1@s.whatsapp.net", Phone: phone}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.RecordObserved(t.Context(), term, store.Observation{State: fleet.ObservedConnected, Generation: 1}); err != nil {
				t.Fatal(err)
			}
		}
		if slug, code := route("org-a"); slug != first.Slug {
			t.Errorf("Route = %q, %q, want %q", slug, code, first.Slug)
		}
		if err := s.ReleaseLeases(t.Context(), "worker-1/boot", slices.DeleteFunc(terms, func(t fleet.Term) bool { return t.SessionID != first.ID })); err != nil {
			t.Fatal(err)
		}
		if slug, code := route("org-a"); slug != second.Slug {
			t.Errorf("Route after the first one's release = %q, %q, want %q", slug, code, second.Slug)
		}
		if slug, code := route("org-b"); code != "NO_SESSIONS" {
			t.Errorf("Route of another organization = %q, %q, want NO_SESSIONS", slug, code)
		}
	})
}
