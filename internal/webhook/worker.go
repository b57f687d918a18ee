package webhook

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

const (
	// settleTimeout bounds writing down how a try went, which goes on after shutdown began.
	settleTimeout = 10 * time.Second
	// settleAgain is the first pause between two tries of that.
	settleAgain = 100 * time.Millisecond
	// defaultLock is longer than rendering, one try and settling take together.
	defaultLock = 45 * time.Second
)

// Options of New. Zero values take the default given.
type Options struct {
	Store *store.Store // needed
	Bus   bus.Bus      // needed
	Owner string       // needed: unique per process and boot
	Log   *slog.Logger // needed

	Client      *http.Client          // NewClient(ClientOptions{})
	Registerer  prometheus.Registerer // none
	Concurrency int                   // 64 tries at once
	Share       int                   // half of them for any one organization, but at least one
	Poll        time.Duration         // 1 s
	Grace       time.Duration         // 10 s for tries in flight at shutdown
	LockFor     time.Duration         // 45 s
}

// Worker delivers what endpoints are owed.
type Worker struct {
	o       Options
	metrics *metrics
	wake    chan struct{} // one slot: somebody wants a look

	alarm *time.Timer // fires when an endpoint that was left alone may be asked again

	mu      sync.Mutex // never held across anything that waits
	busy    map[fleet.OrgID]int
	held    int
	alarmAt time.Time // zero or past: the alarm is off
}

// New returns a Worker that does nothing until Run.
func New(o Options) *Worker {
	if o.Client == nil {
		o.Client = NewClient(ClientOptions{})
	}
	if o.Concurrency <= 0 {
		o.Concurrency = 64
	}
	if o.Share <= 0 {
		o.Share = max(o.Concurrency/2, 1)
	}
	if o.Poll <= 0 {
		o.Poll = time.Second
	}
	if o.Grace <= 0 {
		o.Grace = 10 * time.Second
	}
	if o.LockFor <= 0 {
		o.LockFor = defaultLock
	}
	w := &Worker{o: o, metrics: newMetrics(o.Registerer), wake: make(chan struct{}, 1), busy: map[fleet.OrgID]int{}}
	w.alarm = time.NewTimer(time.Hour)
	w.alarm.Stop()
	return w
}

// Run delivers until ctx ends. It returns when every try has settled or was given back, at the latest
// Grace and the time to write that down after ctx ended. Its error is always nil: whatever fails is
// tried again.
func (w *Worker) Run(ctx context.Context) error {
	stop, err := w.o.Bus.Subscribe(ctx, func(string, string) { w.poke() }, bus.TopicWebhooks)
	if err != nil {
		w.o.Log.WarnContext(ctx, "webhook worker hears no nudges; it polls", slog.Any("err", err))
	} else {
		defer stop()
	}
	// Tries outlive ctx for the grace, so they hang on a context of their own.
	tries, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	var running sync.WaitGroup
	poll := time.NewTicker(w.o.Poll)
	defer poll.Stop()
	defer w.alarm.Stop()
	for ctx.Err() == nil {
		if w.claim(ctx, tries, &running) {
			continue // there may be more
		}
		select {
		case <-ctx.Done():
		case <-w.wake:
		case <-w.alarm.C:
		case <-poll.C:
		}
	}
	grace := time.AfterFunc(w.o.Grace, abort)
	defer grace.Stop()
	running.Wait()
	w.o.Client.CloseIdleConnections()
	return nil
}

func (w *Worker) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// lookIn has the worker look again after d, and not only at its next poll. One alarm serves all endpoints:
// what comes after an earlier one is left to the poll, or to the next failure.
func (w *Worker) lookIn(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := time.Now().Add(d)
	if w.alarmAt.After(time.Now()) && w.alarmAt.Before(at) {
		return
	}
	w.alarmAt = at
	w.alarm.Reset(d)
}

// claim takes what is due, as far as there are free slots, and starts a try of each. It reports
// whether it took anything.
func (w *Worker) claim(ctx, tries context.Context, running *sync.WaitGroup) bool {
	free, busy := w.slots()
	if free == 0 {
		return false // the next try that settles pokes
	}
	// A claim that began is seen through: what it locked would wait for nobody otherwise.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	list, err := w.o.Store.ClaimDeliveries(ctx, store.ClaimDeliveryQuery{
		Owner: w.o.Owner, Limit: free, LockFor: w.o.LockFor, Share: w.o.Share, Busy: busy,
	})
	if err != nil {
		w.metrics.errors.Inc()
		w.o.Log.WarnContext(ctx, "deliveries not claimed; trying again", slog.Any("err", err))
		return false
	}
	for _, d := range list {
		w.hold(d.Endpoint.OrgID, 1)
		running.Go(func() {
			defer w.poke()
			defer w.hold(d.Endpoint.OrgID, -1)
			w.deliver(tries, d)
		})
	}
	return len(list) > 0
}

// slots returns how many tries may be started and how many each organization has under way.
func (w *Worker) slots() (free int, busy map[fleet.OrgID]int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.o.Concurrency - w.held, maps.Clone(w.busy)
}

func (w *Worker) hold(org fleet.OrgID, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held += n
	if w.busy[org] += n; w.busy[org] == 0 {
		delete(w.busy, org)
	}
	w.metrics.inFlight.Set(float64(w.held))
}
