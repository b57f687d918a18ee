package lease

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/group"
	"github.com/wafleet/wafleet/internal/store"
)

// Options of NewKeeper. Zero durations and numbers take the defaults given.
type Options struct {
	Store *store.Store
	Owner string // WORKER_ID plus a boot nonce: never the same twice

	TTL    time.Duration // 30 s: how long a row lasts without a beat
	Beat   time.Duration // TTL/3: between beats
	Margin time.Duration // TTL/6: how much earlier than the row a term ends here
	Batch  int           // 10: claims in one statement, the first of ClaimAll excepted
	Max    int           // 500: terms held at most

	Shard fleet.Shard // which sessions; SetShards adds more
	// ClaimAll takes what other owners hold when Run starts, whatever its expiry, and all of it at once.
	// Only for a process that is alone on its database by a lock of its own.
	ClaimAll bool

	// OnClaim is told of each new term, one after the other; it must not wait.
	OnClaim    func(*Term)
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: not exported
}

// leases is what a keeper needs of the store.
type leases interface {
	ClaimLeases(ctx context.Context, q store.ClaimQuery) (terms []fleet.Term, locked int, err error)
	BeatLeases(ctx context.Context, owner string, terms []fleet.Term, ttl time.Duration) ([]fleet.Term, error)
	ReleaseLeases(ctx context.Context, owner string, terms []fleet.Term) error
}

// Keeper claims, renews and releases the terms of one process.
type Keeper struct {
	o       Options
	leases  leases
	log     *slog.Logger
	metrics *metrics
	wake    chan struct{}
	claims  chan struct{} // one slot: held from a claim's statement until its terms are known here

	giving *group.Committer[fleet.Term]

	mu       sync.Mutex
	terms    map[fleet.SessionID]*Term
	shards   []fleet.Shard // what is claimed
	stopped  bool          // no more claims, for good
	paused   bool          // none now
	claimAll bool
}

// NewKeeper returns a keeper that holds nothing yet.
func NewKeeper(o Options) *Keeper {
	if o.TTL <= 0 {
		o.TTL = 30 * time.Second
	}
	if o.Beat <= 0 {
		o.Beat = o.TTL / 3
	}
	if o.Margin <= 0 || o.Margin >= o.TTL {
		o.Margin = o.TTL / 6
	}
	if o.Batch <= 0 {
		o.Batch = 10
	}
	if o.Max <= 0 {
		o.Max = 500
	}
	if o.OnClaim == nil {
		o.OnClaim = func(*Term) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	k := &Keeper{
		o: o, leases: o.Store, log: o.Log,
		wake:     make(chan struct{}, 1),
		claims:   make(chan struct{}, 1),
		terms:    map[fleet.SessionID]*Term{},
		claimAll: o.ClaimAll,
		shards:   []fleet.Shard{o.Shard},
	}
	k.giving = group.New(k.attempt(), func(ctx context.Context, terms []fleet.Term) error {
		return k.leases.ReleaseLeases(ctx, k.o.Owner, terms)
	})
	k.metrics = newMetrics(o.Registerer, func() float64 { return float64(len(k.held())) })
	return k
}

// Run claims and beats until ctx ends. Terms not released by then end with it.
func (k *Keeper) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { k.beatLoop(ctx) })
	wg.Go(func() { k.claimLoop(ctx) })
	wg.Wait()
	k.giving.Wait()
	for _, t := range k.held() {
		t.end(context.Cause(ctx), context.Cause(ctx))
	}
	return nil
}

// Wake looks for claimable sessions now instead of at the next poll.
func (k *Keeper) Wake() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// StopClaiming ends claiming for good. A claim under way is given back when it is answered.
func (k *Keeper) StopClaiming() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
}

// Pause ends claiming until it is called with false. A claim under way is given back when it is answered.
func (k *Keeper) Pause(paused bool) {
	k.mu.Lock()
	k.paused = paused
	k.mu.Unlock()
	if !paused {
		k.Wake()
	}
}

// SetShards says which sessions are claimed from now on, beside those of the keeper's own shard. What is
// held stays held.
func (k *Keeper) SetShards(more []fleet.Shard) {
	k.mu.Lock()
	k.shards = append([]fleet.Shard{k.o.Shard}, more...)
	k.mu.Unlock()
	k.Wake()
}

