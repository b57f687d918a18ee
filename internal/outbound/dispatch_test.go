package outbound

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
)

// second adds a session that can send.
func (w *world) second() fleet.Term { return w.another(8) }

// another adds a session with a number that ends in this digit and can send.
func (w *world) another(digit int) fleet.Term {
	w.t.Helper()
	v, err := w.s.CreateSession(w.t.Context(), store.NewSession{Org: "org-a", Warmed: true})
	if err != nil {
		w.t.Fatal(err)
	}
	terms, _, err := w.s.ClaimLeases(w.t.Context(), store.ClaimQuery{Owner: fmt.Sprintf("worker-%d/boot", digit), Limit: 1, TTL: time.Hour})
	if err != nil || len(terms) != 1 || terms[0].SessionID != v.ID {
		w.t.Fatalf("ClaimLeases = %v, %v", terms, err)
	}
	phone := fmt.Sprintf("551190000000%d", digit)
	if err := w.s.RecordLogin(w.t.Context(), terms[0], store.Login{DeviceJID: phone + ":1@s.whatsapp.net", Phone: phone}); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.s.RecordObserved(w.t.Context(), terms[0], store.Observation{State: fleet.ObservedConnected, Generation: 1}); err != nil {
		w.t.Fatal(err)
	}
	return terms[0]
}

func (w *world) message(id fleet.MessageID) fleet.Message {
	w.t.Helper()
	m, err := w.s.GetMessage(w.t.Context(), "org-a", id)
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

// used is what a session's number has used of its minute and of its new chats.
func (w *world) used(id fleet.SessionID) (minute, chats, outstanding int) {
	w.t.Helper()
	e, err := w.o.Capacity(w.t.Context(), "org-a")
	if err != nil {
		w.t.Fatal(err)
	}
	v, err := w.s.SessionByID(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, s := range e.Sessions {
		if s.Slug == v.Slug {
			return s.Used.PerMinute, s.Used.NewChatsPerDay, s.Outstanding
		}
	}
	w.t.Fatalf("no session %s in %+v", v.Slug, e.Sessions)
	return 0, 0, 0
}

func TestStrandedMessagesOfAPersonMoveTogetherWithWhatTheyHeld(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		var waiting []fleet.MessageID
		for range 2 {
			a, err := w.o.Accept(t.Context(), request())
			if err != nil {
				t.Fatal(err)
			}
			waiting = append(waiting, a.Message.ID)
		}
		other := w.second()
		if n, err := w.o.Dispatch(t.Context(), 10); err != nil || n != 0 {
			t.Fatalf("Dispatch = %d, %v, want nothing moved while their session can send", n, err)
		}
		if minute, chats, _ := w.used(w.term.SessionID); minute != 2 || chats != 1 {
			t.Fatalf("first number used %d of its minute, %d new chats, want 2 and 1: the second message opens nothing", minute, chats)
		}
		yes := true
		v, err := s.SessionByID(t.Context(), w.term.SessionID)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.UpdateSession(t.Context(), v.Slug, store.SessionChange{Paused: &yes}); err != nil {
			t.Fatal(err)
		}
		if n, err := w.o.Dispatch(t.Context(), 10); err != nil || n != 2 {
			t.Fatalf("Dispatch = %d, %v, want both moved", n, err)
		}
		for i, id := range waiting {
			m := w.message(id)
			if m.SessionID != other.SessionID || m.Status != fleet.StatusQueued || m.Opened != (i == 0) {
				t.Errorf("message %d = %+v, want it queued on the second session", i, m)
			}
		}
		if minute, chats, outstanding := w.used(other.SessionID); minute != 2 || chats != 1 || outstanding != 2 {
			t.Errorf("second number used %d, %d new chats, %d outstanding, want 2, 1, 2", minute, chats, outstanding)
		}
		no := false
		if _, err := s.UpdateSession(t.Context(), v.Slug, store.SessionChange{Paused: &no}); err != nil {
			t.Fatal(err)
		}
		if minute, chats, _ := w.used(w.term.SessionID); minute != 0 || chats != 0 {
			t.Errorf("first number still holds %d of its minute and %d new chats", minute, chats)
		}
		if chat, err := s.Chats(t.Context(), w.message(waiting[0]).ContactKey); err != nil || len(chat) != 2 {
			t.Errorf("chats = %+v, %v", chat, err)
		}
		if item, err := s.NextInLane(t.Context(), other.SessionID); err != nil || item == nil || item.ID != waiting[0] {
			t.Errorf("next in the second lane = %v, %v, want the first message", item, err)
		}
	})
}

