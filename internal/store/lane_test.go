package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
)

func decodeEvent(t *testing.T, raw string) (d fleet.EventData) {
	t.Helper()
	if err := json.Unmarshal([]byte(raw), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// waitUntil returns when the database's clock has passed the time.
func waitUntil(t *testing.T, s *store.Store, until time.Time) {
	t.Helper()
	testkit.Eventually(t, 5*time.Second, func() error {
		now, err := s.Now(t.Context())
		if err == nil && !now.After(until) {
			err = fmt.Errorf("it is %v", now)
		}
		return err
	})
}

// age moves messages and what hangs on them into the past.
func age(t *testing.T, s *store.Store, by time.Duration, ids ...fleet.MessageID) {
	t.Helper()
	for _, id := range ids {
		for _, column := range []string{"created_at", "due_at", "expires_at", "unknown_since", "next_repeat_at", "locked_until"} {
			if _, err := s.DB().Exec(t.Context(), `UPDATE messages SET `+column+`=`+column+`-$2 WHERE id=$1 AND `+column+`>0`, id, by.Milliseconds()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestLaneSendsInDatabaseOrderOneAtATime(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		a, b := l.accept("5511900000001", "a"), l.accept("5511900000001", "b")
		item := l.wantNext(&a)
		if item.Repeat || item.Payload != nil || item.Text != "a" || item.WAID != a.WAID {
			t.Errorf("NextInLane = %+v, want a first send", item)
		}
		l.claim(a.ID, fleet.AttemptSend)
		l.wantNext(nil) // b goes to the same person and a's frame may be on its way
		l.record(store.Result{ID: a.ID, Outcome: fleet.OutcomeSent, At: time.UnixMilli(1_700_000_000_000)})
		l.wantNext(&b)
		m := l.wantState(a.ID, fleet.StatusSent, fleet.OutcomeSent)
		if m.Attempts != 1 || !m.SentAt.Equal(time.UnixMilli(1_700_000_000_000)) {
			t.Errorf("sent message = %+v, want one attempt and the ack's time", m)
		}
		l.wantAttempts(a.ID, "send/sent/0")
		l.wantEvents(a.ID, "sent/sent")
	})
}

func TestClaimCarriesTheFence(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		m := l.accept("5511900000001", "a")
		old := l.term
		l.takeOver("worker-2/boot")
		if ok, err := l.tryClaim(old, m.ID, fleet.AttemptSend); ok || !errors.Is(err, fleet.ErrLeaseLost) {
			t.Errorf("ClaimMessage under an ended term = %v, %v, want ErrLeaseLost", ok, err)
		}
		got := l.wantState(m.ID, fleet.StatusQueued, fleet.OutcomeNone)
		if got.Attempts != 0 {
			t.Errorf("attempts = %d after a refused claim, want 0", got.Attempts)
		}
		l.wantAttempts(m.ID)
		l.claim(m.ID, fleet.AttemptSend)
		// No due work is not a lost lease.
		if ok, err := l.tryClaim(l.term, m.ID, fleet.AttemptSend); ok || err != nil {
			t.Errorf("ClaimMessage of a message that is sending = %v, %v, want false", ok, err)
		}
		for name, call := range map[string]func() error{
			"RecordOutcome": func() error {
				return s.RecordOutcome(t.Context(), old, store.Result{ID: m.ID, Outcome: fleet.OutcomeSent})
			},
			"AdoptUnknown":        func() error { _, err := s.AdoptUnknown(t.Context(), old); return err },
			"TellUnknown":         func() error { _, err := s.TellUnknown(t.Context(), old); return err },
			"CloseOwnUnconfirmed": func() error { _, err := s.CloseOwnUnconfirmed(t.Context(), old); return err },
			"CountRetryFrame":     func() error { _, err := s.CountRetryFrame(t.Context(), old, m.WAID); return err },
			"ApplyReceipt": func() error {
				_, err := s.ApplyReceipt(t.Context(), old, fleet.Receipt{WAIDs: []string{m.WAID}, Status: fleet.StatusDelivered})
				return err
			},
		} {
			if err := call(); !errors.Is(err, fleet.ErrLeaseLost) {
				t.Errorf("%s under an ended term = %v, want ErrLeaseLost", name, err)
			}
		}
		l.wantState(m.ID, fleet.StatusSending, fleet.OutcomeNone)
	})
}

func TestTwoOwnersNeverBothClaimOneMessage(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		for round := range 5 {
			m := l.accept("5511900000001", fmt.Sprint(round))
			old := l.term
			var wg sync.WaitGroup
			var mu sync.Mutex
			claims := 0
			try := func(term fleet.Term) {
				ok, err := l.tryClaim(term, m.ID, fleet.AttemptSend)
				if err != nil && !errors.Is(err, fleet.ErrLeaseLost) {
					t.Errorf("ClaimMessage = %v", err)
				}
				mu.Lock()
				defer mu.Unlock()
				if ok {
					claims++
				}
			}
			for range 3 {
				wg.Go(func() { try(old) })
			}
			l.takeOver(fmt.Sprintf("worker-%d/boot", round))
			try(l.term)
			wg.Wait()
			if claims != 1 {
				t.Fatalf("round %d: %d claims of one message succeeded, want 1", round, claims)
			}
			if _, err := s.AdoptUnknown(t.Context(), l.term); err != nil {
				t.Fatal(err)
			}
			l.receipt(fleet.StatusDelivered, time.Time{}, m.WAID)
		}
	})
}

