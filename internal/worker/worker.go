package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/inbound"
	"github.com/wafleet/wafleet/internal/lease"
	"github.com/wafleet/wafleet/internal/ledger"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/wa"
	"github.com/wafleet/wafleet/internal/wastore"
)

// Options of New. Zero values take the defaults given.
type Options struct {
	Store   *store.Store
	Bus     bus.Bus
	Network *wa.Network
	Inbound *inbound.Handler
	Ledger  ledger.Ledger

	ID      string // WORKER_ID
	Owner   string // WORKER_ID plus a boot nonce: never the same twice
	Version string

	TTL      time.Duration // LEASE_TTL, 30 s
	Beat     time.Duration // LEASE_BEAT, 10 s
	Batch    int           // RESTORE_CONCURRENCY, 10: claims at a time, and sockets being opened at a time
	Max      int           // WORKER_MAX_SESSIONS, 500
	Shard    fleet.Shard   // which sessions
	Adopt    time.Duration // SHARD_ADOPT_AFTER; 0: never
	ClaimAll bool          // the embedded start: this process is alone, so expiry doesn't matter
	WarmFor  time.Duration // how long who wrote to a number is no stranger to it, fleet.WarmFor

	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// How long a stop may take: what is in flight settles, then sockets close.
const (
	settleLimit = 19 * time.Second // a send still out then is unknown, and its repeat is the next owner's
	releaseTime = 2 * time.Second
	watchEvery  = time.Second
)

// Worker owns sessions. Make it with New, then Run it once.
type Worker struct {
	o         Options
	log       *slog.Logger
	keeper    *lease.Keeper
	container *wastore.Container
	metrics   *metrics
	waMetrics *wa.Metrics
	dials     chan struct{} // one token per socket being opened
	brake     brake
	settler   *settler
	nudges    *nudges
	handle    func(ctx context.Context, term fleet.Term, org fleet.OrgID, m fleet.Inbound) error

	beatNow chan struct{} // one slot: write the worker's row now

	mu       sync.Mutex
	sessions map[fleet.SessionID]*supervisor
	held     store.Held // their terms, for looks
	stale    bool       // held is not of these sessions any more
	draining bool       // this process stops
	emptied  bool       // an operator wants it empty
	wg       sync.WaitGroup
}

// New returns a worker that owns nothing yet.
func New(o Options) *Worker {
	if o.TTL <= 0 {
		o.TTL = 30 * time.Second
	}
	if o.Beat <= 0 {
		o.Beat = o.TTL / 3
	}
	if o.Batch <= 0 {
		o.Batch = 10
	}
	if o.Max <= 0 {
		o.Max = 500
	}
	o.WarmFor = cmp.Or(o.WarmFor, fleet.WarmFor)
	w := &Worker{
		o:         o,
		log:       o.Log.With(slog.String("worker", o.Owner)),
		waMetrics: wa.NewMetrics(o.Registerer),
		dials:     make(chan struct{}, o.Batch),
		handle:    o.Inbound.Handle,
		beatNow:   make(chan struct{}, 1),
		sessions:  map[fleet.SessionID]*supervisor{},
	}
	w.container = wastore.New(wastore.Options{Store: o.Store, Log: o.Log, Registerer: o.Registerer, Merged: w.merged})
	w.metrics = newMetrics(o.Registerer, w.Active)
	w.nudges = newNudges(o.Bus, w.log)
	o.Inbound.NudgeThrough(func(topic, payload string) { w.nudges.soon(nudge{topic, payload}) })
	w.settler = newSettler(o.Ledger, w.log, w.affinityTTL, func(n int) { w.metrics.unsettled.Add(float64(n)) })
	w.keeper = lease.NewKeeper(lease.Options{
		Store: o.Store, Owner: o.Owner, TTL: o.TTL, Beat: o.Beat, Batch: o.Batch, Max: o.Max,
		Shard: o.Shard, ClaimAll: o.ClaimAll, Log: w.log, OnClaim: w.own, Registerer: o.Registerer,
	})
	return w
}

// affinityTTL is how long an organization's people keep their numbers.
func (w *Worker) affinityTTL(ctx context.Context, org fleet.OrgID) time.Duration {
	o, err := w.o.Store.GetOrganization(ctx, org)
	if err != nil {
		return fleet.DefaultAffinityTTL
	}
	return o.AffinityTTL
}

// Active is the number of sessions owned now.
func (w *Worker) Active() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.sessions)
}

