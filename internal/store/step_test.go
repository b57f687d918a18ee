package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

// commitAll commits steps at once, so that most of them share a transaction.
func commitAll(ctx context.Context, s *store.Store, steps ...*store.Step) []error {
	errs := make([]error, len(steps))
	var wg sync.WaitGroup
	for i, step := range steps {
		wg.Go(func() { errs[i] = s.Commit(ctx, step) })
	}
	wg.Wait()
	return errs
}

func sent(m fleet.Message) *store.Result {
	return &store.Result{ID: m.ID, Outcome: fleet.OutcomeSent}
}

func claimOf(m fleet.Message) *store.Claim {
	return &store.Claim{ID: m.ID, Payload: []byte("frame of " + m.ID), Kind: fleet.AttemptSend, LockFor: time.Minute}
}

// block holds a lane's lease row as a beat does, so that steps queue behind the first.
func block(t *testing.T, s *store.Store, l *lane) (release func()) {
	t.Helper()
	if !s.Postgres() {
		return func() {}
	}
	tx, err := s.DB().RawDB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), `UPDATE leases SET expires_at=expires_at+1 WHERE session_id=$1`, l.sess.ID); err != nil {
		t.Fatal(err)
	}
	return func() { _ = tx.Rollback() }
}

func TestOneCommitWritesAnOutcomeClaimsTheNextMessageAndLooksAhead(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		a, b, c := l.accept("5511900000001", "a"), l.accept("5511900000001", "b"), l.accept("5511900000001", "c")
		first := &store.Step{Term: l.term, Claim: claimOf(a), Look: true}
		if err := s.Commit(t.Context(), first); err != nil || !first.Claimed || first.Next == nil || first.Next.ID != b.ID {
			t.Fatalf("Commit(claim a) = %v, claimed %v, next %+v, want b to be next, as if a were sent", err, first.Claimed, first.Next)
		}
		second := &store.Step{Term: l.term, Result: sent(a), Claim: claimOf(b), Look: true}
		if err := s.Commit(t.Context(), second); err != nil || !second.Claimed || second.Next == nil || second.Next.ID != c.ID {
			t.Fatalf("Commit(a sent, claim b) = %v, claimed %v, next %+v, want c", err, second.Claimed, second.Next)
		}
		l.wantEvents(a.ID, "sent/sent")
		l.wantState(b.ID, fleet.StatusSending, fleet.OutcomeNone)
		// b's outcome is unknown: c, to the same person, must wait, though the look ahead named it.
		third := &store.Step{Term: l.term, Result: &store.Result{ID: b.ID, Outcome: fleet.OutcomeUnknown}, Claim: claimOf(c), Look: true}
		if err := s.Commit(t.Context(), third); err != nil || third.Claimed || third.Next != nil {
			t.Errorf("Commit(b unknown, claim c) = %v, claimed %v, next %+v, want neither", err, third.Claimed, third.Next)
		}
		l.wantState(c.ID, fleet.StatusQueued, fleet.OutcomeNone)
		l.wantAttempts(c.ID)
	})
}

func TestALostLeaseEndsOnlyItsOwnStep(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		lanes := []*lane{newLane(t, s, "org-a"), newLane(t, s, "org-b"), newLane(t, s, "org-c")}
		var messages []fleet.Message
		for _, l := range lanes {
			m := l.accept("5511900000001", "a")
			l.claim(m.ID, fleet.AttemptSend)
			messages = append(messages, m)
		}
		old := lanes[1].term
		lanes[1].takeOver("worker-2/boot")
		refresh(t, s, lanes...) // it took all of them
		more := []fleet.Message{lanes[0].accept("5511900000002", "b"), lanes[1].accept("5511900000002", "b"), lanes[2].accept("5511900000002", "b")}
		release := block(t, s, lanes[0])
		steps := []*store.Step{
			{Term: lanes[0].term, Claim: claimOf(more[0])},
			{Term: old, Result: sent(messages[1]), Claim: claimOf(more[1]), Look: true},
			{Term: lanes[2].term, Claim: claimOf(more[2])},
			{Term: lanes[0].term, Receipt: &fleet.Receipt{WAIDs: []string{messages[0].WAID}, Status: fleet.StatusDelivered}},
		}
		done := make(chan []error, 1)
		go func() { done <- commitAll(t.Context(), s, steps...) }()
		release()
		errs := <-done
		for i, err := range errs {
			if lost := i == 1; errors.Is(err, fleet.ErrLeaseLost) != lost || !lost && err != nil {
				t.Errorf("step %d = %v, want a lost lease of step 1 only", i, err)
			}
		}
		if !steps[0].Claimed || steps[1].Claimed || !steps[2].Claimed {
			t.Errorf("claimed %v, %v, %v, want all but the stale owner's", steps[0].Claimed, steps[1].Claimed, steps[2].Claimed)
		}
		lanes[1].wantState(messages[1].ID, fleet.StatusSending, fleet.OutcomeNone)
		lanes[1].wantState(more[1].ID, fleet.StatusQueued, fleet.OutcomeNone)
		lanes[0].wantState(messages[0].ID, fleet.StatusDelivered, fleet.OutcomeSent)
	})
}