func TestPausedOrStoppedSessionClaimsNothing(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		for _, tc := range []struct{ name, set, undo string }{
			{"paused", "paused=TRUE", "paused=FALSE"},
			{"stopped", "desired='stopped'", "desired='running'"},
		} {
			l := newLane(t, s, fleet.OrgID("org-"+tc.name))
			m := l.accept("5511900000001", "a")
			set := func(what string) {
				if _, err := s.DB().Exec(t.Context(), `UPDATE sessions SET `+what+` WHERE id=$1`, l.sess.ID); err != nil {
					t.Fatal(err)
				}
			}
			set(tc.set)
			l.wantNext(nil)
			if ok, err := l.tryClaim(l.term, m.ID, fleet.AttemptSend); ok || err != nil {
				t.Errorf("%s: ClaimMessage = %v, %v, want false", tc.name, ok, err)
			}
			set(tc.undo)
			l.wantNext(&m)
			l.claim(m.ID, fleet.AttemptSend)
		}
	})
}

func TestRefusedMessageFailsWithItsCode(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		m := l.accept("5511900000001", "a")
		l.claim(m.ID, fleet.AttemptSend)
		l.record(store.Result{ID: m.ID, Outcome: fleet.OutcomeRefused, Code: 403, ErrorCode: "RECIPIENT_REFUSED", Detail: "The recipient does not take messages from this number."})
		got := l.wantState(m.ID, fleet.StatusFailed, fleet.OutcomeRefused)
		if got.ErrorCode != "RECIPIENT_REFUSED" || got.ErrorDetail == "" {
			t.Errorf("error = %q %q, want the refusal's", got.ErrorCode, got.ErrorDetail)
		}
		l.wantAttempts(m.ID, "send/refused/403")
		l.wantEvents(m.ID, "failed/refused")
		l.wantNext(nil)
		if changed := l.receipt(fleet.StatusDelivered, time.Time{}, m.WAID); len(changed) != 0 {
			t.Errorf("a receipt raised a failed message")
		}
	})
}

func TestNothingLeftMeansQueuedAgainUnderTheSameID(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, url)
		l := newLane(t, s, "org-a")
		m, later, other := l.accept("5511900000001", "a"), l.accept("5511900000001", "later"), l.accept("5511900000002", "other")
		l.send(m, fleet.OutcomeNothing) // next try in 5 s
		got := l.wantState(m.ID, fleet.StatusQueued, fleet.OutcomeNone)
		if got.WAID != m.WAID {
			t.Errorf("WhatsApp id changed from %s to %s", m.WAID, got.WAID)
		}
		l.wantEvents(m.ID)
		l.wantAttempts(m.ID, "send/nothing/7")
		// The message after it waits for it: it is to the same person. Other contacts never wait.
		l.wantNext(&other)
		l.send(other, fleet.OutcomeSent)
		l.wantNext(nil)
		time.Sleep(5 * time.Second)
		l.wantNext(&m)
		l.send(m, fleet.OutcomeSent)
		l.wantAttempts(m.ID, "send/nothing/7", "send/sent/7")
		l.wantNext(&later)
	})
}

