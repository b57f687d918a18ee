package ledger

import (
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
)

// testLimits holds token buckets, quotas and backlogs, and what moves and scheduled messages take of them.
func testLimits(run runner) {
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

	run("requests are admitted by every limit or counted by none, and a rebuild forgets them not", Options{}, func(f fixture) {
		admit := func(want Admission, limits ...CallLimit) {
			f.Helper()
			got, err := f.Admit(f.Context(), limits...)
			if err != nil || got != want {
				f.Fatalf("Admit = %+v, %v, want %+v", got, err, want)
			}
		}
		one, two, all := CallLimit{"p:prj_1", Rate{1, 3}}, CallLimit{"p:prj_2", Rate{10, 10}}, CallLimit{"all", Rate{2, 4}}
		admit(Admission{})
		admit(Admission{Left: 2}, one, all)
		admit(Admission{Left: 1}, one, all)
		admit(Admission{Left: 0}, one, all)
		admit(Admission{Wait: time.Second}, one, all)
		admit(Admission{Left: 9}, two, all) // the refusal took nothing of it
		admit(Admission{Wait: 500 * time.Millisecond}, two, all)
		f.advance(250 * time.Millisecond)
		admit(Admission{Wait: 750 * time.Millisecond}, one, all)
		if err := f.Cool(f.Context(), 1); err != nil {
			f.Fatal(err)
		}
		f.advance(250 * time.Millisecond)
		admit(Admission{Wait: 500 * time.Millisecond}, one, all)
		f.advance(500 * time.Millisecond)
		admit(Admission{Left: 0}, one, all)
		f.advance(time.Hour)
		admit(Admission{Left: 2}, one, all)
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
}
