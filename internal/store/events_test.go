package store_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

// tenant makes an organization with one session.
func tenant(t *testing.T, s *store.Store, org fleet.OrgID) fleet.SessionID {
	t.Helper()
	if _, err := s.CreateOrganization(t.Context(), fleet.Organization{ID: org, Label: string(org), Strategy: fleet.StrategyWeighted}); err != nil {
		t.Fatal(err)
	}
	v, err := s.CreateSession(t.Context(), store.NewSession{Org: org})
	if err != nil {
		t.Fatal(err)
	}
	return v.ID
}

func hook(t *testing.T, s *store.Store, e fleet.Endpoint) fleet.Endpoint {
	t.Helper()
	if e.URL == "" {
		e.URL = "https://hooks.example/"
	}
	if e.Scope == "" {
		e.Scope = fleet.ScopeOrganization
	}
	got, err := s.CreateEndpoint(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func appendEvent(t *testing.T, s *store.Store, ev fleet.Event) fleet.Event {
	t.Helper()
	got, err := s.AppendEvent(t.Context(), ev)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// sqlNow runs a statement that no method of the store offers: it moves rows into the past.
func sqlNow(t *testing.T, s *store.Store, q string, args ...any) {
	t.Helper()
	if _, err := s.DB().Exec(t.Context(), q, args...); err != nil {
		t.Fatal(err)
	}
}

func TestAnEventIsOwedToExactlyTheEndpointsThatAskedForIt(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		a, b := tenant(t, s, "org-a"), tenant(t, s, "org-b")
		operator := fleet.ScopeOperator
		names := map[fleet.EndpointID]string{}
		for name, e := range map[string]fleet.Endpoint{
			"a all":             {OrgID: "org-a"},
			"a status only":     {OrgID: "org-a", Events: []fleet.EventKind{fleet.EventMessageStatus}},
			"a messages only":   {OrgID: "org-a", Events: []fleet.EventKind{fleet.EventMessage}},
			"b all":             {OrgID: "org-b"},
			"operator all":      {Scope: operator},
			"operator of a":     {Scope: operator, OrgID: "org-a"},
			"operator of b":     {Scope: operator, OrgID: "org-b"},
			"operator sessions": {Scope: operator, Events: []fleet.EventKind{fleet.EventSessionStatus}},
		} {
			names[hook(t, s, e).ID] = name
		}
		disabled, deleted := hook(t, s, fleet.Endpoint{OrgID: "org-a"}), hook(t, s, fleet.Endpoint{OrgID: "org-a"})
		yes := true
		if _, err := s.UpdateEndpoint(t.Context(), "org-a", disabled.ID, store.EndpointChange{Disabled: &yes}); err != nil {
			t.Fatal(err)
		}
		if err := s.DeleteEndpoint(t.Context(), "org-a", deleted.ID); err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			name string
			ev   fleet.Event
			want []string
		}{
			{"a message reaches its organization and operators", fleet.Event{OrgID: "org-a", Kind: fleet.EventMessage, SessionID: a, ConversationID: "cnv_1"}, []string{"a all", "a messages only", "operator all", "operator of a"}},
			{"a status is another kind", fleet.Event{OrgID: "org-a", Kind: fleet.EventMessageStatus, SessionID: a, ConversationID: "cnv_1"}, []string{"a all", "a status only", "operator all", "operator of a"}},
			{"session states are for operators only", fleet.Event{OrgID: "org-a", Kind: fleet.EventSessionStatus, SessionID: a}, []string{"operator all", "operator of a", "operator sessions"}},
			{"another organization's message", fleet.Event{OrgID: "org-b", Kind: fleet.EventMessage, SessionID: b, ConversationID: "cnv_2"}, []string{"b all", "operator all", "operator of b"}},
			{"an event of no organization", fleet.Event{Kind: fleet.EventEndpointDisabled}, []string{"operator all"}},
		} {
			ev := appendEvent(t, s, tc.ev)
			owed, err := s.ListDeliveries(t.Context(), store.DeliveryQuery{Event: ev.ID, Limit: 100})
			if err != nil {
				t.Fatal(err)
			}
			got := []string{}
			for _, d := range owed {
				got = append(got, names[d.EndpointID])
			}
			slices.Sort(got)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: owed to (-want +got):\n%s", tc.name, diff)
			}
		}
	})
}