func TestUnknownIsRepeatedTwiceUnderTheSameIDAndNeverAgain(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, url)
		l := newLane(t, s, "org-a")
		m := l.acceptFor("5511900000001", "a", time.Minute) // the time to live is about the first frame only
		l.send(m, fleet.OutcomeUnknown)
		t0 := time.Now()
		got := l.wantState(m.ID, fleet.StatusSending, fleet.OutcomeUnknown)
		if !got.UnknownSince.Equal(t0.Truncate(time.Millisecond)) {
			t.Errorf("unknown since %v, want %v", got.UnknownSince, t0)
		}
		for i, after := range fleet.RepeatAfter {
			time.Sleep(time.Until(t0.Add(after - time.Millisecond)))
			l.wantNext(nil)
			if ok, err := l.tryClaim(l.term, m.ID, fleet.AttemptRepeat); ok || err != nil {
				t.Errorf("repeat %d claimed 1 ms too early (%v)", i+1, err)
			}
			time.Sleep(time.Millisecond)
			item := l.wantNext(&m)
			if !item.Repeat || string(item.Payload) != "frame of "+string(m.ID) || item.WAID != m.WAID {
				t.Errorf("repeat %d = %+v, want the stored payload under the same id", i+1, item)
			}
			if due, err := s.DueLanes(t.Context(), store.Hold([]fleet.Term{l.term})); err != nil || len(due) != 1 {
				t.Errorf("DueLanes = %v, %v, want the session", due, err)
			}
			l.claim(m.ID, fleet.AttemptRepeat)
			l.wantNext(nil)
			l.record(store.Result{ID: m.ID, Outcome: fleet.OutcomeUnknown})
			if got := l.get(m.ID); !got.UnknownSince.Equal(t0.Truncate(time.Millisecond)) {
				t.Errorf("T0 moved from %v to %v with repeat %d", t0, got.UnknownSince, i+1)
			}
		}
		time.Sleep(23 * time.Hour)
		l.wantNext(nil)
		if ok, err := l.tryClaim(l.term, m.ID, fleet.AttemptRepeat); ok || err != nil {
			t.Errorf("a third repeat was claimed (%v)", err)
		}
		l.wantAttempts(m.ID, "send/unknown/7", "repeat/unknown/0", "repeat/unknown/0")
		l.wantState(m.ID, fleet.StatusSending, fleet.OutcomeUnknown)
	})
}

func TestAckOfARepeatSettlesTheUnknown(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, url)
		l := newLane(t, s, "org-a")
		m := l.accept("5511900000001", "a")
		l.send(m, fleet.OutcomeUnknown)
		time.Sleep(15 * time.Second)
		l.claim(m.ID, fleet.AttemptRepeat)
		l.record(store.Result{ID: m.ID, Outcome: fleet.OutcomeSent})
		l.wantState(m.ID, fleet.StatusSent, fleet.OutcomeSent)
		time.Sleep(time.Hour)
		l.wantNext(nil)
		l.wantEvents(m.ID, "sent/sent")
	})
}

func TestUnknownIsNeverFoldedIntoFailed(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, url)
		l := newLane(t, s, "org-a")
		m := l.accept("5511900000001", "a")
		l.send(m, fleet.OutcomeUnknown)
		time.Sleep(15 * time.Second)
		l.claim(m.ID, fleet.AttemptRepeat)
		// The repeat is refused, but the first frame may have arrived.
		l.record(store.Result{ID: m.ID, Outcome: fleet.OutcomeRefused, Code: 463, ErrorCode: "REACHOUT_RESTRICTED", Detail: "refused"})
		if got := l.wantState(m.ID, fleet.StatusSending, fleet.OutcomeUnknown); got.ErrorCode != "REACHOUT_RESTRICTED" {
			t.Errorf("error code = %q, want what the repeat was refused with", got.ErrorCode)
		}
		l.wantAttempts(m.ID, "send/unknown/7", "repeat/refused/463")
		time.Sleep(time.Hour)
		l.wantNext(nil) // not asked again
		l.receipt(fleet.StatusDelivered, time.Time{}, m.WAID)
		if got := l.wantState(m.ID, fleet.StatusDelivered, fleet.OutcomeSent); got.ErrorCode != "" {
			t.Errorf("error code = %q on a delivered message", got.ErrorCode)
		}
	})
}

