package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

// talk appends one message event to a conversation of an organization.
func talk(t *testing.T, s *store.Store, org fleet.OrgID, conversation fleet.ConversationID) fleet.EventID {
	t.Helper()
	return appendEvent(t, s, fleet.Event{OrgID: org, Kind: fleet.EventMessage, ConversationID: conversation}).ID
}

func claimed(t *testing.T, s *store.Store, owner string, limit int) []store.ClaimedDelivery {
	t.Helper()
	got, err := s.ClaimDeliveries(t.Context(), store.ClaimDeliveryQuery{Owner: owner, Limit: limit, LockFor: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func eventsOf(list []store.ClaimedDelivery) []fleet.EventID {
	out := []fleet.EventID{}
	for _, c := range list {
		out = append(out, c.EventID)
	}
	slices.Sort(out)
	return out
}

func want(t *testing.T, what string, got []store.ClaimedDelivery, events ...fleet.EventID) {
	t.Helper()
	slices.Sort(events)
	if diff := cmp.Diff(append([]fleet.EventID{}, events...), eventsOf(got)); diff != "" {
		t.Fatalf("%s: claimed (-want +got):\n%s", what, diff)
	}
}

func finish(t *testing.T, s *store.Store, c store.ClaimedDelivery, dead bool) {
	t.Helper()
	if ok, err := s.FinishDelivery(t.Context(), c, store.DeliveryResult{Status: 200}, dead); !ok || err != nil {
		t.Fatalf("FinishDelivery = %v, %v, want true", ok, err)
	}
}

func retry(t *testing.T, s *store.Store, c store.ClaimedDelivery, pause, aside time.Duration) {
	t.Helper()
	if ok, err := s.RetryDelivery(t.Context(), c, store.DeliveryResult{Status: 500, Error: "HTTP 500"}, store.Retry{Pause: pause, AsideAfter: aside}); !ok || err != nil {
		t.Fatalf("RetryDelivery = %v, %v, want true", ok, err)
	}
}

func TestOnlyTheHeadOfAConversationIsClaimable(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		tenant(t, s, "org-a")
		hook(t, s, fleet.Endpoint{OrgID: "org-a", MaxConcurrency: 10})
		a1, a2, a3 := talk(t, s, "org-a", "cnv_a"), talk(t, s, "org-a", "cnv_a"), talk(t, s, "org-a", "cnv_a")
		b1 := talk(t, s, "org-a", "cnv_b")

		first := claimed(t, s, "w", 10)
		want(t, "at first", first, a1, b1)
		want(t, "while the heads are in flight", claimed(t, s, "w", 10))
		slices.SortFunc(first, func(x, y store.ClaimedDelivery) int { return int(x.N - y.N) })
		head, other := first[0], first[1]
		if head.Event == nil || head.Event.Seq != 1 || head.Attempts != 1 || len(head.Endpoint.Secrets) != 1 || head.Endpoint.URL == "" {
			t.Errorf("claimed delivery = %+v, want its event, its endpoint with secret and attempt 1", head)
		}
		finish(t, s, other, false)
		retry(t, s, head, time.Hour, time.Hour)
		want(t, "while the head waits for its retry", claimed(t, s, "w", 10))

		sqlNow(t, s, `UPDATE deliveries SET due_at = 0 WHERE n = $1`, head.N)
		again := claimed(t, s, "w", 10)
		want(t, "when the retry is due", again, a1)
		finish(t, s, again[0], true)
		second := claimed(t, s, "w", 10)
		want(t, "after the head's dead letter", second, a2)
		finish(t, s, second[0], false)
		want(t, "at last", claimed(t, s, "w", 10), a3)
	})
}

func TestALateAckOfALostLockChangesNothing(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		tenant(t, s, "org-a")
		hook(t, s, fleet.Endpoint{OrgID: "org-a"})
		ev := talk(t, s, "org-a", "cnv_a")
		stale := claimed(t, s, "w1", 1)
		sqlNow(t, s, `UPDATE deliveries SET locked_until = 1`)
		current := claimed(t, s, "w2", 1)
		want(t, "after the lock ran out", current, ev)
		for what, call := range map[string]func() (bool, error){
			"FinishDelivery": func() (bool, error) { return s.FinishDelivery(t.Context(), stale[0], store.DeliveryResult{}, false) },
			"RetryDelivery": func() (bool, error) {
				return s.RetryDelivery(t.Context(), stale[0], store.DeliveryResult{}, store.Retry{})
			},
			"ReleaseDelivery": func() (bool, error) { return s.ReleaseDelivery(t.Context(), stale[0]) },
		} {
			if ok, err := call(); ok || err != nil {
				t.Errorf("%s by the owner before = %v, %v, want false", what, ok, err)
			}
		}
		finish(t, s, current[0], false)
		list, err := s.ListDeliveries(t.Context(), store.DeliveryQuery{Limit: 10})
		if err != nil || len(list) != 1 || list[0].Status != fleet.DeliveryDone || list[0].Attempts != 2 {
			t.Errorf("ListDeliveries = %+v, %v, want one, done at the second try", list, err)
		}
	})
}

