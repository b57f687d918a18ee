package worker

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/outbound"
	"github.com/wafleet/wafleet/internal/router"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/testkit"
	"github.com/wafleet/wafleet/internal/wasim"
)

// api is one more process that takes messages; keep is how long it uses rows again.
func (w *world) api(keep time.Duration) *outbound.Outbound {
	return outbound.New(outbound.Options{
		Store: w.st, Router: router.New(router.Options{Store: w.st, Ledger: w.ledger, Keep: keep}), Ledger: w.ledger, Bus: w.bus, Log: testkit.Logger(w.t),
	})
}

func (w *world) request(to, text string) outbound.Request {
	w.t.Helper()
	project, err := w.st.DefaultProject(w.t.Context(), w.org)
	if err != nil {
		w.t.Fatal(err)
	}
	return outbound.Request{Org: w.org, Project: project, To: to, Text: text}
}

// accepted sends to a person through an API.
func (w *world) accepted(o *outbound.Outbound, to string) fleet.Message {
	w.t.Helper()
	a, err := o.Accept(w.t.Context(), w.request(to, "hello"))
	if err != nil {
		w.t.Fatalf("Accept for %s: %v", to, err)
	}
	return a.Message
}

// becomes waits until a message has this status.
func (w *world) becomes(id fleet.MessageID, want fleet.Status) fleet.Message {
	w.t.Helper()
	var m fleet.Message
	w.await("a message that is "+string(want), func() bool {
		var err error
		if m, err = w.st.GetMessage(w.t.Context(), w.org, id); err != nil {
			w.t.Fatal(err)
		}
		return m.Status == want || m.Status.Rank() > 0 && m.Status.Rank() >= want.Rank() && want.Rank() > 0
	})
	return m
}

// person makes a phone that is on.
func (w *world) person(pn string) { w.sim.Phone(pn).Power(true) }

func limitedFor(t *testing.T, err error) time.Duration {
	t.Helper()
	coded, _ := errors.AsType[*fleet.CodedError](err)
	if coded == nil || coded.Code != "RATE_LIMITED" || coded.RetryAfter <= 0 {
		t.Fatalf("Accept = %v, want RATE_LIMITED with a time", err)
	}
	return coded.RetryAfter
}

func TestNo60SecondsHaveMoreFramesThanTheBudgetAlsoWhenTheLaneWasHeldUp(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		w.person(person1)
		const perMinute = 20
		w.budget(s.Slug, fleet.Budget{PerMinute: perMinute, PerHour: 1_000, PerDay: 1_000})
		apis := []*outbound.Outbound{w.api(time.Hour), w.api(time.Hour)} // they don't hear that the lane is held up
		for _, o := range apis {
			if _, err := o.Capacity(t.Context(), w.org); err != nil {
				t.Fatal(err)
			}
		}
		hold := func(on bool) {
			if _, err := w.st.UpdateSession(t.Context(), s.Slug, store.SessionChange{Paused: &on}); err != nil {
				t.Fatal(err)
			}
		}
		hold(true)
		r := w.request(person1, "hello")
		var took, refused atomic.Int64
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				_, err := apis[i%2].Accept(t.Context(), r)
				switch coded, _ := errors.AsType[*fleet.CodedError](err); {
				case err == nil:
					took.Add(1)
				case coded != nil && coded.Code == "RATE_LIMITED" && coded.RetryAfter > 0:
					refused.Add(1)
				default:
					t.Errorf("Accept = %v, want RATE_LIMITED", err)
				}
			})
		}
		all.Wait()
		if took.Load() != perMinute || refused.Load() != 100-perMinute {
			t.Fatalf("%d of 100 were taken and %d refused, want %d and %d", took.Load(), refused.Load(), perMinute, 100-perMinute)
		}
		for range 6 { // three minutes: what has not left counts in every window
			w.sleep(30 * time.Second)
			_, err := apis[0].Accept(t.Context(), r)
			limitedFor(t, err)
		}
		hold(false)
		w.await("the frames that waited", func() bool { return len(w.frameTimes()) == perMinute })
		for sent := perMinute; sent < 3*perMinute; {
			_, err := apis[sent%2].Accept(t.Context(), r)
			if err == nil {
				sent++
				continue
			}
			w.sleep(limitedFor(t, err))
			if _, err := apis[0].Accept(t.Context(), r); err != nil {
				t.Fatalf("after waiting as told: %v", err)
			}
			sent++
		}
		w.await("all frames", func() bool { return len(w.frameTimes()) >= 3*perMinute })
		times := w.frameTimes()
		for i := perMinute; i < len(times); i++ {
			if apart := times[i].Sub(times[i-perMinute]); apart < time.Minute {
				t.Errorf("frames %d to %d within %s, want no %d of them within 60 seconds", i-perMinute, i, apart, perMinute+1)
			}
		}
	})
}