func TestAScheduledMessageGetsItsNumberWhenItIsDue(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		later, err := w.o.Accept(t.Context(), request(func(r *Request) { r.SendAt = time.Now().Add(time.Hour) }))
		if err != nil || !later.Message.Parked || !later.Message.DueAt.Equal(later.Message.SendAt) {
			t.Fatalf("Accept = %+v, %v", later.Message, err)
		}
		soon, err := w.o.Accept(t.Context(), request(func(r *Request) { r.SendAt = time.Now().Add(200 * time.Millisecond) }))
		if err != nil {
			t.Fatal(err)
		}
		if minute, _, _ := w.used(w.term.SessionID); minute != 0 {
			t.Errorf("scheduled messages took %d of a number's minute, want 0", minute)
		}
		testkit.Eventually(t, 10*time.Second, func() error {
			if n, err := w.o.Dispatch(t.Context(), 10); err != nil || n != 1 {
				return errors.New("not due yet")
			}
			return nil
		})
		if m := w.message(soon.Message.ID); m.Parked || m.Reservation == "" || m.SessionID != w.term.SessionID {
			t.Errorf("due message = %+v, want it with a number", m)
		}
		if m := w.message(later.Message.ID); !m.Parked {
			t.Errorf("later message = %+v, want it to wait", m)
		}
		if minute, _, _ := w.used(w.term.SessionID); minute != 1 {
			t.Errorf("a due message took %d of a number's minute, want 1", minute)
		}
	})
}

func TestAMessageThatEndsBeforeAFrameGivesItsBudgetBack(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		a, err := w.o.Accept(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		if minute, chats, _ := w.used(w.term.SessionID); minute != 1 || chats != 1 {
			t.Fatalf("used %d of the minute, %d new chats, want 1 and 1", minute, chats)
		}
		if _, err := w.o.Cancel(t.Context(), "org-a", a.Message.ID); err != nil {
			t.Fatal(err)
		}
		if minute, chats, _ := w.used(w.term.SessionID); minute != 0 || chats != 0 {
			t.Errorf("a cancelled message still holds %d of the minute, %d new chats", minute, chats)
		}
		if n, err := w.o.GiveBackOwed(t.Context(), 10); err != nil || n != 0 {
			t.Errorf("GiveBackOwed = %d, %v, want nothing given back twice", n, err)
		}
	})
}

func TestARebuiltLedgerMakesAcceptReserveAgain(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		if _, err := w.o.Accept(t.Context(), request()); err != nil {
			t.Fatal(err)
		}
		rebuilt := false
		w.o.gap = func(step string) error {
			if step == "routed" && !rebuilt { // between the reservation and the INSERT
				rebuilt = true
				l, ok := w.o.ledger.(*ledger.Memory)
				if !ok {
					t.Fatal("not the ledger in memory")
				}
				m := w.wantMessages(1)[0]
				if err := l.Cool(t.Context(), m.Generation); err != nil {
					return err
				}
				return l.Warm(t.Context())
			}
			return nil
		}
		a, err := w.o.Accept(t.Context(), request())
		if err != nil || !rebuilt {
			t.Fatalf("Accept = %v, rebuilt %v", err, rebuilt)
		}
		if first := w.wantMessages(2)[1]; a.Message.Generation <= first.Generation {
			t.Errorf("stored under generation %d, the one before is %d", a.Message.Generation, first.Generation)
		}
		if minute, _, outstanding := w.used(w.term.SessionID); minute != 2 || outstanding != 2 {
			t.Errorf("used %d of the minute, %d outstanding, want 2 and 2: each message once", minute, outstanding)
		}
	})
}
