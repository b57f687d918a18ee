package lease_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/lease"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
)

func TestOneStatementPerWorkerPerBeat(t *testing.T) {
	bubble(t, 7, func(t *testing.T, s *store.Store, ids []fleet.SessionID) {
		p := start(t, s, "w1/a")
		defer p.kill()
		time.Sleep(time.Second)
		if got := len(p.valid()); got != 7 {
			t.Fatalf("%d sessions held after a second, want 7", got)
		}
		time.Sleep(10 * beat)
		if got := p.gate.beats.Load(); got != 10 {
			t.Errorf("%d beat statements in ten beats for 7 sessions, want 10", got)
		}
		if got := len(p.valid()); got != 7 {
			t.Errorf("%d sessions held after ten beats, want 7", got)
		}
		for _, id := range ids {
			if diff := cmp.Diff([]string{"1 w1/a"}, history(t, s, id)); diff != "" {
				t.Errorf("lease_log of %s (-want +got):\n%s", id, diff)
			}
		}
	})
}

func TestWhatAnAnsweredBeatLeavesOutIsLost(t *testing.T) {
	bubble(t, 2, func(t *testing.T, s *store.Store, ids []fleet.SessionID) {
		p := start(t, s, "w1/a")
		defer p.kill()
		time.Sleep(time.Second)
		p.StopClaiming()
		if _, err := s.DB().Exec(t.Context(), `UPDATE leases SET owner = 'w2/b', epoch = 2, expires_at = expires_at + 999000 WHERE session_id = $1`, ids[0]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(beat)
		for _, term := range p.told() {
			lost := term.Fleet().SessionID == ids[0]
			if (term.Err() != nil) != lost || errors.Is(context.Cause(term.Context()), fleet.ErrLeaseLost) != lost {
				t.Errorf("session %s: Err = %v, cause %v; want lost: %v", term.Fleet().SessionID, term.Err(), context.Cause(term.Context()), lost)
			}
		}
	})
}

func TestFailedBeatIsRetriedAtOnceAndOnlyAnAnswerCanSayLost(t *testing.T) {
	bubble(t, 1, func(t *testing.T, s *store.Store, _ []fleet.SessionID) {
		p := start(t, s, "w1/a")
		defer p.kill()
		time.Sleep(time.Second)
		p.gate.set(func(g *gate) { g.refuse = errors.New("connection refused") })
		time.Sleep(beat) // the beat at 10 s fails, and so does what follows it
		tries := p.gate.beats.Load()
		if tries < 2 {
			t.Errorf("%d tries of a beat that is refused for a second, want several", tries)
		}
		if tries > 40 {
			t.Errorf("%d tries of a beat that is refused for a second: that is a spin", tries)
		}
		if p.told()[0].Err() != nil {
			t.Error("a refused beat ended the term, want it trusted until its window closes")
		}
		p.gate.set(func(g *gate) { g.refuse = nil })
		time.Sleep(3 * time.Second)
		if p.gate.beats.Load() == tries {
			t.Error("no beat after the database was back, want one at once")
		}
		time.Sleep(5 * beat)
		if got := len(p.told()); got != 1 || p.told()[0].Err() != nil {
			t.Errorf("%d terms, the first with Err %v; want the first one kept over the outage", got, p.told()[0].Err())
		}
	})
}

func TestBeatThatHangsHasItsOwnDeadline(t *testing.T) {
	bubble(t, 1, func(t *testing.T, s *store.Store, _ []fleet.SessionID) {
		p := start(t, s, "w1/a")
		defer p.kill()
		time.Sleep(time.Second)
		thaw := p.gate.freeze(false)
		time.Sleep(beat + 5*time.Second) // the first try at 10 s may take 5 s
		thaw()
		time.Sleep(10 * time.Second)
		if p.told()[0].Err() != nil || len(p.told()) != 1 {
			t.Errorf("term lost after a beat that hung for 6 s, want it renewed by the next try")
		}
	})
}

func TestTrustEndsAtAttemptStartPlusTTLMinusMargin(t *testing.T) {
	bubble(t, 1, func(t *testing.T, s *store.Store, _ []fleet.SessionID) {
		began := time.Now()
		p := start(t, s, "w1/a")
		defer p.kill()
		time.Sleep(beat + time.Second) // claimed at 0, renewed at 10
		term := p.told()[0]
		p.gate.set(func(g *gate) { g.refuse = errors.New("no route") })
		<-term.Context().Done()
		if got, want := time.Since(began), beat+ttl-margin; got != want {
			t.Errorf("the term ended %v after the claim, want %v: last answered attempt + TTL − margin", got, want)
		}
		if !errors.Is(context.Cause(term.Context()), fleet.ErrLeaseLost) {
			t.Errorf("cause = %v, want ErrLeaseLost", context.Cause(term.Context()))
		}
	})
}

func TestTrustStartsWithTheAttemptAndNotWithItsAnswer(t *testing.T) {
	bubble(t, 1, func(t *testing.T, s *store.Store, _ []fleet.SessionID) {
		began := time.Now()
		p := start(t, s, "w1/a")
		defer p.kill()
		time.Sleep(time.Second)
		thaw := p.gate.freeze(true) // the database works at once, the answer takes 4 s
		time.Sleep(beat + 3*time.Second)
		thaw()
		time.Sleep(time.Millisecond)
		p.gate.set(func(g *gate) { g.refuse = errors.New("no route") })
		term := p.told()[0]
		<-term.Context().Done()
		if got, want := time.Since(began), beat+ttl-margin; got != want {
			t.Errorf("the term ended %v after the claim, want %v, whenever the answer came", got, want)
		}
	})
}

func TestEndedTermIsNeverRevived(t *testing.T) {
	bubble(t, 1, func(t *testing.T, s *store.Store, ids []fleet.SessionID) {
		p := start(t, s, "w1/a")
		defer p.kill()
		time.Sleep(time.Second)
		first := p.told()[0]
		first.Lose(errors.New("a supervisor gave up")) // the row still carries its epoch
		p.gate.set(func(g *gate) { g.sent = nil })
		time.Sleep(ttl + beat)
		if first.Err() == nil {
			t.Error("the ended term is valid again")
		}
		p.gate.set(func(g *gate) {
			for _, terms := range g.sent {
				if slices.Contains(terms, first.Fleet()) {
					t.Errorf("a beat asked for the ended term: %v", terms)
				}
			}
		})
		if diff := cmp.Diff([]string{"1 w1/a", "2 w1/a"}, history(t, s, ids[0])); diff != "" {
			t.Errorf("lease_log (-want +got):\n%s\nwant a new epoch after the row ran out", diff)
		}
		if got := p.valid(); len(got) != 1 || got[0].Epoch != 2 {
			t.Errorf("valid terms = %v, want the one of epoch 2", got)
		}
	})
}

func TestBeatAnsweredAfterTheTermEndedDoesNotReviveIt(t *testing.T) {
	bubble(t, 1, func(t *testing.T, s *store.Store, _ []fleet.SessionID) {
		p := start(t, s, "w1/a")
		defer p.kill()
		time.Sleep(time.Second)
		p.StopClaiming()
		thaw := p.gate.freeze(true)
		time.Sleep(beat)
		term := p.told()[0]
		term.Lose(fleet.ErrLeaseLost)
		thaw() // the answer says "still yours"
		time.Sleep(time.Second)
		if term.Err() == nil || len(p.Held()) != 0 {
			t.Errorf("Err = %v, %d held, want the term over", term.Err(), len(p.Held()))
		}
	})
}

func TestWorkerThatCannotRenewLosesAllItsTermsByItself(t *testing.T) {
	bubble(t, 5, func(t *testing.T, s *store.Store, _ []fleet.SessionID) {
		p := start(t, s, "w1/a")
		defer p.kill()
		time.Sleep(time.Second)
		thaw := p.gate.freeze(false)
		defer thaw()
		time.Sleep(ttl - margin - time.Second - time.Millisecond)
		if got := len(p.valid()); got != 5 {
			t.Fatalf("%d terms just before the window closes, want 5", got)
		}
		time.Sleep(2 * time.Millisecond)
		if got := len(p.valid()); got != 0 {
			t.Errorf("%d terms still valid after the window, want 0", got)
		}
		for _, term := range p.told() {
			if !errors.Is(context.Cause(term.Context()), fleet.ErrLeaseLost) {
				t.Errorf("cause = %v, want ErrLeaseLost", context.Cause(term.Context()))
			}
		}
	})
}

func TestClaimsComeInBatchesUpToTheMaximum(t *testing.T) {
	bubble(t, 30, func(t *testing.T, s *store.Store, _ []fleet.SessionID) {
		p := start(t, s, "w1/a", func(o *lease.Options) { o.Batch, o.Max = 4, 18 })
		defer p.kill()
		time.Sleep(time.Millisecond)
		if got := len(p.told()); got != 4 {
			t.Errorf("%d sessions after the first claim, want a batch of 4", got)
		}
		time.Sleep(500 * time.Millisecond)
		if got := len(p.valid()); got != 18 {
			t.Errorf("%d sessions held after half a second, want 18: batch after batch while there are more", got)
		}
		time.Sleep(time.Minute)
		if got := len(p.valid()); got != 18 {
			t.Errorf("%d sessions held, want the maximum of 18", got)
		}
		p.told()[0].Lose(errors.New("gone"))
		time.Sleep(2 * time.Second)
		if got := len(p.valid()); got != 18 {
			t.Errorf("%d sessions held after one ended, want another one claimed", got)
		}
	})
}

func TestSecondWorkerLeavesTheFirstOnesSessionsAlone(t *testing.T) {
	bubble(t, 10, func(t *testing.T, s *store.Store, ids []fleet.SessionID) {
		w1 := start(t, s, "w1/a")
		defer w1.kill()
		time.Sleep(2 * time.Second)
		w2 := start(t, s, "w2/b")
		defer w2.kill()
		time.Sleep(3 * ttl)
		if len(w1.valid()) != 10 || len(w2.valid()) != 0 {
			t.Errorf("w1 holds %d, w2 holds %d after three TTLs, want 10 and 0", len(w1.valid()), len(w2.valid()))
		}
		w1.kill()
		time.Sleep(ttl + 2*time.Second)
		if got := len(w2.valid()); got != 10 {
			t.Errorf("w2 holds %d a TTL after w1 was killed, want 10", got)
		}
		for _, id := range ids {
			if diff := cmp.Diff([]string{"1 w1/a", "2 w2/b"}, history(t, s, id)); diff != "" {
				t.Errorf("lease_log (-want +got):\n%s", diff)
			}
		}
	})
}

func TestKilledWorkersSessionsAreTakenAfterTheTTLAndNotBefore(t *testing.T) {
	bubble(t, 1, func(t *testing.T, s *store.Store, _ []fleet.SessionID) {
		w1 := start(t, s, "w1/a")
		time.Sleep(beat + time.Second) // renewed at 10 s: runs out at 40 s
		w2 := start(t, s, "w2/b")
		defer w2.kill()
		w1.kill()
		time.Sleep(ttl - time.Second - 50*time.Millisecond)
		if got := w2.valid(); len(got) != 0 {
			t.Errorf("w2 holds %v before the row ran out", got)
		}
		time.Sleep(1200 * time.Millisecond)
		if got := w2.valid(); len(got) != 1 || got[0].Epoch != 2 {
			t.Errorf("w2 holds %v within a poll after the row ran out, want one under epoch 2", got)
		}
	})
}

func TestReleasedSessionIsTakenAtOnce(t *testing.T) {
	bubble(t, 6, func(t *testing.T, s *store.Store, _ []fleet.SessionID) {
		w1 := start(t, s, "w1/a")
		time.Sleep(time.Second)
		w2 := start(t, s, "w2/b")
		defer w2.kill()
		time.Sleep(time.Second)
		w1.StopClaiming()
		one := w1.told()[0]
		w1.Release(t.Context(), one)
		if !errors.Is(context.Cause(one.Context()), lease.ErrReleased) || one.Err() == nil {
			t.Errorf("released term: cause %v, Err %v, want ErrReleased and an error", context.Cause(one.Context()), one.Err())
		}
		time.Sleep(time.Second)
		if got := w2.valid(); len(got) != 1 || got[0].SessionID != one.Fleet().SessionID {
			t.Errorf("w2 holds %v a poll after the release of %s", got, one.Fleet().SessionID)
		}
		before := w1.gate.releases.Load()
		w1.ReleaseAll(t.Context())
		if got := w1.gate.releases.Load() - before; got != 1 {
			t.Errorf("ReleaseAll took %d statements, want 1", got)
		}
		w2.Wake()
		synctest.Wait()
		if len(w1.valid()) != 0 || len(w2.valid()) != 6 {
			t.Errorf("w1 holds %d, w2 holds %d right after a graceful stop and a nudge, want 0 and 6", len(w1.valid()), len(w2.valid()))
		}
		w1.kill()
	})
}

func TestAfterStopClaimingNothingIsClaimed(t *testing.T) {
	bubble(t, 1, func(t *testing.T, s *store.Store, ids []fleet.SessionID) {
		p := start(t, s, "w1/a")
		defer p.kill()
		time.Sleep(time.Second)
		p.StopClaiming()
		p.Release(t.Context(), p.told()[0])
		n := p.gate.claims.Load()
		p.Wake()
		time.Sleep(ttl)
		if got := p.gate.claims.Load(); got != n || len(p.told()) != 1 {
			t.Errorf("%d claims and %d terms after StopClaiming, want none more", got-n, len(p.told())-1)
		}
	})
}

func TestClaimAnsweredAfterTheStopIsGivenBack(t *testing.T) {
	bubble(t, 3, func(t *testing.T, s *store.Store, ids []fleet.SessionID) {
		g := make(chan func(), 1)
		p := &process{gate: &gate{}, done: make(chan struct{})}
		g <- p.gate.freeze(true)
		p.Keeper = lease.NewKeeper(lease.Options{Store: s, Owner: "w1/a", TTL: ttl, Beat: beat, OnClaim: func(*lease.Term) {
			t.Error("a supervisor was told of a session that was claimed after the stop began")
		}})
		p.Through(func(l lease.Leases) lease.Leases { p.gate.Leases = l; return p.gate })
		ctx, cancel := context.WithCancel(t.Context())
		p.stop = cancel
		go func() { defer close(p.done); _ = p.Run(ctx) }()
		time.Sleep(time.Second) // claimed in the database, not known here yet
		var stopped sync.WaitGroup
		stopped.Go(func() { p.ReleaseAll(t.Context()) })
		time.Sleep(time.Second)
		(<-g)()
		stopped.Wait()
		w2 := start(t, s, "w2/b")
		defer w2.kill()
		time.Sleep(time.Second)
		if got := len(w2.valid()); got != 3 {
			t.Errorf("w2 holds %d, want 3: the late claim was given back", got)
		}
		p.kill()
	})
}

func TestWakeClaimsBeforeTheNextPoll(t *testing.T) {
	bubble(t, 1, func(t *testing.T, s *store.Store, _ []fleet.SessionID) {
		p := start(t, s, "w1/a")
		defer p.kill()
		time.Sleep(100 * time.Millisecond)
		v, err := s.CreateSession(t.Context(), store.NewSession{Org: "org-a"})
		if err != nil {
			t.Fatal(err)
		}
		p.Wake()
		synctest.Wait()
		if got := p.valid(); len(got) != 2 || got[1].SessionID != v.ID {
			t.Errorf("valid terms right after Wake = %v, want the new session %s too", got, v.ID)
		}
	})
}

func TestClaimAllTakesEverythingOnceAtTheStart(t *testing.T) {
	bubble(t, 7, func(t *testing.T, s *store.Store, ids []fleet.SessionID) {
		old := start(t, s, "up/old")
		time.Sleep(2 * time.Second)
		old.kill()
		p := start(t, s, "up/new", func(o *lease.Options) { o.ClaimAll, o.Batch = true, 3 })
		defer p.kill()
		time.Sleep(time.Millisecond)
		if got := len(p.valid()); got != 7 {
			t.Errorf("%d sessions held at once after a restart, want all 7 without waiting for the TTL or the next batch", got)
		}
		if _, err := s.DB().Exec(t.Context(), `UPDATE leases SET owner = 'other', epoch = 9, expires_at = expires_at + 999000 WHERE session_id = $1`, ids[0]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * ttl)
		if got := len(p.valid()); got != 6 {
			t.Errorf("%d sessions held, want 6: after the start only free leases are taken", got)
		}
	})
}

func TestKeepersOnPostgresHandOverByReleaseAndByExpiry(t *testing.T) {
	short := func(o *lease.Options) {
		o.TTL, o.Beat, o.Margin = 2*time.Second, 500*time.Millisecond, 300*time.Millisecond
	}
	s := storetest.Postgres(t)
	sessions(t, s, 4)
	w1 := start(t, s, "w1/a", short)
	holds := func(p *process, want int) func() error {
		return func() error {
			if got := len(p.valid()); got != want {
				return fmt.Errorf("%d sessions held, want %d", got, want)
			}
			return nil
		}
	}
	testkit.Eventually(t, 10*time.Second, holds(w1, 4))
	w2 := start(t, s, "w2/b", short)
	defer w2.kill()
	w1.ReleaseAll(t.Context())
	w2.Wake()
	testkit.Eventually(t, time.Second, holds(w2, 4))
	w1.kill()
	thaw := w2.gate.freeze(false)
	w3 := start(t, s, "w3/c", short)
	defer w3.kill()
	testkit.Eventually(t, 10*time.Second, holds(w3, 4))
	if got := w2.valid(); len(got) != 0 {
		t.Errorf("the frozen worker still trusts %v", got)
	}
	thaw()
}

func BenchmarkTermErr(b *testing.B) {
	s := storetest.SQLite(b)
	sessions(b, s, 1)
	claimed := make(chan *lease.Term, 1)
	k := lease.NewKeeper(lease.Options{Store: s, Owner: "w", OnClaim: func(t *lease.Term) { claimed <- t }})
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = k.Run(ctx) }()
	term := <-claimed
	for b.Loop() {
		if term.Err() != nil {
			b.Fatal("lost")
		}
	}
	cancel()
	<-done
}