func TestAHeadStepsAsideOnlyWhileItsEndpointTakesOthers(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		tenant(t, s, "org-a")
		e := hook(t, s, fleet.Endpoint{OrgID: "org-a"})
		poison, next := talk(t, s, "org-a", "cnv_a"), talk(t, s, "org-a", "cnv_a")
		fail := func() {
			t.Helper()
			c := claimed(t, s, "w", 10)
			want(t, "the head", c, poison)
			retry(t, s, c[0], 0, 5*time.Minute)
		}
		fail()
		sqlNow(t, s, `UPDATE deliveries SET first_fail = first_fail - 400000 WHERE first_fail > 0`)
		fail() // nothing else got through: the endpoint is down, so it keeps its place
		if err := s.EndpointSuccess(t.Context(), e.ID); err != nil {
			t.Fatal(err)
		}
		fail()
		want(t, "after it stepped aside", claimed(t, s, "w", 10), poison, next)
		list, err := s.ListDeliveries(t.Context(), store.DeliveryQuery{Event: poison, Limit: 1})
		if err != nil || len(list) != 1 || list[0].Ordered {
			t.Errorf("the delivery that stepped aside = %+v, %v, want ordered false", list, err)
		}
	})
}

func TestAnEndpointsCapHoldsOverAllClaimers(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		tenant(t, s, "org-a")
		hook(t, s, fleet.Endpoint{OrgID: "org-a", MaxConcurrency: 3})
		for i := range 12 {
			talk(t, s, "org-a", fleet.ConversationID(fmt.Sprintf("cnv_%d", i)))
		}
		for round := range 4 {
			var mu sync.Mutex
			var got []store.ClaimedDelivery
			var wg sync.WaitGroup
			for w := range 6 {
				wg.Go(func() {
					c, err := s.ClaimDeliveries(t.Context(), store.ClaimDeliveryQuery{Owner: fmt.Sprintf("w%d", w), Limit: 10, LockFor: time.Minute})
					if err != nil {
						t.Errorf("ClaimDeliveries = %v", err)
					}
					mu.Lock()
					defer mu.Unlock()
					got = append(got, c...)
				})
			}
			wg.Wait()
			if len(got) != 3 {
				t.Fatalf("round %d: six claimers hold %d of one endpoint, want 3", round, len(got))
			}
			for _, c := range got {
				finish(t, s, c, false)
			}
		}
	})
}

func TestAnOpenBreakerLetsNothingThroughAndThenOneProbe(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		tenant(t, s, "org-a")
		e := hook(t, s, fleet.Endpoint{OrgID: "org-a"})
		for i := range 3 {
			talk(t, s, "org-a", fleet.ConversationID(fmt.Sprintf("cnv_%d", i)))
		}
		if _, _, err := s.EndpointFailure(t.Context(), e.ID, func(int, time.Duration) time.Duration { return time.Hour }); err != nil {
			t.Fatal(err)
		}
		want(t, "while open", claimed(t, s, "w", 10))
		sqlNow(t, s, `UPDATE endpoints SET open_until = 1`)
		probe := claimed(t, s, "w", 10)
		if len(probe) != 1 {
			t.Fatalf("after it opened: %d tries, want one probe", len(probe))
		}
		want(t, "while the probe is in flight", claimed(t, s, "w", 10))
		if err := s.EndpointSuccess(t.Context(), e.ID); err != nil {
			t.Fatal(err)
		}
		finish(t, s, probe[0], false)
		if got := claimed(t, s, "w", 10); len(got) != 2 {
			t.Errorf("after the probe's success: %d tries, want 2", len(got))
		}
	})
}

