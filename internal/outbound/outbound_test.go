package outbound

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
	"github.com/wafleet/wafleet/internal/router"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
)

// world is one organization with one session that can send.
type world struct {
	t    *testing.T
	s    *store.Store
	o    *Outbound
	bus  *bus.Local
	term fleet.Term
}

func newWorld(t *testing.T, s *store.Store) *world {
	t.Helper()
	if _, err := s.CreateOrganization(t.Context(), fleet.Organization{ID: "org-a", Label: "A", Strategy: fleet.StrategyWeighted}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateSession(t.Context(), store.NewSession{Org: "org-a"}); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, s: s}
	terms, _, err := s.ClaimLeases(t.Context(), store.ClaimQuery{Owner: "worker-1/boot", Limit: 1, TTL: time.Hour})
	if err != nil || len(terms) != 1 {
		t.Fatalf("ClaimLeases = %v, %v", terms, err)
	}
	w.term = terms[0]
	if err := s.RecordLogin(t.Context(), w.term, store.Login{DeviceJID: "5511900000009:1@s.whatsapp.net", Phone: "5511900000009"}); err != nil {
		t.Fatal(err)
	}
	w.connect(fleet.ObservedConnected)
	w.o, w.bus = open(t, s)
	return w
}

// open gives another process on the same database.
func open(t *testing.T, s *store.Store) (*Outbound, *bus.Local) {
	t.Helper()
	b := bus.NewLocal()
	t.Cleanup(func() { _ = b.Close() })
	l := ledger.NewMemory(ledger.Options{Rebuild: router.Rebuild(s, 20, 5)})
	t.Cleanup(l.Close)
	return New(Options{Store: s, Router: router.New(router.Options{Store: s, Ledger: l, Keep: -1}), Ledger: l, Bus: b, Log: testkit.Logger(t)}), b
}

func (w *world) connect(state fleet.Observed) {
	w.t.Helper()
	if _, err := w.s.RecordObserved(w.t.Context(), w.term, store.Observation{State: state, Generation: 1}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) wantMessages(want int) []fleet.Message {
	w.t.Helper()
	page, _, err := w.s.ListMessages(w.t.Context(), store.MessageQuery{Org: "org-a", Limit: 100})
	if err != nil || len(page) != want {
		w.t.Fatalf("%d messages stored (%v), want %d", len(page), err, want)
	}
	return page
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	got := ""
	if c, ok := errors.AsType[*fleet.CodedError](err); ok {
		got = c.Code
	} else if i, ok := errors.AsType[*fleet.InvalidError](err); ok {
		got = i.Code
	}
	if got != code {
		t.Fatalf("error = %v, want code %s", err, code)
	}
}

func withKey(key string, edits ...func(*Request)) Request {
	return request(append(edits, func(r *Request) { r.Key = key })...)
}

func TestAcceptedMessageIsCommittedWithItsSessionAndWhatsAppID(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		nudged := make(chan string, 1)
		if _, err := w.bus.Subscribe(t.Context(), func(_, payload string) { nudged <- payload }, bus.TopicSend); err != nil {
			t.Fatal(err)
		}
		ttl := 60
		a, err := w.o.Accept(t.Context(), request(func(r *Request) { r.TTLSeconds, r.ClientRef = &ttl, "order 7" }))
		if err != nil || a.Replayed {
			t.Fatalf("Accept = %+v, %v", a, err)
		}
		m := a.Message
		if m.SessionID != w.term.SessionID || len(m.WAID) != 22 || m.Status != fleet.StatusQueued || m.To != "+55 11 9 0000 0001" ||
			m.ToJID != "5511900000001@s.whatsapp.net" || m.ClientRef != "order 7" || m.ExpiresAt.Sub(m.CreatedAt) != time.Minute || m.ProjectID != "prj_1" {
			t.Errorf("accepted message = %+v", m)
		}
		if diff := cmp.Diff(w.wantMessages(1)[0], m); diff != "" {
			t.Errorf("answered something else than is stored (-stored +answered):\n%s", diff)
		}
		select {
		case payload := <-nudged:
			if payload != string(m.SessionID) {
				t.Errorf("nudge = %q, want the session's id", payload)
			}
		case <-time.After(5 * time.Second):
			t.Error("no nudge")
		}
		if item, err := s.NextInLane(t.Context(), m.SessionID); err != nil || item == nil || item.ID != m.ID {
			t.Errorf("NextInLane = %v, %v, want the message", item, err)
		}
	})
}