// Draining reports whether the worker claims nothing: it stops, or an operator has it emptied.
func (w *Worker) Draining() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.draining || w.emptied
}

// Run works until ctx ends, then stops gracefully: no new claims, in-flight sends settle (bounded),
// sockets close, leases are released, so that others take over at once.
func (w *Worker) Run(ctx context.Context) error {
	// Terms must outlive the wish to stop: sends in flight are settled under them.
	kctx, stopKeeper := context.WithCancel(context.WithoutCancel(ctx))
	defer stopKeeper()

	if err := w.register(ctx); errors.Is(err, fleet.ErrUnavailable) {
		w.log.WarnContext(ctx, "could not register; the next beat does", slog.Any("err", err))
	} else if err != nil {
		return err
	}
	unsubscribe, err := w.o.Bus.Subscribe(ctx, w.nudged, append(bus.Queues(w.o.Shard), bus.TopicControl(w.o.ID))...)
	if err != nil {
		return fmt.Errorf("listen for nudges: %w", err)
	}
	defer unsubscribe()

	lctx, stopLooking := context.WithCancel(ctx) // for more to do
	defer stopLooking()
	// What sends in flight leave behind is told of too, and that the worker drains.
	tctx, stopTelling := context.WithCancel(context.WithoutCancel(ctx))
	defer stopTelling()
	var background sync.WaitGroup
	keeperDone := make(chan error, 1)
	background.Go(func() { keeperDone <- w.keeper.Run(kctx) })
	background.Go(func() { w.watch(lctx) })
	if w.o.Adopt > 0 && !w.o.Shard.All() {
		background.Go(func() { w.adopt(lctx) })
	}
	background.Go(func() { w.present(tctx) })
	background.Go(func() { w.settler.run(tctx) })
	background.Go(func() { w.nudges.run(tctx) })

	var failed error
	select {
	case <-ctx.Done():
	case failed = <-keeperDone:
	}

	w.drain()
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	w.keeper.ReleaseAll(rctx)
	stopKeeper()
	stopLooking()
	stopTelling()
	background.Wait()
	w.leave(context.WithoutCancel(ctx))
	return failed
}

// leave is the last word, when nothing here acts any more: what a busy database did not take back is given
// away once more, and the worker's row goes.
func (w *Worker) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	if _, err := w.o.Store.ReleaseOwner(ctx, w.o.Owner); err != nil {
		w.log.WarnContext(ctx, "some leases may have to run out", slog.Any("err", err))
	}
	if err := w.o.Store.RemoveWorker(ctx, w.o.Owner); err != nil {
		w.log.WarnContext(ctx, "worker row stays until it is cleaned up", slog.Any("err", err))
	}
}

func (w *Worker) register(ctx context.Context) error {
	w.mu.Lock()
	sessions, draining, emptied := len(w.sessions), w.draining || w.emptied, w.emptied
	w.mu.Unlock()
	err := w.o.Store.RegisterWorker(ctx, fleet.WorkerInfo{
		ID: w.o.ID, Owner: w.o.Owner, Version: w.o.Version, MaxSessions: w.o.Max, Shard: w.o.Shard,
		Sessions: sessions, Draining: draining, Drain: emptied,
	})
	if err != nil {
		return fmt.Errorf("register worker: %w", err)
	}
	return nil
}

// own starts a supervisor for a term that was just claimed.
func (w *Worker) own(term *lease.Term) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := term.Fleet().SessionID
	if w.draining {
		return // ReleaseAll gives it away
	}
	if w.emptied {
		w.wg.Go(func() { w.release(term.Context(), term) })
		return
	}
	old := w.sessions[id]
	v := newSupervisor(w, term)
	w.sessions[id] = v
	w.stale = true
	w.wg.Go(func() {
		if old != nil { // one life at a time: an older term's supervisor ends first
			<-old.done
		}
		v.run()
		w.mu.Lock()
		if w.sessions[id] == v {
			delete(w.sessions, id)
			w.stale = true
		}
		w.mu.Unlock()
	})
}

// drain stops every supervisor, all at once, and waits for them.
func (w *Worker) drain() {
	w.keeper.StopClaiming()
	w.mu.Lock()
	w.draining = true
	w.mu.Unlock()
	signal(w.beatNow)
	w.handOver(func(fleet.SessionID) bool { return true })
	w.wg.Wait()
}

