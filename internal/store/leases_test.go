package store_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
)

const leaseTTL = 30 * time.Second

func newSessions(t *testing.T, s *store.Store, n int) []fleet.SessionID {
	t.Helper()
	newOrg(t, s, "org-a")
	ids := make([]fleet.SessionID, n)
	for i := range ids {
		ids[i] = newSession(t, s, store.NewSession{Org: "org-a"}).ID
	}
	slices.Sort(ids)
	return ids
}

func claim(t *testing.T, s *store.Store, owner string, limit int) []fleet.Term {
	t.Helper()
	terms, locked, err := s.ClaimLeases(t.Context(), store.ClaimQuery{Owner: owner, Limit: limit, TTL: leaseTTL})
	if err != nil || locked != 0 {
		t.Fatalf("ClaimLeases(%q) = %v, %d locked, %v, want no error and none locked", owner, terms, locked, err)
	}
	return terms
}

func execSQL(t *testing.T, s *store.Store, q string, args ...any) {
	t.Helper()
	if _, err := s.DB().Exec(t.Context(), q, args...); err != nil {
		t.Fatalf("%s: %v", q, err)
	}
}

func expire(t *testing.T, s *store.Store, ids ...fleet.SessionID) {
	t.Helper()
	for _, id := range ids {
		execSQL(t, s, `UPDATE leases SET expires_at = 1 WHERE session_id = $1`, id)
	}
}

func TestClaimTakesUnownedAndExpiredLeasesUnderTheNextEpoch(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		ids := newSessions(t, s, 3)
		want := []fleet.Term{{SessionID: ids[0], Owner: "w1/a", Epoch: 1}, {SessionID: ids[1], Owner: "w1/a", Epoch: 1}}
		if diff := cmp.Diff(want, claim(t, s, "w1/a", 2)); diff != "" {
			t.Errorf("first claim (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]fleet.Term{{SessionID: ids[2], Owner: "w2/b", Epoch: 1}}, claim(t, s, "w2/b", 10)); diff != "" {
			t.Errorf("claim of what is left (-want +got):\n%s", diff)
		}
		if got := claim(t, s, "w3/c", 10); len(got) != 0 {
			t.Errorf("claim while everything is owned = %v, want nothing", got)
		}
		expire(t, s, ids[0])
		if diff := cmp.Diff([]fleet.Term{{SessionID: ids[0], Owner: "w3/c", Epoch: 2}}, claim(t, s, "w3/c", 10)); diff != "" {
			t.Errorf("claim of an expired lease (-want +got):\n%s", diff)
		}
	})
}

func TestClaimWritesTheLeaseLog(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		id := newSessions(t, s, 1)[0]
		claim(t, s, "w1/a", 1)
		expire(t, s, id)
		claim(t, s, "w2/b", 1)
		got, err := s.LeaseHistory(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if d := time.Since(got[i].At); d < -time.Minute || d > time.Minute {
				t.Errorf("line %d at %v, want about now", i, got[i].At)
			}
			got[i].At = time.Time{}
		}
		if diff := cmp.Diff([]store.LeaseClaim{{Epoch: 1, Owner: "w1/a"}, {Epoch: 2, Owner: "w2/b"}}, got); diff != "" {
			t.Errorf("LeaseHistory (-want +got):\n%s", diff)
		}
	})
}

func TestClaimPassesOverSessionsThatAreNotWantedRunning(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		ids := newSessions(t, s, 2)
		execSQL(t, s, `UPDATE sessions SET desired = 'stopped' WHERE id = $1`, ids[0])
		if diff := cmp.Diff([]fleet.Term{{SessionID: ids[1], Owner: "w", Epoch: 1}}, claim(t, s, "w", 10)); diff != "" {
			t.Errorf("ClaimLeases (-want +got):\n%s", diff)
		}
	})
}