// frameTimes are the times at which messages of sessions came to WhatsApp.
func (w *world) frameTimes() []time.Time {
	var out []time.Time
	for _, e := range w.sim.Log(wasim.Query{Kind: wasim.KindMessage, Dir: wasim.DirIn}) {
		out = append(out, e.At)
	}
	return out
}

func TestAThrottledNumberLeavesRotationWithinFourFailuresAndNobodyHearsFromMoreThanTwo(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		numbers := []string{number1, number2, "5511900000003"}
		var sessions []fleet.Session
		for _, n := range numbers {
			sessions = append(sessions, w.paired(n))
		}
		people := make([]string, 6)
		for i := range people {
			people[i] = fmt.Sprintf("55119000002%02d", i)
			w.person(people[i])
		}
		o := w.api(0)
		heard := map[string]map[fleet.SessionID]bool{}
		tell := func(pn string) fleet.Message {
			m := w.accepted(o, pn)
			w.await("an answer of WhatsApp", func() bool {
				var err error
				if m, err = w.st.GetMessage(t.Context(), w.org, m.ID); err != nil {
					t.Fatal(err)
				}
				return m.Status.Settled()
			})
			if heard[pn] == nil {
				heard[pn] = map[fleet.SessionID]bool{}
			}
			heard[pn][m.SessionID] = true
			w.sleep(time.Second) // the ledger has heard of it
			return m
		}
		for _, pn := range people {
			if m := tell(pn); m.SessionID != sessions[0].ID {
				t.Fatalf("%s hears from %s, want the first number", pn, m.SessionID)
			}
		}
		w.sim.SetEnforcement(number1, wasim.Enforcement{Throttle: &wasim.Throttle{Code: 429}})
		failed := 0
		for range 4 {
			for _, pn := range people {
				if m := tell(pn); m.Status == fleet.StatusFailed {
					failed++
				}
			}
		}
		if failed != 4 {
			t.Errorf("%d messages failed before the number left rotation, want 4", failed)
		}
		for pn, from := range heard {
			if len(from) > 2 {
				t.Errorf("%s heard from %d numbers, want two at most", pn, len(from))
			}
		}
	})
}