func TestSeqIsGaplessPerStreamAndRolledBackEventsLeaveNoHole(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		session := tenant(t, s, "org-a")
		hook(t, s, fleet.Endpoint{OrgID: "org-a"})
		undo := errors.New("undo")
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for j := range 5 {
					err := s.InTx(t.Context(), func(ctx context.Context) error {
						if _, err := s.AppendEvent(ctx, fleet.Event{OrgID: "org-a", Kind: fleet.EventMessage, SessionID: session, ConversationID: "cnv_1"}); err != nil {
							return err
						}
						if (i+j)%4 == 0 {
							return undo
						}
						return nil
					})
					if err != nil && !errors.Is(err, undo) {
						t.Errorf("AppendEvent = %v", err)
					}
				}
			})
		}
		wg.Wait()
		owed, err := s.ListDeliveries(t.Context(), store.DeliveryQuery{Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		slices.Reverse(owed)
		if len(owed) != 30 {
			t.Fatalf("%d deliveries, want 30", len(owed))
		}
		for i, d := range owed {
			ev, err := s.GetEvent(t.Context(), "org-a", d.EventID)
			if err != nil {
				t.Fatal(err)
			}
			if ev.Seq != int64(i+1) || ev.Stream != "cnv_1" {
				t.Errorf("delivery %d in order of its row: seq %d of stream %s, want %d of cnv_1", i, ev.Seq, ev.Stream, i+1)
			}
		}
	})
}

func TestAnotherOrganizationsEventDoesNotExist(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		session := tenant(t, s, "org-a")
		message := appendEvent(t, s, fleet.Event{OrgID: "org-a", Kind: fleet.EventMessage, SessionID: session, ConversationID: "cnv_1", Data: fleet.EventData{InboundID: "inm_1", At: 5}})
		status := appendEvent(t, s, fleet.Event{OrgID: "org-a", Kind: fleet.EventSessionStatus, SessionID: session, Data: fleet.EventData{Observed: fleet.ObservedConnected}})
		for _, tc := range []struct {
			name string
			org  fleet.OrgID
			id   fleet.EventID
			want error
		}{
			{"its own", "org-a", message.ID, nil},
			{"the operator sees all", "", status.ID, nil},
			{"another organization", "org-b", message.ID, fleet.ErrNotFound},
			{"a kind of operator scope", "org-a", status.ID, fleet.ErrNotFound},
			{"a blank id", "org-a", "", fleet.ErrNotFound},
			{"a wildcard", "org-a", "%", fleet.ErrNotFound},
		} {
			got, err := s.GetEvent(t.Context(), tc.org, tc.id)
			if !errors.Is(err, tc.want) {
				t.Errorf("%s: GetEvent(%q, %q) = %v, want %v", tc.name, tc.org, tc.id, err, tc.want)
			}
			if tc.id == message.ID && tc.want == nil {
				if diff := cmp.Diff(message, got); diff != "" {
					t.Errorf("GetEvent returns another event than AppendEvent (-appended +read):\n%s", diff)
				}
			}
		}
		if message.Stream != "cnv_1" || status.Stream != string(session) {
			t.Errorf("streams = %q, %q, want the conversation and the session", message.Stream, status.Stream)
		}
	})
}

func TestPurgeKeepsEventsThatAreStillOwed(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		session := tenant(t, s, "org-a")
		loose := appendEvent(t, s, fleet.Event{OrgID: "org-a", Kind: fleet.EventMessage, SessionID: session})
		hook(t, s, fleet.Endpoint{OrgID: "org-a"})
		owed := appendEvent(t, s, fleet.Event{OrgID: "org-a", Kind: fleet.EventMessage, SessionID: session})
		if n, err := s.PurgeEvents(t.Context(), time.Now().Add(-time.Hour), 10); n != 0 || err != nil {
			t.Errorf("PurgeEvents(an hour ago) = %d, %v, want 0", n, err)
		}
		if n, err := s.PurgeEvents(t.Context(), time.Now().Add(time.Hour), 10); n != 1 || err != nil {
			t.Errorf("PurgeEvents(all) = %d, %v, want 1", n, err)
		}
		if _, err := s.GetEvent(t.Context(), "", loose.ID); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("event that is owed to nobody after purge: %v, want ErrNotFound", err)
		}
		if _, err := s.GetEvent(t.Context(), "", owed.ID); err != nil {
			t.Errorf("event that is owed after purge: %v", err)
		}
	})
}