func TestRepeatThatDidNotLeaveIsTriedAgain(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, url)
		l := newLane(t, s, "org-a")
		m := l.accept("5511900000001", "a")
		l.send(m, fleet.OutcomeUnknown)
		time.Sleep(15 * time.Second)
		l.claim(m.ID, fleet.AttemptRepeat)
		l.record(store.Result{ID: m.ID, Outcome: fleet.OutcomeNothing, RetryIn: 5 * time.Second})
		l.wantState(m.ID, fleet.StatusSending, fleet.OutcomeUnknown) // the first frame may have left: never queued again
		l.wantNext(nil)
		time.Sleep(5 * time.Second)
		if item := l.wantNext(&m); !item.Repeat {
			t.Error("the message is offered as a first send again")
		}
	})
}

func TestLaterMessagesOfThatContactWaitForTheFirstRepeatOrSixtySeconds(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, url)
		l := newLane(t, s, "org-a")
		first, second, stranger := l.accept("5511900000001", "first"), l.accept("5511900000001", "second"), l.accept("5511900000002", "stranger")
		l.send(first, fleet.OutcomeUnknown)
		t0 := time.Now()
		l.wantNext(&stranger) // other contacts never wait
		l.send(stranger, fleet.OutcomeSent)
		l.wantNext(nil)
		time.Sleep(15 * time.Second)
		l.wantNext(&first)
		l.claim(first.ID, fleet.AttemptRepeat)
		l.wantNext(&second)
		l.record(store.Result{ID: first.ID, Outcome: fleet.OutcomeUnknown})
		l.send(second, fleet.OutcomeSent)

		// Without a repeat (the session is away) the wait ends after 60 s.
		third, fourth := l.accept("5511900000003", "third"), l.accept("5511900000003", "fourth")
		l.send(third, fleet.OutcomeUnknown)
		time.Sleep(60*time.Second - time.Millisecond)
		waiting := func() bool {
			_, err := s.DB().Exec(t.Context(), `UPDATE messages SET next_repeat_at=0 WHERE id=$1`, third.ID)
			if err != nil {
				t.Fatal(err)
			}
			return l.next() == nil
		}
		if !waiting() {
			t.Error("the next message of the contact went before 60 s")
		}
		time.Sleep(time.Millisecond)
		l.wantNext(&fourth)
		_ = t0
	})
}

func TestUnknownIsToldOnceAfterSixtySeconds(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, url)
		l := newLane(t, s, "org-a")
		m := l.accept("5511900000001", "a")
		l.send(m, fleet.OutcomeUnknown)
		l.wantEvents(m.ID)
		time.Sleep(fleet.UnknownNotice - time.Millisecond)
		for range 3 {
			if _, err := s.TellUnknown(t.Context(), l.term); err != nil {
				t.Fatal(err)
			}
			if n, err := s.TellUnknownUnowned(t.Context(), 10); n != 0 && len(l.events(m.ID)) == 0 || err != nil {
				t.Errorf("TellUnknownUnowned = %d, %v before 60 s", n, err)
			}
			time.Sleep(time.Millisecond)
		}
		l.wantEvents(m.ID, "sending/unknown")
	})
}

func TestAfterTakeoverOpenFramesBecomeUnknownAndGoOnUnderTheNewTerm(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, url)
		l := newLane(t, s, "org-a")
		open, unknown := l.accept("5511900000001", "open"), l.accept("5511900000002", "unknown")
		l.send(unknown, fleet.OutcomeUnknown)
		l.claim(open.ID, fleet.AttemptSend) // the worker dies here
		time.Sleep(time.Minute)
		l.takeOver("worker-2/boot")
		l.wantNext(nil) // nothing is repeated before the offline queue has been read
		if due, err := s.DueLanes(t.Context(), store.Hold([]fleet.Term{l.term})); err != nil || len(due) != 0 {
			t.Errorf("DueLanes = %v, %v before AdoptUnknown, want none", due, err)
		}
		n, err := s.AdoptUnknown(t.Context(), l.term)
		if n != 2 || err != nil {
			t.Fatalf("AdoptUnknown = %d, %v, want 2", n, err)
		}
		got := l.wantState(open.ID, fleet.StatusSending, fleet.OutcomeUnknown)
		if d := time.Since(got.UnknownSince); d > time.Millisecond {
			t.Errorf("T0 is %v ago, want the end of the offline queue", d)
		}
		l.wantNext(nil)
		time.Sleep(15 * time.Second)
		l.wantNext(&open)
		l.claim(open.ID, fleet.AttemptRepeat)
		l.record(store.Result{ID: open.ID, Outcome: fleet.OutcomeSent})
		l.wantNext(&unknown)
		l.claim(unknown.ID, fleet.AttemptRepeat)
		l.record(store.Result{ID: unknown.ID, Outcome: fleet.OutcomeSent})
		l.wantState(open.ID, fleet.StatusSent, fleet.OutcomeSent)
		l.wantState(unknown.ID, fleet.StatusSent, fleet.OutcomeSent)
	})
}