func TestRefusedRequestWritesNothing(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		_, err := w.o.Accept(t.Context(), request(func(r *Request) { r.Text = "" }))
		wantCode(t, err, "TEXT_EMPTY")
		_, err = w.o.Accept(t.Context(), request(func(r *Request) { r.Org = "org-b" }))
		wantCode(t, err, "NO_SESSIONS")
		_, err = w.o.Accept(t.Context(), withKey("not a key"))
		wantCode(t, err, "INVALID_IDEMPOTENCY_KEY")
		w.connect(fleet.ObservedReconnecting)
		_, err = w.o.Accept(t.Context(), request())
		wantCode(t, err, "NONE_ELIGIBLE")
		w.wantMessages(0)
		for _, table := range []string{"contacts", "idempotency_keys", "events"} {
			var n int
			if err := s.DB().QueryRow(t.Context(), `SELECT count(*) FROM `+table).Scan(&n); err != nil || n != 0 {
				t.Errorf("%d rows in %s (%v), want 0", n, table, err)
			}
		}
	})
}

func TestTwentyRequestsWithOneKeyMakeOneMessage(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		other, _ := open(t, s) // a second process
		answers := make([]Accepted, 20)
		var wg sync.WaitGroup
		for i := range answers {
			wg.Go(func() {
				a, err := []*Outbound{w.o, other}[i%2].Accept(t.Context(), withKey("order-7"))
				if err != nil {
					t.Errorf("Accept = %v", err)
				}
				answers[i] = a
			})
		}
		wg.Wait()
		w.wantMessages(1)
		fresh := 0
		for _, a := range answers {
			if !a.Replayed {
				fresh++
			}
			if diff := cmp.Diff(answers[0].Message, a.Message); diff != "" {
				t.Errorf("answers differ:\n%s", diff)
			}
		}
		if fresh != 1 {
			t.Errorf("%d answers say they are not replayed, want 1", fresh)
		}
	})
}

func TestKeyReplaysTheFirstAnswerWhateverHappenedSince(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		first, err := w.o.Accept(t.Context(), withKey("order-7"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.o.Cancel(t.Context(), "org-a", first.Message.ID); err != nil {
			t.Fatal(err)
		}
		w.connect(fleet.ObservedReconnecting) // a new request would be refused now
		w.o, w.bus = open(t, s)               // and the process was started anew
		again, err := w.o.Accept(t.Context(), withKey("order-7"))
		if err != nil || !again.Replayed {
			t.Fatalf("Accept again = %+v, %v, want a replay", again, err)
		}
		if diff := cmp.Diff(first.Message, again.Message); diff != "" {
			t.Errorf("replay differs (-first +again):\n%s", diff)
		}
		_, err = w.o.Accept(t.Context(), withKey("order-7", func(r *Request) { r.Text = "another" }))
		wantCode(t, err, "IDEMPOTENCY_MISMATCH")
		w.wantMessages(1)
	})
}

func TestInvalidRequestIsKeptUnderItsKey(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		bad := withKey("order-7", func(r *Request) { r.To = "nobody" })
		first, err1 := w.o.Accept(t.Context(), bad)
		again, err2 := w.o.Accept(t.Context(), bad)
		wantCode(t, err1, "INVALID_RECIPIENT")
		wantCode(t, err2, "INVALID_RECIPIENT")
		if first.Replayed || !again.Replayed || err1.Error() != err2.Error() {
			t.Errorf("first %+v %v, then %+v %v, want the same refusal replayed", first, err1, again, err2)
		}
		_, err := w.o.Accept(t.Context(), withKey("order-7"))
		wantCode(t, err, "IDEMPOTENCY_MISMATCH")
	})
}