func TestOrganizationsTakeTurns(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		tenant(t, s, "org-a")
		tenant(t, s, "org-b")
		for range 4 {
			hook(t, s, fleet.Endpoint{OrgID: "org-a", MaxConcurrency: 10})
		}
		hook(t, s, fleet.Endpoint{OrgID: "org-b", MaxConcurrency: 10})
		for i := range 5 {
			talk(t, s, "org-a", fleet.ConversationID(fmt.Sprintf("cnv_a%d", i)))
		}
		for i := range 5 {
			talk(t, s, "org-b", fleet.ConversationID(fmt.Sprintf("cnv_b%d", i)))
		}
		perOrg := func(c []store.ClaimedDelivery) map[fleet.OrgID]int {
			n := map[fleet.OrgID]int{}
			for _, d := range c {
				n[d.OrgID]++
			}
			return n
		}
		if diff := cmp.Diff(map[fleet.OrgID]int{"org-a": 2, "org-b": 2}, perOrg(claimed(t, s, "w", 4))); diff != "" {
			t.Errorf("four slots, twenty waiting before five (-want +got):\n%s", diff)
		}
		got, err := s.ClaimDeliveries(t.Context(), store.ClaimDeliveryQuery{
			Owner: "w", Limit: 10, LockFor: time.Minute, Share: 4, Busy: map[fleet.OrgID]int{"org-a": 3, "org-b": 4},
		})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[fleet.OrgID]int{"org-a": 1}, perOrg(got)); diff != "" {
			t.Errorf("a share of four, of which three and four are taken (-want +got):\n%s", diff)
		}
	})
}

func TestReplayOwesTheSameEventAgain(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		tenant(t, s, "org-a")
		tenant(t, s, "org-b")
		e := hook(t, s, fleet.Endpoint{OrgID: "org-a"})
		hook(t, s, fleet.Endpoint{OrgID: "org-a", Scope: fleet.ScopeOperator})
		ev, later := talk(t, s, "org-a", "cnv_a"), talk(t, s, "org-a", "cnv_a")
		for _, c := range claimed(t, s, "w", 10) {
			finish(t, s, c, true)
		}
		dead, err := s.ListDeliveries(t.Context(), store.DeliveryQuery{Org: "org-a", Status: fleet.DeliveryDead, Limit: 10})
		if err != nil || len(dead) != 1 {
			t.Fatalf("the organization sees %d dead letters, %v, want its own endpoint's", len(dead), err)
		}
		if foreign, err := s.ListDeliveries(t.Context(), store.DeliveryQuery{Org: "org-b", Limit: 10}); err != nil || len(foreign) != 0 {
			t.Errorf("another organization sees %d deliveries, %v, want none", len(foreign), err)
		}
		if _, err := s.ReplayDelivery(t.Context(), "org-b", dead[0].ID); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("ReplayDelivery by another organization = %v, want ErrNotFound", err)
		}
		again, err := s.ReplayDelivery(t.Context(), "org-a", dead[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		if again.ID == dead[0].ID || again.EventID != ev || again.Ordered || !again.Replay || again.Status != fleet.DeliveryPending {
			t.Errorf("ReplayDelivery = %+v, want a new unordered delivery of event %s", again, ev)
		}
		var mine []store.ClaimedDelivery
		for _, c := range claimed(t, s, "w", 10) {
			if c.EndpointID == e.ID {
				mine = append(mine, c)
			}
		}
		want(t, "the replay does not wait for its stream, nor the stream for it", mine, ev, later)

		yes := true
		if _, err := s.UpdateEndpoint(t.Context(), "org-a", e.ID, store.EndpointChange{Disabled: &yes}); err != nil {
			t.Fatal(err)
		}
		_, err = s.ReplayDelivery(t.Context(), "org-a", dead[0].ID)
		if coded, ok := errors.AsType[*fleet.CodedError](err); !ok || coded.Code != "ENDPOINT_DISABLED" || !errors.Is(err, fleet.ErrConflict) {
			t.Errorf("ReplayDelivery to a disabled endpoint = %v, want ENDPOINT_DISABLED", err)
		}
	})
}

