package simulate

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/httpapi"
	"github.com/wafleet/wafleet/internal/inbound"
	"github.com/wafleet/wafleet/internal/outbound"
	"github.com/wafleet/wafleet/internal/router"
	"github.com/wafleet/wafleet/internal/scheduler"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/wa"
	"github.com/wafleet/wafleet/internal/wasim/memnet"
	"github.com/wafleet/wafleet/internal/wastore"
	"github.com/wafleet/wafleet/internal/webhook"
	"github.com/wafleet/wafleet/internal/worker"
)

// slot is a place where a process runs, and runs again after it died or was restarted.
type slot struct {
	w     *world
	name  string
	start func(*instance) func(context.Context)

	cancel   context.CancelFunc
	ended    chan struct{}
	restarts chan time.Duration
	zombies  sync.WaitGroup // what is left of processes that died

	mu      sync.Mutex
	current *instance // nil while it is down
	gates   []*gate   // of all lives
}

// instance is one life of a process.
type instance struct {
	s      *slot
	name   string // of this life alone: "worker-a.12"
	log    *slog.Logger
	st     *store.Store
	gate   *gate
	net    *memnet.Net // it listens here; nil for all but the API
	lose   *dropper
	died   chan time.Duration
	cancel context.CancelFunc
	done   chan struct{}
}

func newSlot(w *world, name string, start func(*instance) func(context.Context)) *slot {
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	s := &slot{w: w, name: name, start: start, cancel: cancel, ended: make(chan struct{}), restarts: make(chan time.Duration, 1)}
	go func() {
		defer close(s.ended)
		s.run(ctx)
	}()
	settle()
	return s
}

// end stops the process gracefully and waits for it and for what is left of earlier ones.
func (s *slot) end() {
	s.cancel()
	<-s.ended
	s.zombies.Wait()
}

