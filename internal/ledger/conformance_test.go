package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
)

// clock is the time of a test that compares ledgers.
type clock struct{ at time.Time }

func newClock() *clock { return &clock{time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time          { return c.at }
func (c *clock) advance(d time.Duration) { c.at = c.at.Add(d) }

// opener makes an empty ledger for one test.
type opener func(t *testing.T, o Options) Ledger

// fixture is a ledger under a clock of its own, with short words for what the suite does often.
type fixture struct {
	Ledger
	*testing.T
	*clock
}

func (f fixture) reserve(r Request) Answer {
	f.Helper()
	if r.Org == "" {
		r.Org = "org-a"
	}
	a, err := f.Reserve(f.Context(), r)
	if err != nil {
		f.Fatalf("Reserve: %v", err)
	}
	return a
}

func (f fixture) take(r Request) Reservation {
	f.Helper()
	a := f.reserve(r)
	if a.Verdict != Taken {
		f.Fatalf("Reserve = %s (why %v, wait %s), want taken", a.Verdict, a.Why, a.Wait)
	}
	return a.Reservation
}

func (f fixture) refused(r Request, want Verdict, wait time.Duration) Answer {
	f.Helper()
	a := f.reserve(r)
	if a.Verdict != want || a.Wait != wait {
		f.Fatalf("Reserve = %s after %s, want %s after %s", a.Verdict, a.Wait, want, wait)
	}
	if !a.Reservation.IsZero() || a.Winner != -1 {
		f.Fatalf("a refusal took %+v (winner %d)", a.Reservation, a.Winner)
	}
	return a
}

func (f fixture) settle(s ...Settlement) {
	f.Helper()
	if err := f.Settle(f.Context(), s...); err != nil {
		f.Fatalf("Settle: %v", err)
	}
}

func (f fixture) sent(r Reservation) { f.Helper(); f.settle(Settlement{Reservation: r, Frames: 1}) }

func (f fixture) accounts(cs ...Candidate) []Account {
	f.Helper()
	v, err := f.Look(f.Context(), Request{Org: "org-a", Candidates: cs})
	if err != nil {
		f.Fatalf("Look: %v", err)
	}
	return v.Accounts
}

func candidates(budgets ...Budget) (cs []Candidate) {
	for i, b := range budgets {
		cs = append(cs, Candidate{Slug: fleet.SessionSlug(fmt.Sprintf("org-a-%02d", i+1)), Budget: b})
	}
	return cs
}

var roomy = Budget{1000, 10_000, 100_000, 1000}

// testLedger is what every implementation must do.
func testLedger(t *testing.T, open opener) {
	t.Helper()
	run := func(name string, o Options, body func(f fixture)) {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			o.Now = c.now
			l := open(t, o)
			t.Cleanup(l.Close)
			if err := l.Warm(t.Context()); err != nil {
				t.Fatalf("Warm: %v", err)
			}
			c.advance(24 * time.Hour) // token buckets begin empty
			body(fixture{l, t, c})
		})
	}

	run("never more than the minute's budget in any 60 seconds", Options{}, func(f fixture) {
		one := candidates(Budget{3, 100, 1000, 10})
		f.sent(f.take(Request{Candidates: one}))
		f.advance(30 * time.Second)
		f.sent(f.take(Request{Candidates: one}))
		f.sent(f.take(Request{Candidates: one}))
		a := f.refused(Request{Candidates: one}, Exhausted, 31*time.Second)
		if diff := cmp.Diff([]Why{Minute}, a.Why); diff != "" {
			f.Errorf("why (-want +got):\n%s", diff)
		}
		f.advance(a.Wait - time.Millisecond)
		f.refused(Request{Candidates: one}, Exhausted, time.Millisecond)
		f.advance(time.Millisecond)
		f.sent(f.take(Request{Candidates: one}))
		f.refused(Request{Candidates: one}, Exhausted, 30*time.Second)
	})

	run("the hour and the day have windows of their own", Options{}, func(f fixture) {
		one := candidates(Budget{10, 2, 3, 10})
		f.sent(f.take(Request{Candidates: one}))
		f.sent(f.take(Request{Candidates: one}))
		a := f.refused(Request{Candidates: one}, Exhausted, 61*time.Minute)
		f.advance(a.Wait)
		f.sent(f.take(Request{Candidates: one}))
		a = f.refused(Request{Candidates: one}, Exhausted, 61*24*time.Minute-61*time.Minute)
		if diff := cmp.Diff([]Why{Day}, a.Why); diff != "" {
			f.Errorf("why (-want +got):\n%s", diff)
		}
		f.advance(a.Wait)
		f.take(Request{Candidates: one})
	})

	run("what is outstanding counts however long its frame waits", Options{}, func(f fixture) {
		one := candidates(Budget{2, 100, 1000, 10})
		first, second := f.take(Request{Candidates: one}), f.take(Request{Candidates: one})
		f.advance(3 * time.Minute)
		f.refused(Request{Candidates: one}, Exhausted, (61+settleSoon)*time.Second)
		f.sent(first)
		f.sent(second)
		f.advance(60 * time.Second)
		f.refused(Request{Candidates: one}, Exhausted, time.Second)
		f.advance(time.Second)
		f.take(Request{Candidates: one})
	})

	run("a frame counts from when it left", Options{}, func(f fixture) {
		one := candidates(Budget{1, 100, 1000, 10})
		r := f.take(Request{Candidates: one})
		f.advance(20 * time.Second)
		f.settle(Settlement{Reservation: r, Frames: 1, Ago: 15 * time.Second})
		f.refused(Request{Candidates: one}, Exhausted, 46*time.Second)
	})

	run("what is given back reopens at once and touches nothing newer", Options{}, func(f fixture) {
		one := candidates(Budget{2, 100, 1000, 1})
		one[0].NewChat = true
		r := f.take(Request{Candidates: one})
		a := f.refused(Request{Candidates: one}, Exhausted, (24*61-12*60%24)*time.Minute)
		if diff := cmp.Diff([]Why{NewChats}, a.Why); diff != "" {
			f.Errorf("why (-want +got):\n%s", diff)
		}
		f.settle(Settlement{Reservation: r})
		next := f.take(Request{Candidates: one})
		f.sent(next)
		want := []Account{{Why: Free, Used: Budget{1, 1, 1, 1}, Health: 100}}
		if diff := cmp.Diff(want, f.accounts(candidates(Budget{2, 100, 1000, 1})...)); diff != "" {
			f.Errorf("account (-want +got):\n%s", diff)
		}
	})

	run("what nobody settles lapses as if its frame had left then", Options{}, func(f fixture) {
		one := candidates(Budget{1, 2, 1000, 10})
		f.take(Request{Candidates: one, Hold: 10 * time.Minute})
		f.advance(11*time.Minute - time.Second)
		if got := f.accounts(one...)[0]; got.Outstanding != 1 || got.Used.PerMinute != 1 {
			f.Errorf("just before it lapses: %+v, want one outstanding", got)
		}
		f.advance(time.Second)
		if got := f.accounts(one...)[0]; got.Outstanding != 0 || got.Used.PerMinute != 1 {
			f.Errorf("when it lapses: %+v, want it counted as a frame", got)
		}
		f.advance(61 * time.Second)
		got := f.accounts(one...)[0]
		if diff := cmp.Diff(Account{Used: Budget{0, 1, 1, 0}, Health: 100}, got); diff != "" {
			f.Errorf("a minute later (-want +got):\n%s", diff)
		}
	})

	run("the last of a budget is taken once by many at the same time", Options{}, func(f fixture) {
		cs := candidates(Budget{50, 500, 5000, 10}, Budget{50, 500, 5000, 10}, Budget{50, 500, 5000, 10})
		won := make(chan bool, 320)
		for range 32 {
			go func() {
				for i := range 10 {
					a, err := f.Reserve(f.Context(), Request{Org: "org-a", Candidates: cs, Rand: float64(i) / 10})
					if err != nil {
						f.Errorf("Reserve: %v", err)
					}
					won <- err == nil && a.Verdict == Taken
				}
			}()
		}
		taken := 0
		for range cap(won) {
			if <-won {
				taken++
			}
		}
		if taken != 150 {
			f.Errorf("%d of 320 taken, want exactly 150", taken)
		}
	})

	run("priority takes the first in list order that can send", Options{}, func(f fixture) {
		cs := candidates(Budget{1, 10, 10, 10}, Budget{2, 10, 10, 10}, roomy)
		var got []int
		for range 5 {
			got = append(got, f.reserve(Request{Candidates: cs, Strategy: fleet.StrategyPriority}).Winner)
		}
		if diff := cmp.Diff([]int{0, 1, 1, 2, 2}, got); diff != "" {
			f.Errorf("winners (-want +got):\n%s", diff)
		}
	})

	run("round-robin turns among those that can send", Options{}, func(f fixture) {
		cs := candidates(roomy, Budget{1, 10, 10, 10}, roomy)
		var got []int
		for range 7 {
			got = append(got, f.reserve(Request{Candidates: cs, Strategy: fleet.StrategyRoundRobin}).Winner)
		}
		// The third turn is among two, the second of which is the third candidate.
		if diff := cmp.Diff([]int{0, 1, 0, 2, 0, 2, 0}, got); diff != "" {
			f.Errorf("winners (-want +got):\n%s", diff)
		}
	})

	run("what is pinned does not take a turn", Options{}, func(f fixture) {
		cs := candidates(roomy, roomy)
		ask := Request{Candidates: cs, Strategy: fleet.StrategyRoundRobin, Key: "5511900000001"}
		f.take(ask)
		f.take(ask)
		ask.Key = ""
		if got := f.reserve(ask).Winner; got != 1 {
			t.Errorf("winner %d, want the second: one turn was taken", got)
		}
	})

	run("weighted goes by what is left of the hour", Options{}, func(f fixture) {
		cs := candidates(Budget{1000, 50, 1000, 10}, Budget{1000, 450, 1000, 10})
		for _, tt := range []struct {
			rand float64
			want int
		}{{0, 0}, {0.0999, 0}, {0.1, 1}, {0.999, 1}} {
			v, err := f.Look(f.Context(), Request{Org: "org-a", Candidates: cs, Rand: tt.rand})
			if err != nil || v.Winner != tt.want {
				f.Errorf("Look with dice at %v = %d, %v, want %d", tt.rand, v.Winner, err, tt.want)
			}
		}
	})

	run("a person hears from one number while it can send, then from one other", Options{}, func(f fixture) {
		cs := candidates(Budget{2, 100, 100, 10}, roomy, roomy)
		ask := Request{Candidates: cs, Key: "5511900000001", Strategy: fleet.StrategyPriority}
		f.take(ask)
		ask.Strategy, ask.Rand = fleet.StrategyWeighted, 0.999
		a := f.reserve(ask)
		if a.Winner != 0 || !a.Pinned {
			f.Errorf("second send: winner %d pinned %v, want the pinned 0", a.Winner, a.Pinned)
		}
		if a = f.reserve(ask); a.Winner != 2 || a.Pinned {
			f.Errorf("with the pinned one full: winner %d pinned %v, want 2 anew", a.Winner, a.Pinned)
		}
		ask.Rand = 0
		if a = f.reserve(ask); a.Winner != 2 || !a.Pinned {
			f.Errorf("after that: winner %d pinned %v, want it to stay with 2", a.Winner, a.Pinned)
		}
		f.advance(25 * time.Hour)
		if a = f.reserve(ask); a.Winner != 0 || a.Pinned {
			f.Errorf("a day later: winner %d pinned %v, want a new choice", a.Winner, a.Pinned)
		}
	})

	run("a pin is refreshed by sends and ends with its time", Options{}, func(f fixture) {
		cs := candidates(roomy, roomy)
		ask := Request{Candidates: cs, Key: "5511900000001", Strategy: fleet.StrategyPriority, AffinityTTL: time.Hour}
		if got, err := f.Pin(f.Context(), "org-a", ask.Key, cs[1].Slug, time.Hour); err != nil || got != cs[1].Slug {
			f.Fatalf("Pin = %q, %v, want the new pin", got, err)
		}
		f.advance(59 * time.Minute)
		f.take(ask)
		f.advance(59 * time.Minute)
		if got := f.reserve(ask).Winner; got != 1 {
			f.Errorf("winner %d, want the pinned 1: the first send refreshed it", got)
		}
		if got, err := f.Pin(f.Context(), "org-a", ask.Key, cs[0].Slug, time.Hour); err != nil || got != cs[1].Slug {
			f.Errorf("Pin = %q, %v, want the pin that lives", got, err)
		}
		f.advance(time.Hour)
		if got := f.reserve(ask).Winner; got != 0 {
			f.Errorf("winner %d after the pin ended, want 0", got)
		}
	})

	run("two people who are one keep the newer pin", Options{}, func(f fixture) {
		cs := candidates(roomy, roomy)
		pin := func(key string, to int) {
			f.Helper()
			if _, err := f.Pin(f.Context(), "org-a", key, cs[to].Slug, time.Hour); err != nil {
				f.Fatalf("Pin: %v", err)
			}
		}
		pinned := func(key string) int {
			f.Helper()
			v, err := f.Look(f.Context(), Request{Org: "org-a", Candidates: cs, Key: key, Strategy: fleet.StrategyPriority})
			if err != nil {
				f.Fatalf("Look: %v", err)
			}
			if !v.Pinned {
				return -1
			}
			return v.Winner
		}
		merge := func(from, into string) {
			f.Helper()
			if err := f.Merge(f.Context(), "org-a", from, into); err != nil {
				f.Fatalf("Merge: %v", err)
			}
		}
		pin("lid:1", 0)
		f.advance(time.Minute)
		pin("5511900000001", 1)
		merge("lid:1", "5511900000001")
		if got := []int{pinned("lid:1"), pinned("5511900000001")}; !slices.Equal(got, []int{-1, 1}) {
			f.Errorf("pins after merging the older = %v, want [-1 1]", got)
		}
		f.advance(time.Minute)
		pin("lid:2", 0)
		merge("lid:2", "5511900000001")
		if got := pinned("5511900000001"); got != 0 {
			f.Errorf("pin after merging the newer = %d, want 0", got)
		}
		merge("lid:3", "5511900000001")
		merge("5511900000001", "5511900000002")
		if got := pinned("5511900000002"); got != 0 {
			f.Errorf("pin after merging into nobody = %d, want 0", got)
		}
	})

	run("a detached session loses its pins and nobody else's", Options{}, func(f fixture) {
		cs := candidates(roomy, roomy)
		for i, key := range []string{"5511900000001", "5511900000002", "5511900000003"} {
			if _, err := f.Pin(f.Context(), "org-a", key, cs[i%2].Slug, 0); err != nil {
				f.Fatalf("Pin: %v", err)
			}
		}
		if err := f.Unpin(f.Context(), "org-a", cs[0].Slug); err != nil {
			f.Fatalf("Unpin: %v", err)
		}
		for key, want := range map[string]bool{"5511900000001": false, "5511900000002": true, "5511900000003": false} {
			if a := f.reserve(Request{Candidates: cs, Key: key}); a.Pinned != want {
				f.Errorf("pin of %s lives: %v, want %v", key, a.Pinned, want)
			}
		}
	})

	run("four failures of a number take it out, and it comes back", Options{}, func(f fixture) {
		cs := candidates(roomy)
		bad := Settlement{Session: cs[0].Slug, Health: HealthBad}
		for range 3 {
			f.settle(bad)
		}
		f.take(Request{Candidates: cs})
		f.settle(bad)
		a := f.refused(Request{Candidates: cs}, Ineligible, 0)
		if diff := cmp.Diff([]Why{Unwell}, a.Why); diff != "" {
			f.Errorf("why (-want +got):\n%s", diff)
		}
		if got := f.accounts(cs...)[0].Health; got != 20 {
			f.Errorf("health %d, want 20", got)
		}
		f.take(Request{Candidates: cs, Bound: true}) // what belongs to the number goes on
		good := Settlement{Session: cs[0].Slug, Health: HealthGood}
		f.settle(good)
		f.refused(Request{Candidates: cs}, Ineligible, 0)
		f.settle(good)
		f.take(Request{Candidates: cs}) // 30 again, by acks that were in flight
		for range 20 {
			f.settle(good)
		}
		if got := f.accounts(cs...)[0].Health; got != 100 {
			f.Errorf("health %d, want 100 at most", got)
		}
		for range 9 {
			f.settle(bad)
		}
		if got := f.accounts(cs...)[0].Health; got != 0 {
			f.Errorf("health %d, want 0 at least", got)
		}
		f.advance(6*time.Hour - time.Millisecond)
		f.refused(Request{Candidates: cs}, Ineligible, 0)
		f.advance(time.Millisecond)
		f.take(Request{Candidates: cs})
	})

	run("thousands of candidates are looked at like a few", Options{}, func(f fixture) {
		budgets := make([]Budget, 2500)
		budgets[2400] = Budget{2, 10, 10, 10}
		cs := candidates(budgets...)
		for _, strategy := range []fleet.Strategy{fleet.StrategyWeighted, fleet.StrategyPriority} {
			if got := f.reserve(Request{Candidates: cs, Strategy: strategy, Key: "5511900000001"}).Winner; got != 2400 {
				t.Errorf("winner by %s = %d, want the only one that can send", strategy, got)
			}
		}
		a := f.refused(Request{Candidates: cs, Key: "5511900000001"}, Exhausted, (61+settleSoon)*time.Second)
		if len(a.Why) != len(cs) || a.Why[2400] != Minute || a.Why[2399] != Minute {
			t.Errorf("%d reasons, want one for each", len(a.Why))
		}
		if got := f.accounts(cs...); got[2400].Outstanding != 2 || got[1].Outstanding != 0 {
			t.Errorf("accounts of two candidates: %+v, %+v, want the frames on the one that took them", got[2400], got[1])
		}
	})

	run("an unwell number does not count for reopening", Options{}, func(f fixture) {
		cs := candidates(Budget{1, 100, 100, 10}, Budget{1, 100, 100, 10})
		f.sent(f.take(Request{Candidates: cs[:1]}))
		f.advance(10 * time.Second)
		f.sent(f.take(Request{Candidates: cs[1:]}))
		f.refused(Request{Candidates: cs}, Exhausted, 51*time.Second)
		for range 4 {
			f.settle(Settlement{Session: cs[0].Slug, Health: HealthBad})
		}
		a := f.refused(Request{Candidates: cs}, Exhausted, 61*time.Second)
		if diff := cmp.Diff([]Why{Unwell, Minute}, a.Why); diff != "" {
			f.Errorf("why (-want +got):\n%s", diff)
		}
	})

	run("a budget of nothing never reopens", Options{}, func(f fixture) {
		f.refused(Request{Candidates: candidates(Budget{0, 10, 10, 10})}, Ineligible, 0)
		cs := candidates(Budget{10, 10, 10, 0})
		f.take(Request{Candidates: cs})
		cs[0].NewChat = true
		a := f.refused(Request{Candidates: cs}, Ineligible, 0)
		if diff := cmp.Diff([]Why{NewChats}, a.Why); diff != "" {
			f.Errorf("why (-want +got):\n%s", diff)
		}
	})

	run("a budget that was lowered reopens when enough has left", Options{}, func(f fixture) {
		wide, narrow := candidates(Budget{4, 100, 100, 10}), candidates(Budget{2, 100, 100, 10})
		for range 4 {
			f.sent(f.take(Request{Candidates: wide}))
			f.advance(time.Second)
		}
		a := f.refused(Request{Candidates: narrow}, Exhausted, 59*time.Second) // three of four must leave
		f.advance(a.Wait)
		f.take(Request{Candidates: narrow})
	})

	run("token buckets refill, and one that is empty refuses without taking from the others", Options{}, func(f fixture) {
		l := &Limits{Project: "prj_1", ProjectRate: Rate{1, 2}, OrgRate: Rate{10, 10}, FleetRate: Rate{100, 3}}
		ask := Request{Candidates: candidates(roomy), Limits: l}
		f.take(ask)
		f.take(ask)
		f.refused(ask, Rated, time.Second)
		f.advance(600 * time.Millisecond)
		f.refused(ask, Rated, 400*time.Millisecond)
		f.advance(400 * time.Millisecond)
		f.take(ask)
		other := *l
		other.Project, other.ProjectRate = "prj_2", Rate{}
		for range 2 {
			f.take(Request{Candidates: candidates(roomy), Limits: &other})
		}
		f.refused(Request{Candidates: candidates(roomy), Limits: &other}, Rated, 10*time.Millisecond)
		if got := f.accounts(candidates(roomy)...)[0].Used.PerMinute; got != 5 {
			f.Errorf("%d frames taken, want 5: refusals take nothing", got)
		}
	})

	run("a number's own token bucket passes it over", Options{}, func(f fixture) {
		cs := candidates(roomy, roomy)
		cs[0].Rate = Rate{0.5, 1}
		ask := Request{Candidates: cs, Strategy: fleet.StrategyPriority}
		r := f.take(ask)
		if got := f.reserve(ask).Winner; got != 1 {
			f.Errorf("winner %d, want the other one", got)
		}
		a := f.refused(Request{Candidates: cs[:1]}, Exhausted, 2*time.Second)
		if diff := cmp.Diff([]Why{Tokens}, a.Why); diff != "" {
			f.Errorf("why (-want +got):\n%s", diff)
		}
		f.settle(Settlement{Reservation: r})
		f.take(Request{Candidates: cs[:1]})
	})

	run("a token that had time to come back is not given back as well", Options{}, func(f fixture) {
		l := &Limits{Project: "prj_1", ProjectRate: Rate{1, 2}}
		ask := Request{Candidates: candidates(roomy), Limits: l}
		r := f.take(ask)
		f.advance(10 * time.Second)
		f.take(ask)
		f.take(ask)
		f.settle(Settlement{Reservation: r})
		f.refused(ask, Rated, time.Second)
	})

	run("the month's quota is kept by frames and given back without one", Options{}, func(f fixture) {
		ask := Request{Candidates: candidates(roomy), Limits: &Limits{Project: "prj_1", Quota: 2, Month: "2026-11"}}
		first, second := f.take(ask), f.take(ask)
		f.refused(ask, Overdrawn, 0)
		f.sent(first)
		f.refused(ask, Overdrawn, 0)
		f.settle(Settlement{Reservation: second})
		f.take(ask)
		f.refused(ask, Overdrawn, 0)
		ask.Limits.Month = "2026-12"
		f.take(ask)
	})

	run("the backlog is what waits, and re-basing takes off only what was seen twice", Options{}, func(f fixture) {
		ask := Request{Candidates: candidates(roomy), Limits: &Limits{Project: "prj_1", Backlog: 3}}
		first := f.take(ask)
		f.take(ask)
		f.take(ask)
		f.refused(ask, Backlog, 0)
		f.sent(first)
		f.take(ask)
		f.refused(ask, Backlog, 0)
		rebase := func(n int64) {
			f.Helper()
			if err := f.Rebase(f.Context(), map[fleet.ProjectID]int64{"prj_1": n}); err != nil {
				f.Fatalf("Rebase: %v", err)
			}
		}
		rebase(1)
		f.refused(ask, Backlog, 0)
		rebase(2) // of the two too many seen before, one was true
		f.take(ask)
		f.refused(ask, Backlog, 0)
		rebase(5) // never raised
		rebase(3)
		f.refused(ask, Backlog, 0)
	})

	run("a scheduled message takes limits now and a number later", Options{}, func(f fixture) {
		l := &Limits{Project: "prj_1", Backlog: 1, Quota: 5, Month: "2026-11"}
		waiting := f.take(Request{Limits: l})
		if waiting.Session != "" || waiting.Project != "prj_1" {
			f.Errorf("reservation %+v, want limits and no number", waiting)
		}
		f.refused(Request{Candidates: candidates(roomy), Limits: l}, Backlog, 0)
		f.advance(time.Hour)
		moved := f.take(Request{Candidates: candidates(roomy), Move: waiting})
		if moved.Session != "org-a-01" || moved.Project != "prj_1" || moved.Month != "2026-11" {
			f.Errorf("reservation %+v, want a number and the limits passed on", moved)
		}
		f.refused(Request{Candidates: candidates(roomy), Limits: l}, Backlog, 0)
		f.sent(moved)
		f.take(Request{Candidates: candidates(roomy), Limits: l})
	})

	run("a moved message gives back its first number in the same step", Options{}, func(f fixture) {
		cs := candidates(Budget{1, 10, 10, 10}, Budget{1, 10, 10, 10})
		first := f.take(Request{Candidates: cs[:1], Key: "5511900000001"})
		second := f.take(Request{Candidates: cs[1:], Key: "5511900000001", Move: first})
		f.refused(Request{Candidates: cs[1:], Move: first}, Exhausted, (61+settleSoon)*time.Second)
		f.take(Request{Candidates: cs[:1]})
		f.sent(second)
		if got := f.accounts(cs[1]); got[0].Outstanding != 0 || got[0].Used.PerMinute != 1 {
			f.Errorf("second number %+v, want one frame", got[0])
		}
	})

	run("frames without a reservation count too", Options{}, func(f fixture) {
		one := candidates(Budget{2, 10, 10, 10})
		f.settle(Settlement{Session: one[0].Slug, Frames: 2})
		f.refused(Request{Candidates: one}, Exhausted, 61*time.Second)
	})

	run("an old configuration is refused", Options{}, func(f fixture) {
		v, err := f.Version(f.Context(), "org-a")
		if err != nil || v == 0 {
			f.Fatalf("Version = %d, %v, want one that is not 0", v, err)
		}
		again, err := f.Version(f.Context(), "org-a")
		if err != nil || again != v {
			f.Errorf("Version again = %d, %v, want %d", again, err, v)
		}
		ask := Request{Candidates: candidates(roomy), Version: v}
		f.take(ask)
		next, err := f.Bump(f.Context(), "org-a")
		if err != nil || next <= v {
			f.Fatalf("Bump = %d, %v, want more than %d", next, err, v)
		}
		if a := f.refused(ask, Stale, 0); a.Version != next {
			f.Errorf("told version %d, want %d", a.Version, next)
		}
		ask.Version = next
		f.take(ask)
		if other, err := f.Version(f.Context(), "org-b"); err != nil || other == next {
			f.Errorf("Version of another organization = %d, %v, want one of its own", other, err)
		}
	})

	run("looking takes nothing", Options{}, func(f fixture) {
		one := candidates(Budget{1, 10, 10, 10})
		ask := Request{Org: "org-a", Candidates: one, Key: "5511900000001", Limits: &Limits{Project: "prj_1", Backlog: 1, Month: "2026-11", Quota: 1}}
		for range 3 {
			v, err := f.Look(f.Context(), ask)
			if err != nil || v.Verdict != Taken || v.Winner != 0 || !v.Reservation.IsZero() {
				f.Fatalf("Look = %+v, %v, want winner 0 and no reservation", v.Answer, err)
			}
		}
		f.take(ask)
		v, err := f.Look(f.Context(), Request{Org: "org-a", Candidates: one})
		if err != nil || v.Verdict != Exhausted || v.Accounts[0].Why != Minute {
			f.Errorf("Look at a full number = %+v, %v, want exhausted by the minute", v, err)
		}
	})

	run("bad requests are refused as invalid", Options{}, func(f fixture) {
		for _, r := range []Request{
			{},
			{Candidates: candidates(roomy), Rand: 1},
			{Candidates: candidates(roomy, roomy), Bound: true},
			{Candidates: candidates(roomy), Limits: &Limits{}},
		} {
			if _, err := f.Reserve(f.Context(), r); !errors.Is(err, fleet.ErrInvalid) {
				f.Errorf("Reserve(%+v) = %v, want invalid", r, err)
			}
		}
		if err := f.Settle(f.Context(), Settlement{Frames: 1}); !errors.Is(err, fleet.ErrInvalid) {
			f.Errorf("Settle without a session = %v, want invalid", err)
		}
	})

	testRebuild(t, open)
}

// rebuild is a rebuild from rows that the test may change, as one that is right does it.
func (c *clock) rebuild(s *State) Rebuild {
	return func(ctx context.Context, cold func(context.Context) (bool, error), load func(context.Context, State) error) error {
		if is, err := cold(ctx); err != nil || !is {
			return err
		}
		s.Generation++
		return load(ctx, *s)
	}
}
