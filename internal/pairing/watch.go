package pairing

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
)

// listenAgain is after how long a bus that could not be listened to is tried again.
const listenAgain = 5 * time.Second

// watchers are the live pages of this process, to be woken by what is told of sessions.
type watchers struct {
	mu  sync.Mutex
	set map[*watcher]struct{}
}

// watcher is one live page.
type watcher struct {
	wake chan struct{} // one slot: look again
	ids  map[fleet.SessionID]struct{}
}

func (w *watchers) add() *watcher {
	v := &watcher{wake: make(chan struct{}, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set[v] = struct{}{}
	return v
}

func (w *watchers) remove(v *watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.set, v)
}

// follow sets which sessions the watcher is woken for.
func (w *watchers) follow(v *watcher, ids []fleet.SessionID) {
	set := make(map[fleet.SessionID]struct{}, len(ids))
	for _, id := range ids {
		set[id] = struct{}{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	v.ids = set
}

// nudged wakes who watches a session. It does not block.
func (w *watchers) nudged(id fleet.SessionID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for v := range w.set {
		if _, ok := v.ids[id]; !ok {
			continue
		}
		select {
		case v.wake <- struct{}{}:
		default:
		}
	}
}

// Run wakes live pages when the rows behind them change, until the context ends.
func (p *Page) Run(ctx context.Context) error {
	for {
		stop, err := p.bus.Subscribe(ctx, func(_, payload string) { p.watchers.nudged(fleet.SessionID(payload)) }, bus.TopicSession)
		if err == nil {
			<-ctx.Done()
			stop()
			return nil
		}
		p.log.WarnContext(ctx, "live pairing pages poll only", slog.Any("err", err))
		t := time.NewTimer(listenAgain)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
	}
}