func TestRefusalThatMayPassReleasesTheKey(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		w.connect(fleet.ObservedReconnecting)
		_, err := w.o.Accept(t.Context(), withKey("order-7"))
		wantCode(t, err, "NONE_ELIGIBLE")
		w.connect(fleet.ObservedConnected)
		a, err := w.o.Accept(t.Context(), withKey("order-7"))
		if err != nil || a.Replayed {
			t.Fatalf("Accept after the session came back = %+v, %v, want it accepted", a, err)
		}
		w.wantMessages(1)
	})
}

func TestWorkGoesOnWhenTheClientHangsUp(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		ctx, hangUp := context.WithCancel(t.Context())
		w.o.gap = func(step string) error {
			if step == "routed" {
				hangUp()
			}
			return nil
		}
		a, err := w.o.Accept(ctx, withKey("order-7"))
		if err != nil {
			t.Fatalf("Accept = %v after the client hung up, want it accepted", err)
		}
		again, err := w.o.Accept(t.Context(), withKey("order-7"))
		if err != nil || !again.Replayed || again.Message.ID != a.Message.ID {
			t.Errorf("Accept again = %+v, %v, want the first message", again, err)
		}
	})
}

// A process dies at each of the gaps. Another one gets the same request at once and again after the
// key's lock has ended; there is one message in the end, and the lane has it.
func TestProcessDiesInBetween(t *testing.T) {
	died := errors.New("died")
	for _, step := range []string{"claimed", "routed", "inserted", "committed"} {
		t.Run(step, func(t *testing.T) {
			url := storetest.SQLiteURL(t)
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, storetest.Open(t, url))
				mortal := storetest.Open(t, url)
				dying, _ := open(t, mortal)
				dying.gap = func(at string) error {
					if at != step {
						return nil
					}
					_ = mortal.DB().Close() // it can't even release its key
					return died
				}
				if _, err := dying.Accept(t.Context(), withKey("order-7")); !errors.Is(err, died) {
					t.Fatalf("Accept of the dying process = %v", err)
				}
				start := time.Now()
				a, err := w.o.Accept(t.Context(), withKey("order-7"))
				if step == "committed" {
					if err != nil || !a.Replayed {
						t.Fatalf("Accept = %+v, %v, want the committed message", a, err)
					}
				} else {
					wantCode(t, err, "IDEMPOTENCY_IN_PROGRESS")
					if waited := time.Since(start); waited != keyWait {
						t.Errorf("waited %v for the other request, want %v", waited, keyWait)
					}
					w.wantMessages(0)
					time.Sleep(keyLock - keyWait)
					if a, err = w.o.Accept(t.Context(), withKey("order-7")); err != nil || a.Replayed {
						t.Fatalf("Accept after the lock's end = %+v, %v, want it accepted", a, err)
					}
				}
				if got := w.wantMessages(1); got[0].ID != a.Message.ID {
					t.Errorf("answered %s, stored is %s", a.Message.ID, got[0].ID)
				}
			})
		})
	}
}

func TestLoserWaitsForTheWinnersAnswer(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, url)
		w := newWorld(t, s)
		slow, _ := open(t, s)
		slow.gap = func(step string) error {
			if step == "routed" {
				time.Sleep(5 * time.Second)
			}
			return nil
		}
		var first Accepted
		var wg sync.WaitGroup
		wg.Go(func() {
			var err error
			if first, err = slow.Accept(t.Context(), withKey("order-7")); err != nil {
				t.Errorf("Accept of the winner = %v", err)
			}
		})
		time.Sleep(time.Second)
		start := time.Now()
		second, err := w.o.Accept(t.Context(), withKey("order-7"))
		wg.Wait()
		if err != nil || !second.Replayed || second.Message.ID != first.Message.ID {
			t.Errorf("loser got %+v, %v, want the winner's %s", second, err, first.Message.ID)
		}
		if waited := time.Since(start); waited < 4*time.Second || waited > 4*time.Second+pollHigh {
			t.Errorf("loser waited %v, want about 4 s", waited)
		}
	})
}

