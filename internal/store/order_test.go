package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

// more makes further sessions of the same organization, all of one owner.
func (l *lane) more(n int) []*lane {
	l.t.Helper()
	lanes := map[fleet.SessionID]*lane{l.sess.ID: l}
	var out []*lane
	for range n {
		o := &lane{t: l.t, s: l.s, org: l.org, sess: newSession(l.t, l.s, store.NewSession{Org: l.org.ID})}
		lanes[o.sess.ID] = o
		out = append(out, o)
	}
	terms, _, err := l.s.ClaimLeases(l.t.Context(), store.ClaimQuery{Owner: "worker-2/boot", Limit: 100, TTL: 30 * time.Second, All: true})
	if err != nil {
		l.t.Fatal(err)
	}
	for _, term := range terms {
		if o := lanes[term.SessionID]; o != nil {
			o.term = term
		}
	}
	return out
}

// routed accepts a message as the API does that may follow others on other sessions.
func (l *lane) routed(contact, text string) fleet.Message {
	l.t.Helper()
	a := &store.Acceptance{
		Message: fleet.Message{
			OrgID: l.org.ID, ProjectID: "prj_1", SessionID: l.sess.ID, ContactKey: contact, To: "+" + contact,
			ToJID: contact + "@s.whatsapp.net", Kind: "text", Text: text,
		},
		TTL: fleet.DefaultTTL, TouchChat: true, Trails: true,
	}
	if err := l.s.Accept(l.t.Context(), a); err != nil {
		l.t.Fatal(err)
	}
	return a.Message
}

// waits checks that a message neither is next nor can be claimed.
func (l *lane) waits(m fleet.Message, why string) {
	l.t.Helper()
	if item, err := l.s.NextInLane(l.t.Context(), l.sess.ID); err != nil || item != nil {
		l.t.Errorf("%s: NextInLane = %+v, %v, want nothing", why, item, err)
	}
	if due, err := l.s.DueLanes(l.t.Context(), store.Hold([]fleet.Term{l.term})); err != nil || len(due) != 0 {
		l.t.Errorf("%s: DueLanes = %v, %v, want none", why, due, err)
	}
	if ok, err := l.tryClaim(l.term, m.ID, fleet.AttemptSend); ok || err != nil {
		l.t.Errorf("%s: ClaimMessage = %v, %v, want false", why, ok, err)
	}
}

func TestAMessageWaitsForAnEarlierOneToTheSamePersonOnAnotherNumber(t *testing.T) {
	const minute = time.Minute
	set := func(l *lane, m fleet.Message, what string) {
		l.t.Helper()
		if _, err := l.s.DB().Exec(l.t.Context(), `UPDATE messages SET `+what+` WHERE id=$1`, m.ID); err != nil {
			l.t.Fatal(err)
		}
	}
	unknown := func(l *lane, m fleet.Message) {
		l.t.Helper()
		l.claim(m.ID, fleet.AttemptSend)
		l.record(store.Result{ID: m.ID, Outcome: fleet.OutcomeUnknown})
	}
	for _, tc := range []struct {
		name  string
		begin func(l *lane, m fleet.Message) // what became of the earlier one
		waits bool
		end   func(l *lane, m fleet.Message) // ends the wait
	}{
		{"it is queued, then cancelled", func(*lane, fleet.Message) {}, true, func(l *lane, m fleet.Message) { cancel(l.t, l.s, m) }},
		{"it is queued, then expires", func(*lane, fleet.Message) {}, true, func(l *lane, m fleet.Message) { set(l, m, `expires_at=due_at`) }},
		{"it is sending, then sent", func(l *lane, m fleet.Message) { l.claim(m.ID, fleet.AttemptSend) }, true, func(l *lane, m fleet.Message) {
			l.record(store.Result{ID: m.ID, Outcome: fleet.OutcomeSent})
		}},
		{"it is sending and nobody takes it over", func(l *lane, m fleet.Message) { l.claim(m.ID, fleet.AttemptSend) }, true, func(l *lane, m fleet.Message) {
			age(l.t, l.s, minute, m.ID)
		}},
		{"it is unknown, then for a minute", unknown, true, func(l *lane, m fleet.Message) { age(l.t, l.s, minute, m.ID) }},
		{"it is unknown, then repeated", unknown, true, func(l *lane, m fleet.Message) { set(l, m, `repeats=1`) }},
		{"it is tried again there", func(l *lane, m fleet.Message) {
			l.claim(m.ID, fleet.AttemptSend)
			l.record(store.Result{ID: m.ID, Outcome: fleet.OutcomeNothing, RetryIn: time.Second})
		}, true, func(l *lane, m fleet.Message) { age(l.t, l.s, minute+time.Second, m.ID) }},
		{"it was refused there and waits for another number", func(l *lane, m fleet.Message) {
			l.claim(m.ID, fleet.AttemptSend)
			l.record(store.Result{ID: m.ID, Outcome: fleet.OutcomeRefused, Code: 463, Hop: true})
		}, true, func(l *lane, m fleet.Message) {
			if ok, err := l.s.FailStray(l.t.Context(), new(l.get(m.ID))); !ok || err != nil {
				l.t.Fatalf("FailStray = %v, %v", ok, err)
			}
		}},
		{"it is for later", func(l *lane, m fleet.Message) {
			set(l, m, fmt.Sprintf(`parked=TRUE, send_at=%d`, time.Now().Add(time.Hour).UnixMilli()))
		}, false, nil},
		{"it confirms an opt-out, which another number can't", func(l *lane, m fleet.Message) { set(l, m, `exempt=TRUE`) }, false, nil},
		{"it has arrived", func(l *lane, m fleet.Message) {
			l.claim(m.ID, fleet.AttemptSend)
			l.record(store.Result{ID: m.ID, Outcome: fleet.OutcomeSent})
		}, false, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			storetest.Each(t, func(t *testing.T, s *store.Store) {
				one := newLane(t, s, "org-a")
				two := one.more(1)[0]
				const somebody, other = "5511900000001", "5511900000002"
				a := one.routed(somebody, "a")
				tc.begin(one, a)
				b := two.routed(somebody, "b")
				if tc.waits {
					two.waits(b, "before")
					c := two.routed(other, "c")
					two.wantNext(&c)
					two.claim(c.ID, fleet.AttemptSend)
					tc.end(one, a)
				}
				two.wantNext(&b)
				two.claim(b.ID, fleet.AttemptSend)
			})
		})
	}
}

