package ledger

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
)

// testRebuild is the part of the suite about lost memory.
func testRebuild(t *testing.T, open opener) {
	t.Helper()
	run := func(name string, body func(f fixture, s *State)) {
		t.Run(name, func(t *testing.T) {
			c, s := newClock(), &State{}
			l := open(t, Options{Now: c.now, Rebuild: c.rebuild(s)})
			t.Cleanup(l.Close)
			body(fixture{l, t, c}, s)
		})
	}

	run("a cold ledger is rebuilt by whoever comes first", func(f fixture, s *State) {
		one := candidates(Budget{10, 100, 1000, 10})
		s.Frames = []FrameCount{
			{one[0].Slug, f.now().Add(-30 * time.Second), 2, 1},
			{one[0].Slug, f.now().Add(-30 * time.Minute), 3, 0},
			{one[0].Slug, f.now().Add(-3 * time.Hour), 4, 1},
			{one[0].Slug, f.now().Add(-25 * time.Hour), 5, 5},
		}
		s.Outstanding = []Reservation{
			{Generation: 1, Session: one[0].Slug, At: f.now().Add(-time.Minute), Lapses: f.now().Add(10 * time.Minute), NewChat: true},
			{Generation: 1, Session: one[0].Slug, At: f.now().Add(-time.Hour), Lapses: f.now().Add(-50 * time.Minute)},
		}
		s.Health = map[fleet.SessionSlug]int{one[0].Slug: 60}
		s.Pins = []PinState{{"org-a", "5511900000001", one[0].Slug, f.now().Add(time.Hour)}}
		s.Backlog = map[fleet.ProjectID]int64{"prj_1": 7}
		s.Quota = []QuotaCount{{"prj_1", "2026-11", 9}}
		want := Account{Used: Budget{3, 7, 11, 3}, Outstanding: 1, Health: 60}
		if diff := cmp.Diff(want, f.accounts(one...)[0]); diff != "" {
			f.Errorf("account (-want +got):\n%s", diff)
		}
		l := Limits{Project: "prj_1", Backlog: 8, Quota: 10, Month: "2026-11"}
		a := f.reserve(Request{Candidates: one, Key: "5511900000001", Limits: &l})
		if a.Verdict != Taken || !a.Pinned || a.Reservation.Generation != 1 {
			f.Errorf("Reserve = %+v, want the pinned one under generation 1", a)
		}
		f.refused(Request{Candidates: one, Limits: &l}, Overdrawn, 0)
		l.Quota = 0
		f.refused(Request{Candidates: one, Limits: &l}, Backlog, 0)
	})

	run("token buckets begin empty after a rebuild", func(f fixture, _ *State) {
		ask := Request{Candidates: candidates(roomy), Limits: &Limits{Project: "prj_1", ProjectRate: Rate{2, 5}}}
		f.refused(ask, Rated, 500*time.Millisecond)
		f.advance(500 * time.Millisecond)
		f.take(ask)
		f.refused(ask, Rated, 500*time.Millisecond)
	})

	run("a ledger whose generation was never committed is rebuilt", func(f fixture, s *State) {
		ask := Request{Candidates: candidates(Budget{1, 10, 10, 10})}
		first := f.take(ask)
		if err := f.Cool(f.Context(), first.Generation-1); err != nil {
			f.Fatalf("Cool: %v", err)
		}
		f.refused(ask, Exhausted, (61+settleSoon)*time.Second) // an older one is not this one
		if err := f.Cool(f.Context(), first.Generation); err != nil {
			f.Fatalf("Cool: %v", err)
		}
		if got := f.take(ask).Generation; got != 2 || s.Generation != 2 {
			f.Errorf("generation %d (state has %d), want 2", got, s.Generation)
		}
	})

	run("what a rebuild counted is not settled a second time", func(f fixture, s *State) {
		one := candidates(Budget{10, 100, 1000, 10})
		var old []Reservation
		for range 4 {
			old = append(old, f.take(Request{Candidates: one}))
		}
		f.advance(time.Second)
		// The first frame left and is in the rows; the second and third wait; the fourth was never stored.
		s.Frames = []FrameCount{{one[0].Slug, f.now(), 1, 0}}
		s.Outstanding = old[1:3]
		if err := f.Cool(f.Context(), 1); err != nil {
			f.Fatalf("Cool: %v", err)
		}
		if got := f.accounts(one...)[0]; got.Used.PerMinute != 3 || got.Outstanding != 2 {
			f.Fatalf("rebuilt %+v, want 3 used of which 2 outstanding", got)
		}
		f.advance(2 * time.Second)
		f.settle(
			Settlement{Reservation: old[0], Frames: 1, Ago: 3 * time.Second},
			Settlement{Reservation: old[3], Unstored: true},
		)
		if got := f.accounts(one...)[0]; got.Used.PerMinute != 3 || got.Outstanding != 2 {
			f.Errorf("after what the rebuild knew: %+v, want no change", got)
		}
		f.settle(Settlement{Reservation: old[1], Frames: 1, Ago: time.Second}, Settlement{Reservation: old[2]})
		if got := f.accounts(one...)[0]; got.Used.PerMinute != 2 || got.Outstanding != 0 {
			f.Errorf("after what it did not: %+v, want 2 frames", got)
		}
	})

	t.Run("a rebuild that fails leaves the ledger cold", func(t *testing.T) {
		c, broken := newClock(), errors.New("database is down")
		fail := true
		l := open(t, Options{Now: c.now, Rebuild: func(ctx context.Context, _ func(context.Context) (bool, error), load func(context.Context, State) error) error {
			if err := load(ctx, State{Generation: 1}); err != nil {
				return err
			}
			if fail {
				return broken // as a commit that failed after the load
			}
			return nil
		}})
		t.Cleanup(l.Close)
		f := fixture{l, t, c}
		for range 2 {
			if _, err := l.Reserve(t.Context(), Request{Org: "org-a", Candidates: candidates(roomy)}); !errors.Is(err, broken) {
				t.Fatalf("Reserve = %v, want the rebuild's error", err)
			}
		}
		fail = false
		f.take(Request{Candidates: candidates(roomy)})
	})

	t.Run("others are told to come back while one rebuilds", func(t *testing.T) {
		c := newClock()
		begun, proceed := make(chan struct{}), make(chan struct{})
		l := open(t, Options{Now: c.now, Rebuild: func(ctx context.Context, cold func(context.Context) (bool, error), load func(context.Context, State) error) error {
			if is, err := cold(ctx); err != nil || !is {
				return err
			}
			close(begun)
			<-proceed
			return load(ctx, State{Generation: 1})
		}})
		t.Cleanup(l.Close)
		done := make(chan error)
		go func() { done <- l.Warm(t.Context()) }()
		<-begun
		_, err := l.Reserve(t.Context(), Request{Org: "org-a", Candidates: candidates(roomy)})
		coded, ok := errors.AsType[*fleet.CodedError](err)
		if !ok || coded.Code != "LEDGER_COLD" || !errors.Is(err, fleet.ErrUnavailable) || coded.RetryAfter <= 0 {
			t.Errorf("Reserve meanwhile = %v, want LEDGER_COLD, unavailable, with a time to retry", err)
		}
		close(proceed)
		if err := <-done; err != nil {
			t.Fatalf("Warm: %v", err)
		}
		fixture{l, t, c}.take(Request{Candidates: candidates(roomy)})
	})
}