// Release ends the term and gives its session away, so that any worker may claim it at once; terms that
// are released at about the same time share a statement. When the database does not answer, others wait
// for the row to expire.
func (k *Keeper) Release(ctx context.Context, t *Term) {
	t.end(ErrReleased, ErrReleased)
	if err := k.giving.Do(ctx, t.term); err != nil {
		k.log.WarnContext(ctx, "lease not released: others must wait for it to expire",
			slog.String("session_id", string(t.term.SessionID)), slog.Any("err", err))
	}
}

// ReleaseAll stops claiming, then releases every term in one statement.
func (k *Keeper) ReleaseAll(ctx context.Context) {
	k.StopClaiming()
	select { // a claim under way would leave its terms behind
	case k.claims <- struct{}{}:
		defer func() { <-k.claims }()
	case <-ctx.Done():
	}
	var terms []fleet.Term
	for _, t := range k.held() {
		terms = append(terms, t.term)
		t.end(ErrReleased, ErrReleased)
	}
	k.giveBack(ctx, terms)
}

func (k *Keeper) giveBack(ctx context.Context, terms []fleet.Term) {
	if len(terms) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, k.attempt())
	defer cancel()
	if err := k.leases.ReleaseLeases(ctx, k.o.Owner, terms); err != nil {
		k.log.WarnContext(ctx, "leases not released: others must wait for them to expire",
			slog.Int("sessions", len(terms)), slog.Any("err", err))
	}
}

// held returns the terms that have not ended, by session.
func (k *Keeper) held() []*Term {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := make([]*Term, 0, len(k.terms))
	for _, t := range k.terms {
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b *Term) int { return strings.Compare(string(a.term.SessionID), string(b.term.SessionID)) })
	return out
}

// forget is told by a term that it has ended.
func (k *Keeper) forget(t *Term, why error) {
	k.mu.Lock()
	if k.terms[t.term.SessionID] == t {
		delete(k.terms, t.term.SessionID)
	}
	k.mu.Unlock()
	k.metrics.ended(why)
	k.log.InfoContext(t.ctx, "term ended", slog.String("session_id", string(t.term.SessionID)),
		slog.Int64("epoch", t.term.Epoch), slog.Any("err", why))
}

// attempt bounds one conversation with the database: several fit into the trust window.
func (k *Keeper) attempt() time.Duration {
	return min(max(k.o.Beat/2, 250*time.Millisecond), 5*time.Second)
}

func (k *Keeper) beatLoop(ctx context.Context) {
	tick := time.NewTicker(k.o.Beat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// The first retry follows at once; a database that refuses at once is not asked in a spin.
		for failures := 0; !k.beat(ctx); failures++ {
			if failures > 0 && !sleep(ctx, jitter(min(time.Duration(failures)*100*time.Millisecond, time.Second))) {
				return
			}
			if ctx.Err() != nil {
				return
			}
		}
	}
}

// beat renews every term held now and reports whether it was answered.
func (k *Keeper) beat(ctx context.Context) bool {
	held := k.held()
	live := make([]*Term, 0, len(held))
	terms := make([]fleet.Term, 0, len(held))
	for _, t := range held {
		if t.Err() == nil { // else it ends here, and is not asked for
			live = append(live, t)
			terms = append(terms, t.term)
		}
	}
	if len(terms) == 0 {
		return true
	}
	start := time.Now()
	actx, cancel := context.WithTimeout(ctx, k.attempt())
	defer cancel()
	kept, err := k.leases.BeatLeases(actx, k.o.Owner, terms, k.o.TTL)
	if err != nil {
		if ctx.Err() == nil {
			k.metrics.beatFailures.Inc()
			k.log.WarnContext(ctx, "beat not answered; trying again at once", slog.Int("sessions", len(terms)), slog.Any("err", err))
		}
		return false
	}
	k.metrics.beatSeconds.Observe(time.Since(start).Seconds())
	answered := make(map[fleet.Term]bool, len(kept))
	for _, t := range kept {
		answered[t] = true
	}
	until := start.Add(k.o.TTL - k.o.Margin)
	for _, t := range live {
		if !answered[t.term] {
			t.Lose(fleet.ErrLeaseLost)
		} else if !t.extend(until) {
			t.end(fleet.ErrLeaseLost, errNotRenewed)
		}
	}
	return true
}

