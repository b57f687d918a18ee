package lease_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/lease"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
)

const (
	ttl    = 30 * time.Second
	beat   = 10 * time.Second
	margin = 5 * time.Second
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gate stands between a keeper and its database: it counts, refuses, and freezes.
type gate struct {
	lease.Leases
	claims, beats, releases atomic.Int64

	mu     sync.Mutex
	refuse error
	frozen chan struct{} // calls wait for it, or for their deadline; nil = open
	after  bool          // frozen after the database has answered instead of before
	sent   [][]fleet.Term
}

func (g *gate) set(fn func(g *gate)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fn(g)
}

func (g *gate) freeze(after bool) (thaw func()) {
	ch := make(chan struct{})
	g.set(func(g *gate) { g.frozen, g.after = ch, after })
	return func() {
		g.set(func(g *gate) { g.frozen = nil })
		close(ch)
	}
}

func (g *gate) pass(ctx context.Context, after bool) error {
	g.mu.Lock()
	refuse, frozen, when := g.refuse, g.frozen, g.after
	g.mu.Unlock()
	if refuse != nil {
		return refuse
	}
	if frozen == nil || when != after {
		return nil
	}
	select {
	case <-frozen:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *gate) ClaimLeases(ctx context.Context, q store.ClaimQuery) ([]fleet.Term, int, error) {
	g.claims.Add(1)
	if err := g.pass(ctx, false); err != nil {
		return nil, 0, err
	}
	terms, locked, err := g.Leases.ClaimLeases(ctx, q)
	if err := g.pass(ctx, true); err != nil {
		return nil, 0, err
	}
	return terms, locked, err
}

func (g *gate) BeatLeases(ctx context.Context, owner string, terms []fleet.Term, d time.Duration) ([]fleet.Term, error) {
	g.beats.Add(1)
	g.set(func(g *gate) { g.sent = append(g.sent, slices.Clone(terms)) })
	if err := g.pass(ctx, false); err != nil {
		return nil, err
	}
	kept, err := g.Leases.BeatLeases(ctx, owner, terms, d)
	if err := g.pass(ctx, true); err != nil {
		return nil, err
	}
	return kept, err
}

func (g *gate) ReleaseLeases(ctx context.Context, owner string, terms []fleet.Term) error {
	g.releases.Add(1)
	if err := g.pass(ctx, false); err != nil {
		return err
	}
	return g.Leases.ReleaseLeases(ctx, owner, terms)
}

// process is a keeper that runs, with what it was told.
type process struct {
	*lease.Keeper
	gate *gate
	stop context.CancelFunc
	done chan struct{}

	mu    sync.Mutex
	terms []*lease.Term
}

func start(t *testing.T, s *store.Store, owner string, change ...func(*lease.Options)) *process {
	t.Helper()
	p := &process{gate: &gate{}, done: make(chan struct{})}
	o := lease.Options{Store: s, Owner: owner, TTL: ttl, Beat: beat, Margin: margin, Log: testkit.Logger(t), OnClaim: func(term *lease.Term) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.terms = append(p.terms, term)
	}}
	for _, fn := range change {
		fn(&o)
	}
	p.Keeper = lease.NewKeeper(o)
	p.Through(func(l lease.Leases) lease.Leases { p.gate.Leases = l; return p.gate })
	ctx, cancel := context.WithCancel(t.Context())
	p.stop = cancel
	go func() {
		defer close(p.done)
		if err := p.Run(ctx); err != nil {
			t.Errorf("Run(%s) = %v", owner, err)
		}
	}()
	return p
}

// kill ends the process without a word to the database.
func (p *process) kill() {
	p.stop()
	<-p.done
}

// told returns the terms OnClaim was called with.
func (p *process) told() []*lease.Term {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.terms)
}

func (p *process) valid() (out []fleet.Term) {
	for _, t := range p.told() {
		if t.Err() == nil {
			out = append(out, t.Fleet())
		}
	}
	return out
}

// sessions makes n sessions and returns their ids in order.
func sessions(t testing.TB, s *store.Store, n int) []fleet.SessionID {
	t.Helper()
	if _, err := s.CreateOrganization(t.Context(), fleet.Organization{ID: "org-a", Strategy: fleet.StrategyWeighted}); err != nil {
		t.Fatal(err)
	}
	out := make([]fleet.SessionID, n)
	for i := range out {
		v, err := s.CreateSession(t.Context(), store.NewSession{Org: "org-a"})
		if err != nil {
			t.Fatal(err)
		}
		out[i] = v.ID
	}
	slices.Sort(out)
	return out
}

// bubble runs fn on simulated time with a fresh SQLite file of n sessions.
func bubble(t *testing.T, n int, fn func(t *testing.T, s *store.Store, ids []fleet.SessionID)) {
	t.Helper()
	url := storetest.SQLiteURL(t) // the template is made on real time
	synctest.Test(t, func(t *testing.T) {
		s, err := store.Open(t.Context(), store.Options{URL: url, PoolMax: 4, Ring: storetest.Ring(t)})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		fn(t, s, sessions(t, s, n))
	})
}

func history(t *testing.T, s *store.Store, id fleet.SessionID) (owners []string) {
	t.Helper()
	list, err := s.LeaseHistory(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		owners = append(owners, fmt.Sprintf("%d %s", c.Epoch, c.Owner))
	}
	return owners
}
