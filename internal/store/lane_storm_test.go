package store_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

// Everybody who writes messages and their events at once: lanes, receipts, consumers, the scheduler.
// They lock leases, then messages, then streams, each in one order, so nobody ends in a deadlock;
// and what was acknowledged and delivered is so in the end, told once each.
func TestWritersOfMessagesDoNotBlockEachOtherForEver(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		a, b := newLane(t, s, "org-a"), newLane(t, s, "org-b")
		fail := func(what string, err error) {
			if err != nil && !errors.Is(err, fleet.ErrConflict) {
				t.Errorf("%s = %v", what, err)
			}
		}
		var lanes, others sync.WaitGroup
		stop := make(chan struct{})
		forever := func(what string, do func() error) {
			others.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						fail(what, do())
					}
				}
			})
		}
		for _, l := range []*lane{a, b} {
			const contacts, each = 3, 5
			var messages []fleet.Message
			for i := range contacts * each {
				messages = append(messages, l.accept(fmt.Sprintf("551190000000%d", i%contacts), fmt.Sprint(i)))
			}
			var waIDs []string
			for _, m := range messages {
				waIDs = append(waIDs, m.WAID)
			}
			var claimed atomic.Int64
			lanes.Go(func() {
				for _, m := range messages {
					if ok, err := s.ClaimMessage(ctx, l.term, store.Claim{ID: m.ID, Payload: []byte("x"), Kind: fleet.AttemptSend, LockFor: time.Minute}); err != nil || !ok {
						fail("ClaimMessage", err)
						continue // cancelled meanwhile
					}
					claimed.Add(1)
					fail("RecordOutcome", s.RecordOutcome(ctx, l.term, store.Result{ID: m.ID, Outcome: fleet.OutcomeSent}))
				}
			})
			forever("ApplyReceipt", func() error {
				_, err := s.ApplyReceipt(ctx, l.term, fleet.Receipt{WAIDs: waIDs[:claimed.Load()], Status: fleet.StatusDelivered})
				return err
			})
			forever("CountRetryFrame", func() error { _, err := s.CountRetryFrame(ctx, l.term, waIDs[0]); return err })
			forever("AdoptUnknown", func() error { _, err := s.AdoptUnknown(ctx, l.term); return err })
			last := messages[len(messages)-1]
			forever("CancelMessage", func() error { _, err := s.CancelMessage(ctx, l.org.ID, last.ID); return err })
		}
		forever("ExpireQueued", func() error { _, err := s.ExpireQueued(ctx, 10); return err })
		forever("CloseUnconfirmed", func() error { _, err := s.CloseUnconfirmed(ctx, 10); return err })
		lanes.Wait()
		close(stop)
		others.Wait()
		for _, l := range []*lane{a, b} {
			page, _, err := s.ListMessages(ctx, store.MessageQuery{Org: l.org.ID, Limit: 100})
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range page {
				l.receipt(fleet.StatusDelivered, time.Time{}, m.WAID)
				m = l.get(m.ID)
				if m.Status != fleet.StatusDelivered && m.Status != fleet.StatusCancelled {
					t.Errorf("message %q is %s in the end", m.Text, m.Status)
				}
				told := map[string]int{}
				for _, e := range l.events(m.ID) {
					if told[e]++; told[e] > 1 {
						t.Errorf("message %q: %s was told twice", m.Text, e)
					}
				}
			}
		}
	})
}