func (k *Keeper) claimLoop(ctx context.Context) {
	poll := min(max(k.o.Beat/10, 250*time.Millisecond), time.Second)
	for {
		pause := poll
		if k.claim(ctx) {
			pause /= moreSooner
		}
		wait := time.NewTimer(jitter(pause)) // so that workers that start together do not march in step
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case <-k.wake:
			wait.Stop()
		case <-wait.C:
		}
	}
}

// moreSooner says how much sooner than usual the next claim follows one that found a whole batch. There is a
// pause at all so that workers that start together share what is free.
const moreSooner = 10

// claim takes one batch of each shard and reports whether there may be more.
func (k *Keeper) claim(ctx context.Context) (more bool) {
	select {
	case k.claims <- struct{}{}:
		defer func() { <-k.claims }()
	case <-ctx.Done():
		return false
	}
	k.mu.Lock()
	shards := k.shards
	k.mu.Unlock()
	for _, shard := range shards {
		if k.claimFrom(ctx, shard) {
			more = true
		}
	}
	return more
}

// claimFrom takes one batch of a shard.
func (k *Keeper) claimFrom(ctx context.Context, shard fleet.Shard) (more bool) {
	k.mu.Lock()
	limit := k.o.Max - len(k.terms)
	all := k.claimAll
	if !all { // with nobody to leave any to, one statement takes them all
		limit = min(limit, k.o.Batch)
	}
	if k.stopped || k.paused {
		limit = 0
	}
	k.mu.Unlock()
	if limit <= 0 {
		return false
	}
	start := time.Now()
	actx, cancel := context.WithTimeout(ctx, k.attempt())
	defer cancel()
	terms, locked, err := k.leases.ClaimLeases(actx, store.ClaimQuery{Owner: k.o.Owner, Limit: limit, TTL: k.o.TTL, All: all, Shard: shard})
	if err != nil {
		if ctx.Err() == nil {
			k.metrics.claimErrors.Inc()
			k.log.WarnContext(ctx, "could not claim sessions; trying again", slog.Any("err", err))
		}
		return false
	}
	k.metrics.locked.Set(float64(locked))
	if locked > 0 {
		k.log.WarnContext(ctx, "leases stay locked by another transaction", slog.Int("sessions", locked))
	}
	k.accept(ctx, terms, start, all && len(terms) < limit)
	return len(terms) == limit
}

// accept turns claimed rows into terms, unless claiming was stopped meanwhile.
func (k *Keeper) accept(ctx context.Context, terms []fleet.Term, start time.Time, exhausted bool) {
	k.mu.Lock()
	if exhausted {
		k.claimAll = false
	}
	if k.stopped || k.paused || ctx.Err() != nil {
		k.mu.Unlock()
		k.giveBack(context.WithoutCancel(ctx), terms)
		return
	}
	until := start.Add(k.o.TTL - k.o.Margin)
	fresh := make([]*Term, len(terms))
	var replaced []*Term
	for i, term := range terms {
		fresh[i] = newTerm(ctx, term, until, k.forget)
		if old := k.terms[term.SessionID]; old != nil { // its row ran out before its timer was looked at
			replaced = append(replaced, old)
		}
		k.terms[term.SessionID] = fresh[i]
	}
	k.mu.Unlock()
	for _, t := range replaced {
		t.end(fleet.ErrLeaseLost, errNotRenewed)
	}
	k.metrics.claims.Add(float64(len(fresh)))
	for _, t := range fresh {
		k.log.InfoContext(ctx, "claimed session", slog.String("session_id", string(t.term.SessionID)), slog.Int64("epoch", t.term.Epoch))
		k.o.OnClaim(t)
	}
}

// jitter is between one half and all of d.
func jitter(d time.Duration) time.Duration {
	return d/2 + time.Duration(rand.Int64N(int64(d/2)+1)) //nolint:gosec // spreads load, guards nothing
}

// sleep reports whether d passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