func TestAdoptUnknownLeavesAFrameInFlightAlone(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, url)
		l := newLane(t, s, "org-a")
		m := l.accept("5511900000001", "a")
		l.claim(m.ID, fleet.AttemptSend)
		if n, err := s.AdoptUnknown(t.Context(), l.term); n != 0 || err != nil {
			t.Errorf("AdoptUnknown = %d, %v with a frame in flight, want 0", n, err)
		}
		time.Sleep(30*time.Second + time.Millisecond) // its lock runs out
		if n, err := s.AdoptUnknown(t.Context(), l.term); n != 1 || err != nil {
			t.Errorf("AdoptUnknown = %d, %v after the lock ran out, want 1", n, err)
		}
	})
}

func TestAfterADayUnknownIsUnconfirmedAndALateReceiptMayRaiseIt(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, url)
		l := newLane(t, s, "org-a")
		own, orphan, abandoned := l.accept("5511900000001", "own"), l.accept("5511900000002", "orphan"), l.accept("5511900000003", "abandoned")
		l.send(own, fleet.OutcomeUnknown)
		l.send(orphan, fleet.OutcomeUnknown)
		l.claim(abandoned.ID, fleet.AttemptSend) // nobody ever records its outcome
		beat := func() {
			t.Helper()
			if kept, err := s.BeatLeases(t.Context(), l.term.Owner, []fleet.Term{l.term}, 30*time.Second); err != nil || len(kept) != 1 {
				t.Fatalf("BeatLeases = %v, %v", kept, err)
			}
		}
		time.Sleep(fleet.UnconfirmedAfter - time.Millisecond)
		beat()
		if closed, err := s.CloseOwnUnconfirmed(t.Context(), l.term); err != nil || closed != 0 {
			t.Errorf("CloseOwnUnconfirmed = %v, %v before 24 h", closed, err)
		}
		time.Sleep(time.Millisecond)
		l.wantNext(nil) // nothing is repeated after 24 h, not even a repeat that was due before
		if ok, err := l.tryClaim(l.term, own.ID, fleet.AttemptRepeat); ok || err != nil {
			t.Errorf("repeat claimed after 24 h (%v)", err)
		}
		// The scheduler only closes what has no live lease.
		if n, err := s.CloseUnconfirmed(t.Context(), 10); n != 0 || err != nil {
			t.Errorf("CloseUnconfirmed = %d, %v under a live lease, want 0", n, err)
		}
		if _, err := s.DB().Exec(t.Context(), `UPDATE messages SET unknown_since=unknown_since+1000 WHERE id=$1`, orphan.ID); err != nil {
			t.Fatal(err)
		}
		if closed, err := s.CloseOwnUnconfirmed(t.Context(), l.term); err != nil || closed != 1 {
			t.Errorf("CloseOwnUnconfirmed = %d, %v, want 1", closed, err)
		}
		l.wantState(own.ID, fleet.StatusUnconfirmed, fleet.OutcomeUnknown)
		time.Sleep(time.Minute) // the lease runs out
		for _, want := range []int{1, 1, 0} {
			if n, err := s.CloseUnconfirmed(t.Context(), 1); n != want || err != nil {
				t.Errorf("CloseUnconfirmed(limit 1) = %d, %v, want %d", n, err, want)
			}
		}
		for _, m := range []fleet.Message{own, orphan, abandoned} {
			l.wantState(m.ID, fleet.StatusUnconfirmed, fleet.OutcomeUnknown)
			l.wantEvents(m.ID, "unconfirmed/unknown")
		}
		l.takeOver("worker-2/boot")
		if changed := l.receipt(fleet.StatusDelivered, time.Time{}, own.WAID); !slices.Equal(changed, []fleet.MessageID{own.ID}) {
			t.Errorf("ApplyReceipt changed %v, want the unconfirmed message", changed)
		}
		if got := l.wantState(own.ID, fleet.StatusDelivered, fleet.OutcomeSent); got.ErrorCode != "" {
			t.Errorf("error code = %q on a delivered message", got.ErrorCode)
		}
		l.wantEvents(own.ID, "unconfirmed/unknown", "sent/sent", "delivered/sent")
		var told string
		if err := s.DB().QueryRow(t.Context(), `SELECT data FROM events WHERE data LIKE '%"status":"sent"%'`).Scan(&told); err != nil {
			t.Fatal(err)
		}
		if d := decodeEvent(t, told); d.MessageID != own.ID || d.Code != "" {
			t.Errorf("event of the late receipt = %+v, want it without the code of the close", d)
		}
	})
}