func TestListPagesByCursor(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		tenant(t, s, "org-a")
		hook(t, s, fleet.Endpoint{OrgID: "org-a"})
		var made []fleet.EventID
		for range 5 {
			made = append(made, talk(t, s, "org-a", "cnv_a"))
		}
		slices.Reverse(made)
		var got []fleet.EventID
		for cursor := int64(0); ; {
			page, err := s.ListDeliveries(t.Context(), store.DeliveryQuery{Org: "org-a", Before: cursor, Limit: 2})
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			for _, d := range page {
				got = append(got, d.EventID)
			}
			cursor = page[len(page)-1].N
		}
		if diff := cmp.Diff(made, got); diff != "" {
			t.Errorf("pages, newest first (-want +got):\n%s", diff)
		}
	})
}

func TestDisabledEndpointsWaitAndGoOnInOrder(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		tenant(t, s, "org-a")
		e := hook(t, s, fleet.Endpoint{OrgID: "org-a"})
		talk(t, s, "org-a", "cnv_a")
		second := talk(t, s, "org-a", "cnv_a")
		if _, err := s.DisableEndpoint(t.Context(), e.ID, store.DisabledGone); err != nil {
			t.Fatal(err)
		}
		want(t, "while disabled", claimed(t, s, "w", 10))
		sqlNow(t, s, `UPDATE deliveries SET created_at = 1 WHERE n = (SELECT min(n) FROM deliveries)`)
		if n, err := s.PurgeDeliveries(t.Context(), time.Now().Add(-time.Hour), 10); n != 1 || err != nil {
			t.Fatalf("PurgeDeliveries = %d, %v, want 1: retention took the first one", n, err)
		}
		no := false
		if _, err := s.UpdateEndpoint(t.Context(), "", e.ID, store.EndpointChange{Disabled: &no}); err != nil {
			t.Fatal(err)
		}
		want(t, "enabled again", claimed(t, s, "w", 10), second)
		if n, err := s.PurgeDeliveries(t.Context(), time.Now().Add(time.Hour), 10); n != 0 || err != nil {
			t.Errorf("PurgeDeliveries of what a live endpoint is owed = %d, %v, want 0", n, err)
		}
		if err := s.DeleteEndpoint(t.Context(), "", e.ID); err != nil {
			t.Fatal(err)
		}
		list, err := s.ListDeliveries(t.Context(), store.DeliveryQuery{Limit: 10})
		if err != nil || len(list) != 1 || list[0].Status != fleet.DeliveryDead {
			t.Errorf("owed to a deleted endpoint: %+v, %v, want dead", list, err)
		}
	})
}

func TestAStreamNeverStalls(t *testing.T) {
	// Appending and finishing race for who is the next head; whoever loses the race must see the other.
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		tenant(t, s, "org-a")
		hook(t, s, fleet.Endpoint{OrgID: "org-a"})
		const total = 60
		var appending, finishing sync.WaitGroup
		for range 3 {
			appending.Go(func() {
				for range total / 3 {
					if _, err := s.AppendEvent(t.Context(), fleet.Event{OrgID: "org-a", Kind: fleet.EventMessage, ConversationID: "cnv_a"}); err != nil {
						t.Errorf("AppendEvent = %v", err)
					}
				}
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		var done atomic.Int64
		var mu sync.Mutex
		var order []int64
		for w := range 2 {
			finishing.Go(func() {
				for done.Load() < total && ctx.Err() == nil {
					list, err := s.ClaimDeliveries(ctx, store.ClaimDeliveryQuery{Owner: fmt.Sprintf("w%d", w), Limit: 4, LockFor: time.Minute})
					if err != nil {
						t.Errorf("ClaimDeliveries = %v", err)
						return
					}
					for _, c := range list {
						mu.Lock()
						order = append(order, c.Event.Seq)
						mu.Unlock()
						if ok, err := s.FinishDelivery(ctx, c, store.DeliveryResult{Status: 200}, false); !ok || err != nil {
							t.Errorf("FinishDelivery = %v, %v", ok, err)
						}
						done.Add(1)
					}
				}
			})
		}
		appending.Wait()
		finishing.Wait()
		if done.Load() != total || !slices.IsSorted(order) {
			t.Errorf("%d of %d delivered, in order: %v; want all in the order of seq", done.Load(), total, slices.IsSorted(order))
		}
	})
}