func TestAMessageThatIsMovedGoesBeforeOnesThatCameLater(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		one := newLane(t, s, "org-a")
		lanes := one.more(2)
		two, three := lanes[0], lanes[1]
		const somebody = "5511900000001"
		a, b := one.routed(somebody, "a"), one.routed(somebody, "b")
		c := two.routed(somebody, "c")
		move := func(m fleet.Message, to *lane) {
			t.Helper()
			if _, err := s.DB().Exec(t.Context(), `UPDATE messages SET reservation='' WHERE id=$1`, m.ID); err != nil {
				t.Fatal(err)
			}
			m = one.get(m.ID)
			var generation int64
			if err := s.DB().QueryRow(t.Context(), `SELECT generation FROM ledger`).Scan(&generation); err != nil {
				t.Fatal(err)
			}
			if ok, err := s.MoveMessage(t.Context(), &m, store.Move{To: to.sess.ID, Generation: generation, TouchChat: true}); !ok || err != nil {
				t.Fatalf("MoveMessage = %v, %v", ok, err)
			}
		}
		move(a, two)
		two.wantNext(new(two.get(a.ID)))
		move(b, three) // the second number had no room for it
		three.waits(b, "the one before it is on the second number")
		two.claim(a.ID, fleet.AttemptSend)
		two.record(store.Result{ID: a.ID, Outcome: fleet.OutcomeSent})
		two.waits(c, "the one before it is on the third number")
		three.wantNext(new(three.get(b.ID)))
		three.claim(b.ID, fleet.AttemptSend)
		three.record(store.Result{ID: b.ID, Outcome: fleet.OutcomeSent})
		two.wantNext(&c)
	})
}

func TestTheLastOfThoseBeforeItMayEndFirst(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		one := newLane(t, s, "org-a")
		lanes := one.more(2)
		two, three := lanes[0], lanes[1]
		const somebody = "5511900000001"
		a, b := one.routed(somebody, "a"), one.routed(somebody, "b")
		c := three.routed(somebody, "c")
		d := two.routed(somebody, "d")
		cancel(t, s, c)
		two.waits(d, "two on the first number")
		cancel(t, s, b)
		two.waits(d, "one on the first number")
		one.claim(a.ID, fleet.AttemptSend)
		two.waits(d, "its frame leaves")
		one.record(store.Result{ID: a.ID, Outcome: fleet.OutcomeSent})
		two.wantNext(&d)
		two.claim(d.ID, fleet.AttemptSend)
	})
}

func TestAMessageGoesTwoMinutesAfterItsTimeAtTheLatest(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		one := newLane(t, s, "org-a")
		two := one.more(1)[0]
		one.routed("5511900000001", "a")
		b := two.routed("5511900000001", "b")
		age(t, s, 119*time.Second, b.ID)
		two.waits(b, "before")
		age(t, s, time.Second, b.ID)
		two.claim(b.ID, fleet.AttemptSend)
	})
}

func TestOtherPeopleAndOtherOrganizationsHoldNothingBack(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		other := newLane(t, s, "org-b")
		other.routed("5511900000001", "of another organization")
		one := newLane(t, s, "org-a")
		two := one.more(1)[0]
		one.routed("5511900000002", "to somebody else")
		b := two.routed("5511900000001", "b")
		two.wantNext(&b)
		two.claim(b.ID, fleet.AttemptSend)
	})
}