func TestClaimTakesOnlyTheShardOfTheWorker(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newSessions(t, s, 12)
		seen := map[fleet.SessionID]int{}
		for shard := range 3 {
			terms, _, err := s.ClaimLeases(t.Context(), store.ClaimQuery{
				Owner: fmt.Sprintf("w%d", shard), Limit: 100, TTL: leaseTTL, Shard: fleet.Shard{Count: 3, Index: shard},
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, term := range terms {
				var key int
				if _, err := fmt.Sscanf(string(term.SessionID[:8]), "%x", &key); err != nil {
					t.Fatal(err)
				}
				if key%3 != shard {
					t.Errorf("shard %d claimed %s of shard %d", shard, term.SessionID, key%3)
				}
				seen[term.SessionID]++
			}
		}
		if len(seen) != 12 {
			t.Errorf("the three shards together claimed %d sessions, want 12", len(seen))
		}
	})
}

func TestClaimAllTakesWhatAnotherOwnerHoldsButNotItsOwn(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		ids := newSessions(t, s, 2)
		claim(t, s, "up/old", 1)
		mine := claim(t, s, "up/new", 1)
		terms, _, err := s.ClaimLeases(t.Context(), store.ClaimQuery{Owner: "up/new", Limit: 10, TTL: leaseTTL, All: true})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]fleet.Term{{SessionID: ids[0], Owner: "up/new", Epoch: 2}}, terms); diff != "" {
			t.Errorf("ClaimLeases(All) (-want +got):\n%s", diff)
		}
		kept, err := s.BeatLeases(t.Context(), "up/new", mine, leaseTTL)
		if err != nil || len(kept) != 1 {
			t.Errorf("beat of the term held before = %v, %v, want it kept", kept, err)
		}
	})
}

func TestBlankOwnerMatchesNothing(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		ids := newSessions(t, s, 1)
		if _, _, err := s.ClaimLeases(t.Context(), store.ClaimQuery{Limit: 1, TTL: leaseTTL}); err == nil {
			t.Error("ClaimLeases without an owner = nil, want an error")
		}
		free := []fleet.Term{{SessionID: ids[0], Epoch: 0}}
		if _, err := s.BeatLeases(t.Context(), "", free, leaseTTL); err == nil {
			t.Error("BeatLeases without an owner = nil, want an error")
		}
		if err := s.ReleaseLeases(t.Context(), "", free); err != nil {
			t.Errorf("ReleaseLeases without an owner = %v, want nil and nothing done", err)
		}
	})
}

func TestBeatReturnsOnlyTheTermsThatAreStillHeld(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		ids := newSessions(t, s, 3)
		terms := claim(t, s, "w1/a", 3)
		expire(t, s, ids...)
		if got := claim(t, s, "w2/b", 1); len(got) != 1 {
			t.Fatalf("claim of an expired lease = %v, want one", got)
		}
		if err := s.ReleaseLeases(t.Context(), "w1/a", terms[1:2]); err != nil {
			t.Fatal(err)
		}
		kept, err := s.BeatLeases(t.Context(), "w1/a", terms, leaseTTL)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(terms[2:], kept); diff != "" {
			t.Errorf("BeatLeases (-want +got):\n%s", diff)
		}
		older := []fleet.Term{{SessionID: ids[0], Owner: "w2/b", Epoch: 1}}
		if kept, err := s.BeatLeases(t.Context(), "w2/b", older, leaseTTL); err != nil || len(kept) != 0 {
			t.Errorf("BeatLeases(an older epoch of the same owner) = %v, %v, want nothing kept", kept, err)
		}
	})
}

func TestBeatProlongsFromTheDatabaseClock(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		id := newSessions(t, s, 1)[0]
		terms := claim(t, s, "w", 1)
		expire(t, s, id)
		if _, err := s.BeatLeases(t.Context(), "w", terms, leaseTTL); err != nil {
			t.Fatal(err)
		}
		now, err := s.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		v, err := s.SessionByID(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if left := v.LeaseExpiresAt.Sub(now); left < leaseTTL-5*time.Second || left > leaseTTL {
			t.Errorf("after a beat the lease has %v left, want just under %v", left, leaseTTL)
		}
	})
}

