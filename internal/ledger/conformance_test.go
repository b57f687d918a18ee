package ledger

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

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

// runner runs one rule over a fresh ledger.
type runner func(name string, o Options, body func(f fixture))

// testLedger is what every implementation must do.
func testLedger(t *testing.T, open opener) {
	t.Helper()
	var run runner = func(name string, o Options, body func(f fixture)) {
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

	testWindows(run)
	testChoice(run)
	testHealth(run)
	testLimits(run)

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