func TestLateHolderRollsBackAndAnswersAsTheWinner(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, url)
		w := newWorld(t, s)
		late, _ := open(t, s)
		late.gap = func(step string) error {
			if step == "claimed" { // stopped before its work begins; its work time is not running yet
				time.Sleep(keyLock + 500*time.Millisecond)
			}
			return nil
		}
		var lateAnswer Accepted
		var wg sync.WaitGroup
		wg.Go(func() {
			var err error
			if lateAnswer, err = late.Accept(t.Context(), withKey("order-7")); err != nil {
				t.Errorf("Accept of the late holder = %v", err)
			}
		})
		time.Sleep(keyLock - time.Millisecond)
		winner := make(chan Accepted, 1)
		w.o.gap = func(step string) error {
			if step == "routed" {
				time.Sleep(time.Second) // the late one is first with its transaction, and must not win
			}
			return nil
		}
		wg.Go(func() {
			a, err := w.o.Accept(t.Context(), withKey("order-7"))
			if err != nil {
				t.Errorf("Accept of the one that took over = %v", err)
			}
			winner <- a
		})
		wg.Wait()
		a := <-winner
		if lateAnswer.Message.ID != a.Message.ID || !lateAnswer.Replayed || a.Replayed {
			t.Errorf("late holder answered %+v, the winner %+v, want the winner's message replayed by the late one", lateAnswer, a)
		}
		w.wantMessages(1)
	})
}

func TestClientThatHangsUpStopsWaitingForAnother(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, url)
		w := newWorld(t, s)
		if got, err := s.ClaimIdempotency(t.Context(), store.IdempotencyClaim{
			Org: "org-a", Key: "order-7", BodyHash: new(request()).hash(), Holder: "somebody", LockFor: keyLock,
		}); err != nil || got.State != store.IdempotencyMine {
			t.Fatalf("ClaimIdempotency = %+v, %v", got, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if _, err := w.o.Accept(ctx, withKey("order-7")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Accept = %v, want the client's deadline", err)
		}
		if waited := time.Since(start); waited != time.Second {
			t.Errorf("waited %v, want 1 s", waited)
		}
	})
}

func TestCancelTakesBackOnlyWhatIsQueued(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		var mu sync.Mutex
		var topics []string
		if _, err := w.bus.Subscribe(t.Context(), func(topic, _ string) {
			mu.Lock()
			defer mu.Unlock()
			topics = append(topics, topic)
		}, bus.TopicWebhooks, bus.TopicMessage); err != nil {
			t.Fatal(err)
		}
		a, err := w.o.Accept(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		if m, err := w.o.Cancel(t.Context(), "org-a", a.Message.ID); err != nil || m.Status != fleet.StatusCancelled {
			t.Errorf("Cancel = %s, %v, want cancelled", m.Status, err)
		}
		testkit.Eventually(t, 5*time.Second, func() error {
			mu.Lock()
			defer mu.Unlock()
			if !slices.Contains(topics, bus.TopicWebhooks) || !slices.Contains(topics, bus.TopicMessage) {
				return errors.New("nudged: " + strings.Join(topics, ", "))
			}
			return nil
		})
		_, err = w.o.Cancel(t.Context(), "org-a", a.Message.ID)
		wantCode(t, err, "NOT_CANCELLABLE")
		if _, err := w.o.Cancel(t.Context(), "org-b", a.Message.ID); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("Cancel by another organization = %v, want ErrNotFound", err)
		}
	})
}