func TestAStepThatTheDatabaseRefusesFailsAlone(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		a, b := newLane(t, s, "org-a"), newLane(t, s, "org-b")
		good, bad := a.accept("5511900000001", "good"), b.accept("5511900000001", "bad")
		// The next frame's number is taken: its attempt can't be written.
		if _, err := s.DB().Exec(t.Context(), `INSERT INTO attempts (message_id, n, session_id, epoch, kind, at) VALUES ($1, 1, $2, 1, 'retry', 0)`, bad.ID, b.sess.ID); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			m := a.accept("5511900000001", "more")
			steps := []*store.Step{{Term: b.term, Claim: claimOf(bad)}, {Term: a.term, Claim: claimOf(m)}, {Term: b.term, Claim: claimOf(bad)}, {Term: a.term, Claim: claimOf(good)}}
			errs := commitAll(t.Context(), s, steps...)
			if errs[1] != nil || errs[3] != nil || !errors.Is(errs[0], fleet.ErrConflict) {
				t.Fatalf("Commit = %v, want an error of the poisoned steps only", errs)
			}
		}
		b.wantState(bad.ID, fleet.StatusQueued, fleet.OutcomeNone)
		a.wantState(good.ID, fleet.StatusSending, fleet.OutcomeNone)
	})
}

// refresh reads the terms that the lanes' sessions are under now.
func refresh(t *testing.T, s *store.Store, lanes ...*lane) {
	t.Helper()
	for _, l := range lanes {
		row, err := s.SessionByID(t.Context(), l.sess.ID)
		if err != nil {
			t.Fatal(err)
		}
		l.term = fleet.Term{SessionID: l.sess.ID, Owner: row.LeaseOwner, Epoch: row.LeaseEpoch}
	}
}

// Acks and receipts of many sessions at once, to people of one organization: their events lie on
// streams that the sessions share, and are told once each, in order, without a gap.
func TestSeqIsGaplessUnderConcurrentBatches(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		const sessions, each, contacts = 4, 6, 2
		l := newLane(t, s, "org-a")
		lanes := []*lane{l}
		for range sessions - 1 {
			lanes = append(lanes, &lane{t: t, s: s, org: l.org, sess: newSession(t, s, store.NewSession{Org: "org-a"})})
		}
		lanes[sessions-1].takeOver("worker-1/boot")
		refresh(t, s, lanes...)
		var wg sync.WaitGroup
		var all []fleet.Message
		for i, l := range lanes {
			var messages []fleet.Message
			for n := range each {
				messages = append(messages, l.accept(fmt.Sprint(5511900000001+(i+n)%contacts), fmt.Sprint(n)))
			}
			all = append(all, messages...)
			wg.Go(func() {
				var result *store.Result
				for _, m := range append(messages, fleet.Message{}) {
					step := &store.Step{Term: l.term, Result: result}
					if m.ID != "" {
						step.Claim = claimOf(m)
					}
					if err := s.Commit(t.Context(), step); err != nil || (m.ID != "" && !step.Claimed) {
						t.Errorf("Commit(claim %q) = %v, claimed %v", m.Text, err, step.Claimed)
						return
					}
					if m.ID == "" {
						return
					}
					result = sent(m)
					wg.Go(func() {
						if _, err := s.ApplyReceipt(t.Context(), l.term, fleet.Receipt{WAIDs: []string{m.WAID}, Status: fleet.StatusDelivered}); err != nil {
							t.Errorf("ApplyReceipt = %v", err)
						}
					})
				}
			})
		}
		wg.Wait()
		for _, m := range all {
			l.wantEvents(m.ID, "sent/sent", "delivered/sent")
		}
		seqs := map[string][]int64{}
		rows, err := s.DB().Query(t.Context(), `SELECT stream, seq FROM events WHERE kind=$1 ORDER BY n`, string(fleet.EventMessageStatus))
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var stream string
			var seq int64
			if err := rows.Scan(&stream, &seq); err != nil {
				t.Fatal(err)
			}
			seqs[stream] = append(seqs[stream], seq)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			t.Fatal(err)
		}
		for stream, got := range seqs {
			for i := range got {
				if got[i] != int64(i+1) {
					t.Fatalf("stream %s has the seqs %v, want them from 1 without a gap", stream, got)
				}
			}
		}
		if len(seqs) != contacts {
			t.Errorf("%d streams, want %d", len(seqs), contacts)
		}
	})
}

func TestAnAckAndItsReceiptInOneBatchAreToldInOrder(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		for i := range 8 {
			m := l.accept("5511900000001", fmt.Sprint(i))
			l.claim(m.ID, fleet.AttemptSend)
			receipt := &fleet.Receipt{WAIDs: []string{m.WAID}, Status: fleet.StatusDelivered}
			both := &store.Step{Term: l.term, Result: sent(m), Receipt: receipt}
			if err := s.Commit(t.Context(), both); err != nil || !slices.Equal(both.Raised, []fleet.MessageID{m.ID}) {
				t.Fatalf("Commit(sent and delivered) = %v, raised %v", err, both.Raised)
			}
			l.wantEvents(m.ID, "sent/sent", "delivered/sent")
			if got := l.wantState(m.ID, fleet.StatusDelivered, fleet.OutcomeSent); got.SentAt.IsZero() || got.DeliveredAt.IsZero() {
				t.Errorf("sent at %v, delivered at %v, want both", got.SentAt, got.DeliveredAt)
			}
		}
	})
}

func TestOneOfTwoClaimsOfAMessageInABatchWins(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		for i := range 5 {
			m := l.accept(fmt.Sprint(5511900000001+i), "a")
			steps := []*store.Step{{Term: l.term, Claim: claimOf(m)}, {Term: l.term, Claim: claimOf(m)}, {Term: l.term, Claim: claimOf(m)}}
			errs := commitAll(t.Context(), s, steps...)
			won := 0
			for i, step := range steps {
				if errs[i] != nil {
					t.Fatalf("Commit = %v", errs[i])
				}
				if step.Claimed {
					won++
				}
			}
			if won != 1 {
				t.Errorf("%d of three claims won, want 1", won)
			}
			l.wantAttempts(m.ID, "send//0")
		}
	})
}