// handOver makes the supervisors of these sessions settle, disconnect and give their leases away, each as
// soon as it is through.
func (w *Worker) handOver(which func(fleet.SessionID) bool) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, v := range w.sessions {
		if which(id) {
			v.stop()
			n++
		}
	}
	return n
}

// release gives a session away and tells whoever may claim it.
func (w *Worker) release(ctx context.Context, term *lease.Term) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime) // releasing ends the term, and its context
	defer cancel()
	w.keeper.Release(ctx, term)
	w.nudge(ctx, bus.TopicUnassigned, string(term.Fleet().SessionID))
}

// empty hands everything over and claims nothing, for as long as an operator wants that.
func (w *Worker) empty(ctx context.Context, wanted bool) {
	w.mu.Lock()
	changed := w.emptied != wanted
	w.emptied = wanted
	w.mu.Unlock()
	if !changed {
		return
	}
	w.keeper.Pause(wanted)
	if !wanted {
		w.log.InfoContext(ctx, "the worker claims sessions again")
		return
	}
	n := w.handOver(func(fleet.SessionID) bool { return true })
	w.log.InfoContext(ctx, "the worker is being drained: it hands everything over and claims nothing", slog.Int("sessions", n))
}

// nudged only says "look now"; the rows say what there is to do. What is about a session of another
// worker costs nothing here, or every message would make every worker look.
func (w *Worker) nudged(name, payload string) {
	if payload == "" { // about this worker itself
		signal(w.beatNow)
		return
	}
	v := w.supervisor(fleet.SessionID(payload))
	switch topic := bus.Topic(name); {
	case v == nil && topic == bus.TopicUnassigned:
		w.keeper.Wake()
	case v == nil:
	case topic == bus.TopicSend:
		v.wakeLane()
	default:
		v.poke()
	}
}

// nudge says "look now" to whoever listens. It is lossy on purpose: whoever waits also polls.
func (w *Worker) nudge(ctx context.Context, topic, payload string) {
	w.nudges.now(ctx, topic, payload)
}

func (w *Worker) supervisor(id fleet.SessionID) *supervisor {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sessions[id]
}

// owned returns the terms of the sessions that are owned now.
func (w *Worker) owned() store.Held {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stale {
		terms := make([]fleet.Term, 0, len(w.sessions))
		for _, v := range w.sessions {
			terms = append(terms, v.term.Fleet())
		}
		w.held, w.stale = store.Hold(terms), false
	}
	return w.held
}

// watch looks once a second for anything that owned sessions should do and no nudge told of: three
// statements without locks for all of them, so an idle fleet writes nothing.
func (w *Worker) watch(ctx context.Context) {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if err := w.lookOnce(ctx); err != nil && ctx.Err() == nil {
			w.metrics.lookErrors.Inc()
			w.log.WarnContext(ctx, "could not look for work; looking again", slog.Any("err", err))
		}
	}
}

func (w *Worker) lookOnce(ctx context.Context) error {
	held := w.owned()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	lanes, err := w.o.Store.DueLanes(ctx, held)
	if err != nil {
		return err
	}
	for _, id := range lanes {
		if v := w.supervisor(id); v != nil {
			v.wakeLane()
		}
	}
	commands, err := w.o.Store.DueCommands(ctx, held)
	if err != nil {
		return err
	}
	stops, err := w.o.Store.Unwanted(ctx, held)
	if err != nil {
		return err
	}
	for _, id := range append(commands, stops...) {
		if v := w.supervisor(id); v != nil {
			v.poke()
		}
	}
	return nil
}

// present writes this worker's row with each beat: its load, and that it lives.
func (w *Worker) present(ctx context.Context) {
	t := time.NewTicker(w.o.Beat)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-w.beatNow:
		}
		bctx, cancel := context.WithTimeout(ctx, w.o.Beat)
		drain, err := w.o.Store.BeatWorker(bctx, w.o.Owner, w.Active(), w.Draining())
		if errors.Is(err, fleet.ErrNotFound) { // cleaned up while the database was away
			err = w.register(bctx)
			w.mu.Lock()
			drain = w.emptied
			w.mu.Unlock()
		}
		cancel()
		switch {
		case err == nil:
			w.empty(ctx, drain)
		case ctx.Err() == nil:
			w.log.WarnContext(ctx, "could not write the worker's beat", slog.Any("err", err))
		}
	}
}
