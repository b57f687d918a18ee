package ledger

import (
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
)

// testHealth holds what takes a number out, and when it comes back.
func testHealth(run runner) {
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
				f.Errorf("winner by %s = %d, want the only one that can send", strategy, got)
			}
		}
		a := f.refused(Request{Candidates: cs, Key: "5511900000001"}, Exhausted, (61+settleSoon)*time.Second)
		if len(a.Why) != len(cs) || a.Why[2400] != Minute || a.Why[2399] != Minute {
			f.Errorf("%d reasons, want one for each", len(a.Why))
		}
		if got := f.accounts(cs...); got[2400].Outstanding != 2 || got[1].Outstanding != 0 {
			f.Errorf("accounts of two candidates: %+v, %+v, want the frames on the one that took them", got[2400], got[1])
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
}
