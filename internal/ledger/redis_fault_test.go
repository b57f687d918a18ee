package ledger

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/testkit"
)

// rows stand for SQL: what a rebuild reads, behind a lock that INSERTs and rebuilds take.
type rows struct {
	mu         sync.Mutex
	generation int64
	stored     []Reservation // outstanding
	frames     []FrameCount
	rebuilds   int
}

// insert stores a reservation as a message's row does, or says that it is of another generation.
func (r *rows) insert(res Reservation) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if res.Generation != r.generation {
		return false
	}
	r.stored = append(r.stored, res)
	return true
}

func (r *rows) rebuild(ctx context.Context, cold func(context.Context) (bool, error), load func(context.Context, State) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if is, err := cold(ctx); err != nil || !is {
		return err
	}
	s := State{Generation: r.generation + 1, Frames: r.frames, Outstanding: r.stored}
	if err := load(ctx, s); err != nil {
		return err
	}
	r.generation++
	r.rebuilds++
	return nil
}

func openServer(t *testing.T, s *testkit.RedisServer, rebuild Rebuild) *Redis {
	t.Helper()
	l, err := NewRedis(RedisOptions{Options: Options{Rebuild: rebuild}, URL: s.Addr(), Prefix: "f:", Log: testkit.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// send reserves and stores until it is refused or the ledger can't be asked, and returns how many it stored.
func send(t *testing.T, l Ledger, r *rows, cs []Candidate) (stored int, err error) {
	t.Helper()
	for {
		a, err := l.Reserve(t.Context(), Request{Org: "org-a", Candidates: cs})
		switch {
		case err != nil:
			return stored, err
		case a.Verdict != Taken:
			return stored, nil
		case r.insert(a.Reservation):
			stored++
		}
	}
}

func TestALedgerThatLostItsMemoryNeverGivesMoreThanTheBudget(t *testing.T) {
	server := testkit.NewRedisServer(t)
	r := &rows{}
	one := candidates(Budget{10, 100, 1000, 10})
	two := [2]*Redis{openServer(t, server, r.rebuild), openServer(t, server, r.rebuild)} // as two processes
	if n, err := send(t, two[0], r, one); n != 10 || err != nil {
		t.Fatalf("%d stored, %v, want 10", n, err)
	}
	for _, tt := range []struct {
		name string
		lose func()
	}{
		{"its data are flushed", func() { server.Do("FLUSHALL") }},
		{"its scripts are flushed", func() { server.Do("SCRIPT", "FLUSH") }},
		{"it is killed and started again", func() { server.Kill(); server.Start() }},
		{"the budgets are evicted", func() { server.Do("DEL", fmt.Sprintf("f:wa:budget:%d", r.generation)) }},
		{"the marker alone is lost", func() { server.Do("DEL", "f:wa:ledger") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := r.rebuilds
			tt.lose()
			for _, l := range two {
				testkit.Eventually(t, 10*time.Second, func() error {
					n, err := send(t, l, r, one)
					if n != 0 {
						t.Errorf("%d more stored, want none: all ten are outstanding", n)
					}
					return err
				})
			}
			if r.rebuilds != before+1 {
				t.Errorf("%d rebuilds, want one for both processes", r.rebuilds-before)
			}
			v, err := two[0].Look(t.Context(), Request{Org: "org-a", Candidates: one})
			if err != nil {
				t.Fatal(err)
			}
			want := Account{Why: Minute, Used: Budget{10, 10, 10, 0}, Outstanding: 10, Health: 100}
			if diff := cmp.Diff(want, v.Accounts[0]); diff != "" {
				t.Errorf("account (-want +got):\n%s", diff)
			}
		})
	}
}

// The server loses its memory again and again while two processes send as fast as they can: what they
// store is never more than the budget.
func TestBudgetsHoldWhileRedisIsKilledInMidTraffic(t *testing.T) {
	server := testkit.NewRedisServer(t)
	r := &rows{}
	cs := candidates(Budget{100_000, 400, 100_000, 10}, Budget{100_000, 300, 100_000, 10})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var senders sync.WaitGroup
	for range 2 {
		l := openServer(t, server, r.rebuild)
		for range 3 {
			senders.Go(func() {
				for ctx.Err() == nil {
					a, err := l.Reserve(ctx, Request{Org: "org-a", Candidates: cs, Rand: 0.5})
					switch {
					case err != nil && !errors.Is(err, fleet.ErrUnavailable) && ctx.Err() == nil:
						t.Errorf("Reserve = %v, want nothing but unavailable", err)
					case err == nil && a.Verdict == Taken:
						r.insert(a.Reservation)
					}
				}
			})
		}
	}
	count := func() int { r.mu.Lock(); defer r.mu.Unlock(); return len(r.stored) }
	for i, lose := range []func(){
		func() { server.Kill(); server.Start() },
		func() { server.Do("FLUSHALL") },
		func() { server.Kill(); server.Start() },
		func() { server.Do("SCRIPT", "FLUSH") },
	} {
		testkit.Eventually(t, 20*time.Second, func() error {
			if n := count(); n < 100*(i+1) {
				return errors.New("stored " + strconv.Itoa(n))
			}
			return nil
		})
		lose()
	}
	testkit.Eventually(t, 20*time.Second, func() error {
		if n := count(); n < 700 {
			return errors.New("stored " + strconv.Itoa(n))
		}
		return nil
	})
	stop()
	senders.Wait()
	per := map[fleet.SessionSlug]int{}
	for _, res := range r.stored {
		per[res.Session]++
	}
	if diff := cmp.Diff(map[fleet.SessionSlug]int{"org-a-01": 400, "org-a-02": 300}, per); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
	t.Logf("%d rebuilds", r.rebuilds)
}

func TestAFullServerRefusesAndTakesNothing(t *testing.T) {
	server := testkit.NewRedisServer(t)
	l := openServer(t, server, nil)
	one := candidates(Budget{10, 100, 1000, 10})
	ask := Request{Org: "org-a", Candidates: one, Limits: &Limits{Project: "prj_1", Quota: 5, Month: "2026-11"}}
	a, err := l.Reserve(t.Context(), ask)
	if err != nil || a.Verdict != Taken {
		t.Fatalf("Reserve = %+v, %v", a, err)
	}
	server.Do("CONFIG", "SET", "maxmemory", "1")
	if _, err := l.Reserve(t.Context(), ask); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("Reserve on a full server = %v, want unavailable", err)
	}
	if err := l.Settle(t.Context(), Settlement{Reservation: a.Reservation, Frames: 1}); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("Settle on a full server = %v, want unavailable", err)
	}
	server.Do("CONFIG", "SET", "maxmemory", "0")
	v, err := l.Look(t.Context(), Request{Org: "org-a", Candidates: one})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Account{Used: Budget{1, 1, 1, 0}, Outstanding: 1, Health: 100}, v.Accounts[0]); diff != "" {
		t.Errorf("account (-want +got):\n%s", diff)
	}
}