func (s *slot) run(ctx context.Context) {
	for {
		in := s.up(ctx)
		if in == nil {
			return
		}
		var rest time.Duration
		select {
		case <-ctx.Done():
			s.down(in)
			return
		case rest = <-in.died:
			s.w.count("died " + s.name)
			s.zombies.Go(in.stop)
			s.set(nil)
		case rest = <-s.restarts:
			s.down(in)
		}
		timer := time.NewTimer(rest)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

func (s *slot) down(in *instance) {
	in.gate.thaw()
	in.gate.answer()
	in.stop()
	s.set(nil)
}

// up starts the process; nil when ctx ended first.
func (s *slot) up(ctx context.Context) *instance {
	in := &instance{
		s: s, name: fmt.Sprintf("%s.%d", s.name, s.w.lives.Add(1)), lose: &dropper{},
		died: make(chan time.Duration, 1), done: make(chan struct{}),
	}
	in.gate = &gate{owner: in.name, seen: map[string]int{}, died: in.cut, stops: in.freeze}
	in.log = s.w.log.With(slog.String("process", in.name))
	var err error
	in.st, err = store.Open(ctx, store.Options{URL: s.w.url, PoolMax: 4, Ring: storetest.Ring(s.w.t), Wrap: in.gate.wrap})
	if err != nil {
		s.w.problem("%s does not start: %v", in.name, err)
		return nil
	}
	rctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	in.cancel = cancel
	run := s.start(in)
	go func() {
		defer close(in.done)
		run(rctx)
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current, s.gates = in, append(s.gates, in.gate)
	return in
}

func (s *slot) set(in *instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = in
}

func (s *slot) get() *instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// stop ends a life and waits.
func (in *instance) stop() {
	in.cancel()
	<-in.done
	_ = in.st.Close()
}

// cut ends every connection of a process that has just died. It does not wait.
func (in *instance) cut(rest time.Duration) {
	for _, n := range in.networks() {
		n.SetDown(in.dials(), true)
		n.Each(in.dials(), func(l *memnet.Link) { l.Reset() })
	}
	in.gone(rest)
}

// gone tells the slot that this life is over.
func (in *instance) gone(rest time.Duration) {
	select {
	case in.died <- rest:
	default:
	}
}

// networks are those that the process has connections on, and dials under which name.
func (in *instance) networks() []*memnet.Net {
	if in.net != nil {
		return []*memnet.Net{in.net}
	}
	return []*memnet.Net{in.s.w.whatsapp, in.s.w.hooks}
}

func (in *instance) dials() string {
	if in.net != nil {
		return clientName
	}
	return in.name
}

// hold stops what travels on every connection of a frozen process, or lets it go on.
func (in *instance) hold(on bool) {
	for _, n := range in.networks() {
		n.Each(in.dials(), func(l *memnet.Link) { l.Hold(on) })
	}
}

func startWorker(in *instance) func(context.Context) {
	w := in.s.w
	network, err := wa.SimulatedNetwork(w.sim.RootKey(), w.whatsapp.Dialer(in.name))
	if err != nil {
		w.problem("%s: %v", in.name, err)
		return func(context.Context) {}
	}
	v := worker.New(worker.Options{
		Store: in.st, Bus: w.bus, Network: network, ID: in.s.name, Owner: in.name, Version: "simulated",
		Inbound: inbound.New(inbound.Options{Store: in.st, Bus: w.bus, Log: in.log}), Ledger: w.ledger,
		Log: in.log,
	})
	return func(ctx context.Context) { in.report(v.Run(ctx)) }
}

// report: a process may only fail when it died.
func (in *instance) report(err error) {
	dead := false
	in.gate.set(func() { dead = in.gate.dead })
	if err != nil && !dead {
		in.log.Warn("process ended", slog.Any("err", err))
		in.gone(time.Second) // whoever runs processes starts it again
	}
}

const clientName = "client"

func startAPI(in *instance) func(context.Context) {
	w := in.s.w
	a := auth.New(auth.Options{Store: in.st, Bus: w.bus, Lookup: w.lookup, Log: in.log})
	api := httpapi.New(httpapi.Options{
		Store: in.st, Auth: a, Bus: w.bus, Log: in.log, Version: "simulated",
		Outbound: outbound.New(outbound.Options{
			Store: in.st, Router: router.New(router.Options{Store: in.st, Ledger: w.ledger}), Ledger: w.ledger, Bus: w.bus, Log: in.log,
		}),
	})
	in.net = memnet.New()
	shutdown, abort := serveHTTP(in.net, in.lose.wrap(api))
	return func(ctx context.Context) {
		rctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		var parts sync.WaitGroup
		parts.Go(func() { in.report(a.Run(rctx)) })
		parts.Go(func() { in.report(api.Run(rctx)) })
		<-ctx.Done()
		dead := false
		in.gate.set(func() { dead = in.gate.dead })
		if dead {
			abort()
		} else {
			sctx, stop := context.WithTimeout(rctx, 20*time.Second)
			shutdown(sctx)
			stop()
		}
		cancel()
		parts.Wait()
	}
}

func startWebhooks(in *instance) func(context.Context) {
	w := in.s.w
	transport := &http.Transport{
		DialContext: w.hooks.Dialer(in.name), ResponseHeaderTimeout: webhook.TryTimeout, MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second,
	}
	v := webhook.New(webhook.Options{
		Store: in.st, Bus: w.bus, Owner: in.name, Log: in.log, Poll: 2 * time.Second, Client: &http.Client{Timeout: webhook.TryTimeout, Transport: transport},
	})
	return func(ctx context.Context) { in.report(v.Run(ctx)) }
}

func startScheduler(in *instance) func(context.Context) {
	w := in.s.w
	const long = 1000 * time.Hour
	v := scheduler.New(scheduler.Options{
		Store: in.st, Bus: w.bus, Holder: in.name, Log: in.log,
		Jobs: scheduler.Jobs(scheduler.JobOptions{
			Store: in.st, Bus: w.bus, Log: in.log,
			Outbound: outbound.New(outbound.Options{
				Store: in.st, Router: router.New(router.Options{Store: in.st, Ledger: w.ledger}), Ledger: w.ledger, Bus: w.bus, Log: in.log,
			}),
			Retention: scheduler.Retention{Messages: long, Events: long, Attempts: long, Idempotency: long, Commands: long, Chats: long},
			PurgeBuffered: func(ctx context.Context, limit int) (int, error) {
				return wastore.PurgeBufferedHashes(ctx, in.st, time.Now().Add(-wastore.BufferRetention), limit)
			},
			PurgeDevices: func(ctx context.Context, limit int) (int, error) { return wastore.PurgeDevices(ctx, in.st, limit) },
		}),
	})
	return func(ctx context.Context) { in.report(v.Run(ctx)) }
}

// dropper loses answers of an HTTP server: the work is done, and nobody hears of it.
type dropper struct {
	mu   sync.Mutex
	left int
}

func (d *dropper) next(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left += n
}

func (d *dropper) reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = 0
}

func (d *dropper) take() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left == 0 {
		return false
	}
	d.left--
	return true
}

func (d *dropper) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.take() {
			h.ServeHTTP(silence{}, r)
			panic(http.ErrAbortHandler)
		}
		h.ServeHTTP(w, r)
	})
}

// silence is where lost answers go.
type silence struct{}

func (silence) Header() http.Header         { return http.Header{} }
func (silence) Write(p []byte) (int, error) { return len(p), nil }
func (silence) WriteHeader(int)             {}

// dialAPI reaches the API process that runs in a slot now.
func (s *slot) dialAPI(ctx context.Context, network, address string) (net.Conn, error) {
	in := s.get()
	if in == nil {
		return nil, &net.OpError{Op: "dial", Net: "mem", Err: syscall.ECONNREFUSED}
	}
	return in.net.Dialer(clientName)(ctx, network, address)
}