func TestARefusedStrangerGetsOneTryOnAnotherNumberAndTheLockIsToldOnce(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		first, second := w.paired(number1), w.paired(number2)
		friend := "5511900000301"
		for _, pn := range []string{person1, person2, friend, "5511900000302", "5511900000303"} {
			w.person(pn)
		}
		if _, err := w.sim.Phone(friend).SendText(t.Context(), number1, "hi"); err != nil {
			t.Fatal(err)
		}
		w.await("the friend's message", func() bool { return w.came() == 1 })
		w.sim.SetEnforcement(number1, wasim.Enforcement{TimeLock: &wasim.TimeLock{Quiet: true}})
		o := w.api(0)
		hop := func(pn string) {
			t.Helper()
			m := w.accepted(o, pn)
			if m.SessionID != first.ID {
				t.Fatalf("%s is first tried from %s, want the first number", pn, m.SessionID)
			}
			w.await("a refusal", func() bool { m, _ = w.st.GetMessage(t.Context(), w.org, m.ID); return m.Parked })
			if n, err := o.Dispatch(t.Context(), 10); err != nil || n != 1 {
				t.Fatalf("Dispatch = %d, %v, want one message moved", n, err)
			}
			if m = w.becomes(m.ID, fleet.StatusSent); m.SessionID != second.ID || m.ErrorCode != "" {
				t.Errorf("refused message = %+v, want it sent by the second number", m)
			}
		}
		hop(person1)
		if got := w.row(first.ID); !got.ColdUntil.IsZero() {
			t.Errorf("one refusal locks the number until %s, want that to be about that person alone", got.ColdUntil)
		}
		hop(person2)
		if got := w.row(first.ID); !got.ColdUntil.After(time.Now()) {
			t.Error("the second stranger's refusal does not lock the number for strangers")
		}
		third := w.accepted(o, "5511900000302")
		if third.SessionID != second.ID {
			t.Errorf("the third stranger is tried from %s, want the second number at once", third.SessionID)
		}
		if m := w.accepted(o, friend); m.SessionID != first.ID {
			t.Errorf("who wrote to the first number hears from %s", m.SessionID)
		} else {
			w.becomes(m.ID, fleet.StatusSent)
		}
		if told := w.events(fleet.EventReachoutRestricted); len(told) != 1 || told[0].Data.Until == 0 {
			t.Errorf("events %+v, want one with an end", told)
		}
		e, err := o.Capacity(t.Context(), w.org)
		if err != nil || len(e.Sessions) != 2 || e.Sessions[0].Health != 100 {
			t.Errorf("capacity = %+v, %v, want the first number in full health", e.Sessions, err)
		}
		// Where every number is refused, the second refusal is the end.
		w.sim.SetEnforcement(number2, wasim.Enforcement{NewChats: &wasim.NewChatCap{Quiet: true}})
		m := w.becomes(w.accepted(o, "5511900000303").ID, fleet.StatusQueued)
		w.await("a refusal", func() bool { m, _ = w.st.GetMessage(t.Context(), w.org, m.ID); return m.Parked })
		if _, err := o.Dispatch(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
		if m = w.becomes(m.ID, fleet.StatusFailed); m.ErrorCode != "NEW_CHAT_CAP" {
			t.Errorf("message refused everywhere = %s %s, want NEW_CHAT_CAP", m.Status, m.ErrorCode)
		}
	})
}

func TestATokenMakesWhoGaveItNoStrangerOnWhateverWorkerTheSessionIs(t *testing.T) {
	const history, stranger = "5511900000401", "5511900000402"
	bubble(t, func(t *testing.T, w *world) {
		locked := wasim.Enforcement{Tokens: true, TimeLock: &wasim.TimeLock{}}
		w.sim.SetEnforcement(number1, wasim.Enforcement{Tokens: true})
		w.person(number1)
		writes := func(pn string) {
			t.Helper()
			w.person(pn)
			if _, err := w.sim.Phone(pn).SendText(t.Context(), number1, "hi"); err != nil {
				t.Fatal(err)
			}
		}
		chat := func(s fleet.Session, pn string) fleet.Chat {
			t.Helper()
			chats, err := w.st.Chats(t.Context(), pn)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range chats {
				if c.SessionID == s.ID {
					return c
				}
			}
			return fleet.Chat{}
		}
		writes(history) // before the number is linked: its token comes with the history
		p1 := w.start("w1")
		s := w.paired(number1)
		writes(person1)
		w.await("the message", func() bool { return w.came() == 1 })
		if c := chat(s, history); c.TokenAt.IsZero() || !c.LastInAt.IsZero() {
			t.Errorf("chat of who wrote before = %+v, want a token alone", c)
		}
		if c := chat(s, person1); c.TokenAt.IsZero() || c.LastInAt.IsZero() {
			t.Errorf("chat of who wrote = %+v, want a token and a message", c)
		}
		p1.stop()
		w.start("w2")
		w.await("the new owner", func() bool {
			return w.row(s.ID).Observed == fleet.ObservedConnected && w.row(s.ID).LeaseOwner == "w2/1"
		})
		w.sim.SetEnforcement(number1, locked)
		w.await("the lock", func() bool { return w.row(s.ID).ColdUntil.After(time.Now()) })
		o := w.api(0)
		for _, pn := range []string{history, person1} {
			// WhatsApp refuses every message that doesn't show the recipient's token.
			if m := w.becomes(w.accepted(o, pn).ID, fleet.StatusDelivered); m.Opened {
				t.Errorf("the message to %s counts as a new chat", pn)
			}
		}
		w.person(stranger)
		_, err := o.Accept(t.Context(), w.request(stranger, "hello"))
		if coded, _ := errors.AsType[*fleet.CodedError](err); coded == nil || coded.Code != "NONE_ELIGIBLE" {
			t.Errorf("Accept for a stranger = %v, want NONE_ELIGIBLE", err)
		}
	})
}
