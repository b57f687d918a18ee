package ledger

import (
	"time"

	"github.com/google/go-cmp/cmp"
)

// testWindows holds the sliding windows of a number.
func testWindows(run runner) {
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
}
