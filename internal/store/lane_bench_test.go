package store_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

// What the lanes' own part of a send costs: claim, outcome and receipt, without the frame. Messages
// wait in their lanes already.
//
//	WAFLEET_TEST_POSTGRES=postgres://… go test -run '^$' -bench Lanes -benchtime 5000x ./internal/store
func BenchmarkLanes(b *testing.B) {
	for _, database := range []struct {
		name string
		open func(testing.TB) *store.Store
	}{{"postgres", storetest.Postgres}, {"sqlite", storetest.SQLite}} {
		for _, sessions := range []int{1, 16, 50} {
			b.Run(fmt.Sprintf("%s/%d", database.name, sessions), func(b *testing.B) { benchmarkLanes(b, database.open(b), sessions) })
		}
	}
}

func benchmarkLanes(b *testing.B, s *store.Store, sessions int) {
	b.Helper()
	ctx := b.Context()
	if _, err := s.CreateOrganization(ctx, fleet.Organization{ID: "org-a", Strategy: fleet.StrategyWeighted}); err != nil {
		b.Fatal(err)
	}
	if _, err := s.CreateEndpoint(ctx, fleet.Endpoint{OrgID: "org-a", Scope: fleet.ScopeOrganization, URL: "https://hooks.example/"}); err != nil {
		b.Fatal(err)
	}
	for range sessions {
		if _, err := s.CreateSession(ctx, store.NewSession{Org: "org-a"}); err != nil {
			b.Fatal(err)
		}
	}
	terms, _, err := s.ClaimLeases(ctx, store.ClaimQuery{Owner: "w", TTL: time.Hour, Limit: sessions, All: true})
	if err != nil || len(terms) != sessions {
		b.Fatal(len(terms), err)
	}
	for i := range b.N {
		contact := fmt.Sprint(5511900000000 + i%100)
		if _, err := s.CreateMessage(ctx, fleet.Message{
			OrgID: "org-a", ProjectID: "prj_1", SessionID: terms[i%sessions].SessionID, ContactKey: contact,
			ToJID: contact + "@s.whatsapp.net", Kind: "text", Text: "hello",
		}, time.Hour); err != nil {
			b.Fatal(err)
		}
	}
	b.ResetTimer()
	var lanes sync.WaitGroup
	for _, term := range terms {
		lanes.Go(func() {
			if err := benchmarkLane(b, s, term); err != nil {
				b.Error(err)
			}
		})
	}
	lanes.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}

// benchmarkLane works one lane empty. Receipts come beside it, as they do.
func benchmarkLane(b *testing.B, s *store.Store, term fleet.Term) error {
	b.Helper()
	var receipts sync.WaitGroup
	defer receipts.Wait()
	item, err := s.NextInLane(b.Context(), term.SessionID)
	if err != nil {
		return err
	}
	var result *store.Result
	for item != nil || result != nil {
		step := &store.Step{Term: term, Result: result, Look: true}
		if item != nil {
			step.Claim = &store.Claim{ID: item.ID, Payload: []byte(item.Text), Kind: fleet.AttemptSend, LockFor: time.Minute}
		}
		if err := s.Commit(b.Context(), step); err != nil {
			return err
		}
		result = nil
		if step.Claimed {
			waID := item.WAID
			receipts.Go(func() {
				_, err := s.ApplyReceipt(b.Context(), term, fleet.Receipt{WAIDs: []string{waID}, Status: fleet.StatusDelivered})
				if err != nil {
					b.Error(err)
				}
			})
			result = &store.Result{ID: item.ID, Outcome: fleet.OutcomeSent}
		} else if item != nil && step.Next == nil {
			return errors.New("a message was not claimed and none is next")
		}
		item = step.Next
	}
	return nil
}