func TestReleasedLeaseIsClaimedWithoutWaitingForTheTTL(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		id := newSessions(t, s, 1)[0]
		if err := s.ReleaseLeases(t.Context(), "w1/a", claim(t, s, "w1/a", 1)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]fleet.Term{{SessionID: id, Owner: "w2/b", Epoch: 2}}, claim(t, s, "w2/b", 1)); diff != "" {
			t.Errorf("claim after a release (-want +got):\n%s", diff)
		}
		if err := s.ReleaseLeases(t.Context(), "w1/a", []fleet.Term{{SessionID: id, Owner: "w1/a", Epoch: 1}}); err != nil {
			t.Fatal(err)
		}
		if got := claim(t, s, "w3/c", 1); len(got) != 0 {
			t.Errorf("claim after an old term was released again = %v, want nothing: the new owner keeps its lease", got)
		}
	})
}

func TestWorkersThatClaimAtOnceNeverShareASession(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newSessions(t, s, 24)
		var mu sync.Mutex
		owners := map[fleet.SessionID][]string{}
		var wg sync.WaitGroup
		for w := range 6 {
			wg.Go(func() {
				owner := fmt.Sprintf("w%d", w)
				for range 6 {
					terms, _, err := s.ClaimLeases(t.Context(), store.ClaimQuery{Owner: owner, Limit: 2, TTL: leaseTTL})
					if err != nil {
						t.Errorf("ClaimLeases(%q) = %v", owner, err)
					}
					mu.Lock()
					for _, term := range terms {
						owners[term.SessionID] = append(owners[term.SessionID], owner)
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		for id, list := range owners {
			if len(list) != 1 {
				t.Errorf("session %s was claimed by %v, want one owner", id, list)
			}
		}
		if len(owners) != 24 {
			t.Errorf("%d sessions claimed, want 24", len(owners))
		}
	})
}

func TestBeatsAndClaimsHaveAConnectionOfTheirOwn(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newSessions(t, s, 1)
		terms := claim(t, s, "w", 1)
		var held []*sql.Conn
		for range s.DB().RawDB.Stats().MaxOpenConnections {
			c, err := s.DB().RawDB.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, c)
		}
		defer func() {
			for _, c := range held {
				_ = c.Close()
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if kept, err := s.BeatLeases(ctx, "w", terms, leaseTTL); err != nil || len(kept) != 1 {
			t.Errorf("BeatLeases while the work pool is used up = %v, %v, want the term kept", kept, err)
		}
	})
}

func TestClaimSkipsARowThatAnOpenFencedWriteHoldsAndReportsIt(t *testing.T) {
	s := storetest.Postgres(t)
	id := newSessions(t, s, 1)[0]
	term := claim(t, s, "w1/a", 1)[0]
	inside, leave := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- s.Fenced(t.Context(), term, func(context.Context) error {
			close(inside)
			<-leave
			return nil
		})
	}()
	<-inside
	// The row can't be expired by an update: the fence holds it. So claim regardless of expiry.
	q := store.ClaimQuery{Owner: "w2/b", Limit: 5, TTL: leaseTTL, All: true}
	if terms, locked, err := s.ClaimLeases(t.Context(), q); err != nil || len(terms) != 0 || locked != 1 {
		t.Errorf("ClaimLeases while a fenced write is open = %v, %d locked, %v, want nothing claimed and 1 locked", terms, locked, err)
	}
	close(leave)
	if err := <-done; err != nil {
		t.Fatalf("the fenced write = %v", err)
	}
	terms, locked, err := s.ClaimLeases(t.Context(), q)
	if err != nil || locked != 0 {
		t.Fatalf("ClaimLeases after the commit: %d locked, %v", locked, err)
	}
	if diff := cmp.Diff([]fleet.Term{{SessionID: id, Owner: "w2/b", Epoch: 2}}, terms); diff != "" {
		t.Errorf("ClaimLeases after the commit (-want +got):\n%s", diff)
	}
}

func TestFrozenOwnersOpenTransactionIsEndedByTheServer(t *testing.T) {
	const ttl = 3 * time.Second // the timeouts become 2 s, their least
	s := storetest.Postgres(t)
	id := newSessions(t, s, 1)[0]
	if err := s.EnsureTimeouts(t.Context(), ttl); err != nil {
		t.Fatal(err)
	}
	if err := s.CheckTimeouts(t.Context(), ttl); err != nil {
		t.Fatalf("CheckTimeouts after EnsureTimeouts = %v", err)
	}
	terms, _, err := s.ClaimLeases(t.Context(), store.ClaimQuery{Owner: "w1/frozen", Limit: 1, TTL: ttl})
	if err != nil || len(terms) != 1 {
		t.Fatalf("ClaimLeases = %v, %v", terms, err)
	}
	inside, thaw := make(chan struct{}), make(chan struct{})
	late := make(chan error, 1)
	go func() {
		late <- s.Fenced(t.Context(), terms[0], func(ctx context.Context) error {
			close(inside)
			<-thaw
			_, err := s.DB().Exec(ctx, `UPDATE sessions SET label = 'stale' WHERE id = $1`, id)
			return err
		})
	}()
	<-inside
	sawLocked := false
	start := time.Now()
	testkit.Eventually(t, 20*time.Second, func() error {
		terms, locked, err := s.ClaimLeases(t.Context(), store.ClaimQuery{Owner: "w2/b", Limit: 1, TTL: ttl, All: true})
		if err != nil {
			t.Fatal(err)
		}
		sawLocked = sawLocked || locked > 0
		if len(terms) == 0 {
			return errors.New("nothing claimed yet")
		}
		return nil
	})
	if took := time.Since(start); !sawLocked || took > 10*time.Second {
		t.Errorf("takeover after %v, row reported as locked: %v; want about 2 s and true", took, sawLocked)
	}
	close(thaw)
	if err := <-late; err == nil {
		t.Error("the frozen owner's late write = nil, want an error: its transaction is over")
	}
	var label string
	if err := s.DB().QueryRow(t.Context(), `SELECT label FROM sessions WHERE id = $1`, id).Scan(&label); err != nil || label == "stale" {
		t.Errorf("label = %q, %v, want it untouched by the frozen owner", label, err)
	}
}

func TestTimeoutsThatAreNotSetAreReported(t *testing.T) {
	s := storetest.Postgres(t)
	if err := s.CheckTimeouts(t.Context(), leaseTTL); !errors.Is(err, store.ErrTimeouts) {
		t.Errorf("CheckTimeouts on a fresh database = %v, want ErrTimeouts", err)
	}
	var wg sync.WaitGroup
	for range 4 { // processes that start together
		wg.Go(func() {
			if err := s.EnsureTimeouts(t.Context(), leaseTTL); err != nil {
				t.Errorf("EnsureTimeouts = %v", err)
			}
		})
	}
	wg.Wait()
	if err := s.CheckTimeouts(t.Context(), leaseTTL); err != nil {
		t.Errorf("CheckTimeouts after EnsureTimeouts = %v", err)
	}
	if err := s.CheckTimeouts(t.Context(), 6*time.Second); !errors.Is(err, store.ErrTimeouts) {
		t.Errorf("CheckTimeouts for a shorter TTL = %v, want ErrTimeouts", err)
	}
	if err := storetest.SQLite(t).CheckTimeouts(t.Context(), leaseTTL); err != nil {
		t.Errorf("CheckTimeouts on SQLite = %v, want nil", err)
	}
}

// Connectors of other makes filter the list of active sessions by shard. That is what workers claim.
func TestActiveSessionsOfAShardAreThoseThatItsWorkerClaims(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		ids := newSessions(t, s, 12)
		for i, desired := range map[int]fleet.Desired{3: fleet.DesiredStopped, 7: fleet.DesiredDeleted} {
			mustSQL(t, s, `UPDATE sessions SET desired=$2 WHERE id=$1`, ids[i], desired)
		}
		active, err := s.ActiveSessions(t.Context())
		if err != nil || len(active) != 10 {
			t.Fatalf("ActiveSessions = %v, %v, want all but the stopped and the deleted one", active, err)
		}
		const shards = 3
		for index := range shards {
			var want, got []fleet.SessionID
			for _, id := range active {
				if fleet.ShardOf(id, shards) == index {
					want = append(want, id)
				}
			}
			terms, _, err := s.ClaimLeases(t.Context(), store.ClaimQuery{
				Owner: fmt.Sprint("w", index), Limit: 100, TTL: leaseTTL, Shard: fleet.Shard{Count: shards, Index: index},
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, term := range terms {
				got = append(got, term.SessionID)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("shard %d claims %v, want %v", index, got, want)
			}
		}
	})
}

func TestWorkerRowsComeAndGo(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		ctx := t.Context()
		w := fleet.WorkerInfo{ID: "w1", Owner: "w1/a", Version: "v1", MaxSessions: 500, Shard: fleet.Shard{Count: 3, Index: 2}}
		if _, err := s.BeatWorker(ctx, "w1/a", 1, false); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("BeatWorker before it registered = %v, want ErrNotFound", err)
		}
		if err := s.RegisterWorker(ctx, w); err != nil {
			t.Fatal(err)
		}
		if drain, err := s.BeatWorker(ctx, "w1/a", 7, true); err != nil || drain {
			t.Fatalf("BeatWorker = %v, %v, want nobody to want it empty", drain, err)
		}
		if err := s.DrainWorker(ctx, "w1", true); err != nil {
			t.Fatal(err)
		}
		if drain, err := s.BeatWorker(ctx, "w1/a", 7, true); err != nil || !drain {
			t.Errorf("BeatWorker after DrainWorker = %v, %v, want it told", drain, err)
		}
		if err := s.DrainWorker(ctx, "w2", true); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("DrainWorker of nobody = %v, want ErrNotFound", err)
		}
		got, err := s.Workers(ctx)
		if err != nil || len(got) != 1 {
			t.Fatalf("Workers = %v, %v, want one", got, err)
		}
		if got[0].StartedAt.IsZero() || got[0].BeatAt.Before(got[0].StartedAt) {
			t.Errorf("started %v, beat %v, want both set and in this order", got[0].StartedAt, got[0].BeatAt)
		}
		if age := got[0].BeatAge; age < 0 || age > time.Minute {
			t.Errorf("the last beat was %s ago, want just now", age)
		}
		got[0].StartedAt, got[0].BeatAt, got[0].BeatAge = time.Time{}, time.Time{}, 0
		w.Sessions, w.Draining, w.Drain, w.Alive = 7, true, true, true
		if diff := cmp.Diff(w, got[0]); diff != "" {
			t.Errorf("Workers (-want +got):\n%s", diff)
		}
		for range 2 { // the second one is gone already
			if err := s.RemoveWorker(ctx, "w1/a"); err != nil {
				t.Errorf("RemoveWorker = %v, want nil", err)
			}
		}
		if left, err := s.Workers(ctx); err != nil || len(left) != 0 {
			t.Errorf("Workers = %v, %v, want none", left, err)
		}
	})
}

func BenchmarkBeatOf500Terms(b *testing.B) {
	for name, open := range map[string]func(testing.TB) *store.Store{"sqlite": storetest.SQLite, "postgres": storetest.Postgres} {
		b.Run(name, func(b *testing.B) {
			s := open(b)
			ctx := b.Context()
			if _, err := s.CreateOrganization(ctx, fleet.Organization{ID: "org-a", Strategy: fleet.StrategyWeighted}); err != nil {
				b.Fatal(err)
			}
			for range 500 {
				if _, err := s.CreateSession(ctx, store.NewSession{Org: "org-a"}); err != nil {
					b.Fatal(err)
				}
			}
			terms, _, err := s.ClaimLeases(ctx, store.ClaimQuery{Owner: "w", Limit: 500, TTL: leaseTTL})
			if err != nil || len(terms) != 500 {
				b.Fatalf("ClaimLeases = %d terms, %v", len(terms), err)
			}
			for b.Loop() {
				if kept, err := s.BeatLeases(ctx, "w", terms, leaseTTL); err != nil || len(kept) != 500 {
					b.Fatalf("BeatLeases = %d kept, %v", len(kept), err)
				}
			}
		})
	}
}