func TestWhatRedisEvictsMakesTheLedgerCold(t *testing.T) {
	server := testkit.NewRedisServer(t)
	r := &rows{}
	l := openServer(t, server, r.rebuild)
	one := candidates(Budget{2, 100, 1000, 10})
	limited := Request{Org: "org-a", Candidates: one, Limits: &Limits{Project: "prj_1"}}
	take := func(ask Request) Reservation {
		t.Helper()
		a, err := l.Reserve(t.Context(), ask)
		if err != nil || a.Verdict != Taken {
			t.Fatalf("Reserve = %+v, %v, want taken", a, err)
		}
		return a.Reservation
	}
	held := take(limited)
	server.Do("DEL", "f:wa:limits:1")
	if got := take(limited).Generation; got != 2 {
		t.Errorf("generation %d after the limits were lost, want a new one", got)
	}
	// A ring that is missing while its header counts what was in it.
	r.stored, r.frames = nil, []FrameCount{{Session: one[0].Slug, At: time.Now(), Frames: 1}}
	if err := l.Cool(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	take(limited)
	server.Do("DEL", "f:wa:ring:3:org-a-01")
	if err := l.Settle(t.Context(), Settlement{Reservation: held}); err != nil {
		t.Fatal(err)
	}
	if got := take(limited).Generation; got != 4 {
		t.Errorf("generation %d after a ring was lost, want a new one", got)
	}
}

func TestAServerThatIsAwayIsUnavailableAndComesBack(t *testing.T) {
	server := testkit.NewRedisServer(t)
	l := openServer(t, server, nil)
	ask := Request{Org: "org-a", Candidates: candidates(Budget{10, 100, 1000, 10})}
	if err := l.Warm(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.Freeze()
	for range 2 { // the second does not wait for a server that has just not answered
		if _, err := l.Reserve(t.Context(), ask); !errors.Is(err, fleet.ErrUnavailable) {
			t.Errorf("Reserve while the server is frozen = %v, want unavailable", err)
		}
	}
	server.Thaw()
	testkit.Eventually(t, 10*time.Second, func() error { _, err := l.Reserve(t.Context(), ask); return err })
	server.Kill()
	if _, err := l.Reserve(t.Context(), ask); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("Reserve while the server is away = %v, want unavailable", err)
	}
}

// A server that is gone when the process starts is no reason not to start.
func TestALedgerStartsBeforeItsServer(t *testing.T) {
	server := testkit.NewRedisServer(t)
	server.Kill()
	l := openServer(t, server, nil)
	if err := l.Warm(t.Context()); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("Warm without a server = %v, want unavailable", err)
	}
	server.Start()
	testkit.Eventually(t, 10*time.Second, func() error { return l.Warm(t.Context()) })
}
