package outbound

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

// sentBy counts the stored messages of each session.
func (w *world) sentBy() map[fleet.SessionID]int {
	w.t.Helper()
	page, _, err := w.s.ListMessages(w.t.Context(), store.MessageQuery{Org: "org-a", Limit: 100})
	if err != nil {
		w.t.Fatal(err)
	}
	n := map[fleet.SessionID]int{}
	for _, m := range page {
		n[m.SessionID]++
	}
	return n
}

// leave has the frames leave that sessions have waiting, as their lanes would.
func (w *world) leave(terms ...fleet.Term) {
	w.t.Helper()
	page, _, err := w.s.ListMessages(w.t.Context(), store.MessageQuery{Org: "org-a", Limit: 100})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, m := range page {
		if m.Status != fleet.StatusQueued || !slices.ContainsFunc(terms, func(t fleet.Term) bool { return t.SessionID == m.SessionID }) {
			continue
		}
		held, err := ledger.ParseReservation(m.Reservation)
		if err != nil {
			w.t.Fatal(err)
		}
		if err := w.o.ledger.Settle(w.t.Context(), ledger.Settlement{Reservation: held, Frames: 1}); err != nil {
			w.t.Fatal(err)
		}
		if _, err := w.s.DB().Exec(w.t.Context(), `UPDATE messages SET status='sent', attempts=1 WHERE id=$1`, m.ID); err != nil {
			w.t.Fatal(err)
		}
	}
}

// A number of 100 messages a day, 20 of them to new people, has a tenth of both on its first day. The third new person hears
// from another number, and so does the eleventh message.
func TestANewNumberOpensFewChatsOnItsFirstDayAndTheNextGoToAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storetest.SQLite(t))
		if err := w.s.RecordPaired(t.Context(), w.term); err != nil { // its first day begins
			t.Fatal(err)
		}
		old := w.second()
		priority, chats := fleet.StrategyPriority, 20
		if _, err := w.s.UpdateOrganization(t.Context(), "org-a", store.OrgChange{Strategy: &priority}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.s.UpdateSession(t.Context(), "org-a-01", store.SessionChange{
			Budget: &fleet.Budget{PerMinute: 1000, PerHour: 1000, PerDay: 100}, NewChatsPerDay: &chats,
		}); err != nil {
			t.Fatal(err)
		}
		send := func(person int) fleet.SessionID {
			t.Helper()
			a, err := w.o.Accept(t.Context(), request(func(r *Request) { r.To = fmt.Sprint(5511900000100 + person) }))
			if err != nil {
				t.Fatal(err)
			}
			return a.Message.SessionID
		}
		for person := range 5 {
			want := w.term.SessionID
			if person >= 2 {
				want = old.SessionID
			}
			if got := send(person); got != want {
				t.Errorf("new person %d hears from %s, want %s", person+1, got, want)
			}
		}
		for range 8 { // ten in sum
			if got := send(0); got != w.term.SessionID {
				t.Errorf("somebody who has heard from the new number hears from %s next", got)
			}
		}
		if got := send(1); got != old.SessionID {
			t.Errorf("the eleventh message of the day goes out by %s, want the other number", got)
		}
		if n := w.sentBy()[w.term.SessionID]; n != 10 {
			t.Errorf("the new number has %d messages on its first day, want 10", n)
		}
	})
}

// What banned numbers had waiting is not shovelled onto those that are left, and callers hear 429.
func TestWhenNumbersAreBannedTheOthersStayWithinTheirBudgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perMinute = 6
		w := newWorld(t, storetest.SQLite(t))
		terms := []fleet.Term{w.term}
		for digit := 1; digit <= 4; digit++ {
			terms = append(terms, w.another(digit))
		}
		chats := 1000
		for i := range terms {
			if _, err := w.s.UpdateSession(t.Context(), fleet.SessionSlug(fmt.Sprintf("org-a-%02d", i+1)), store.SessionChange{
				Budget: &fleet.Budget{PerMinute: perMinute, PerHour: 10_000, PerDay: 10_000}, NewChatsPerDay: &chats,
			}); err != nil {
				t.Fatal(err)
			}
		}
		person := 0
		flood := func() (taken int) {
			t.Helper()
			for range 50 {
				person++
				_, err := w.o.Accept(t.Context(), request(func(r *Request) { r.To = fmt.Sprint(5511900000100 + person) }))
				if err == nil {
					taken++
					continue
				}
				wantCode(t, err, "RATE_LIMITED")
				if coded, _ := errors.AsType[*fleet.CodedError](err); coded.RetryAfter <= 0 {
					t.Fatalf("Accept = %v, want a time to try again", err)
				}
			}
			return taken
		}
		if got := flood(); got != 5*perMinute {
			t.Fatalf("five numbers take %d messages in a minute, want %d", got, 5*perMinute)
		}
		for _, term := range terms[:3] {
			if _, err := w.s.RecordObserved(t.Context(), term, store.Observation{State: fleet.ObservedBanned, Generation: 1}); err != nil {
				t.Fatal(err)
			}
		}
		for minute := range 4 {
			w.leave(terms[3:]...)
			time.Sleep(61 * time.Second) // and those frames have left the windows
			before := w.sentBy()
			for range 5 {
				if _, err := w.o.Dispatch(t.Context(), 100); err != nil {
					t.Fatal(err)
				}
			}
			taken := flood()
			after := w.sentBy()
			for _, term := range terms[3:] {
				if n := after[term.SessionID] - before[term.SessionID]; n > perMinute {
					t.Errorf("minute %d: a number that is left gets %d messages, more than its %d", minute, n, perMinute)
				}
			}
			if sum := after[terms[3].SessionID] + after[terms[4].SessionID] - before[terms[3].SessionID] - before[terms[4].SessionID]; sum != 2*perMinute {
				t.Errorf("minute %d: both together get %d (%d of them new), want their %d", minute, sum, taken, 2*perMinute)
			}
		}
	})
}