func TestWithoutALiveLeaseTheSchedulerTellsButNeverRepeats(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, url)
		l := newLane(t, s, "org-a")
		m := l.accept("5511900000001", "a")
		l.claim(m.ID, fleet.AttemptSend) // the worker dies, nobody takes over
		time.Sleep(90*time.Second - time.Millisecond)
		if n, err := s.TellUnknownUnowned(t.Context(), 10); n != 0 || err != nil {
			t.Errorf("TellUnknownUnowned = %d, %v, want 0 until 60 s after the lock ran out", n, err)
		}
		time.Sleep(time.Millisecond)
		for _, want := range []int{1, 0} {
			if n, err := s.TellUnknownUnowned(t.Context(), 10); n != want || err != nil {
				t.Errorf("TellUnknownUnowned = %d, %v, want %d", n, err, want)
			}
		}
		l.wantEvents(m.ID, "sending/unknown")
		got := l.wantState(m.ID, fleet.StatusSending, fleet.OutcomeUnknown)
		if got.Repeats != 0 || got.Attempts != 1 {
			t.Errorf("the scheduler counted a frame: %+v", got)
		}
		// Whoever takes over reads the offline queue first and repeats 15 s after it.
		l.takeOver("worker-2/boot")
		if n, err := s.AdoptUnknown(t.Context(), l.term); n != 1 || err != nil {
			t.Fatalf("AdoptUnknown = %d, %v, want 1", n, err)
		}
		l.wantNext(nil)
		time.Sleep(15 * time.Second)
		l.wantNext(&m)
	})
}

func TestDueLanesNamesOnlySessionsWithDueWork(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		busy, idle, future := newLane(t, s, "org-busy"), newLane(t, s, "org-idle"), newLane(t, s, "org-future")
		busy.accept("5511900000001", "now")
		if _, err := s.CreateMessage(t.Context(), fleet.Message{
			OrgID: "org-future", SessionID: future.sess.ID, ContactKey: "5511900000001", ToJID: "5511900000001@s.whatsapp.net",
			Kind: "text", Text: "later", DueAt: time.Now().Add(time.Hour),
		}, fleet.DefaultTTL); err != nil {
			t.Fatal(err)
		}
		due, err := s.DueLanes(t.Context(), store.Hold([]fleet.Term{busy.term, idle.term, future.term}))
		if diff := cmp.Diff([]fleet.SessionID{busy.sess.ID}, due); err != nil || diff != "" {
			t.Errorf("DueLanes: %v (-want +got):\n%s", err, diff)
		}
		if due, err := s.DueLanes(t.Context(), store.Hold(nil)); len(due) != 0 || err != nil {
			t.Errorf("DueLanes without terms = %v, %v", due, err)
		}
	})
}

func TestRecordingARolledBackClaimChangesNothing(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		m := l.accept("5511900000001", "a")
		boom := errors.New("boom")
		err := s.InTx(t.Context(), func(ctx context.Context) error {
			if ok, err := s.ClaimMessage(ctx, l.term, store.Claim{ID: m.ID, Payload: []byte("x"), Kind: fleet.AttemptSend, LockFor: time.Second}); !ok || err != nil {
				t.Fatalf("ClaimMessage = %v, %v", ok, err)
			}
			return boom
		})
		if !errors.Is(err, boom) {
			t.Fatal(err)
		}
		l.record(store.Result{ID: m.ID, Outcome: fleet.OutcomeSent})
		l.wantState(m.ID, fleet.StatusQueued, fleet.OutcomeNone)
		l.wantEvents(m.ID)
		l.wantAttempts(m.ID)
	})
}
