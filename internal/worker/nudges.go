package worker

import (
	"context"
	"log/slog"
	"sync"

	"github.com/wafleet/wafleet/internal/bus"
)

// nudges are told beside the lanes and the handlers, so that no frame and no stanza waits for the bus. What is told again before it has left is told once.
type nudges struct {
	bus bus.Bus
	log *slog.Logger

	mu      sync.Mutex
	waiting []nudge
	known   map[nudge]bool // of those
	wake    chan struct{}  // one slot: something waits
}

type nudge struct{ topic, payload string }

// nudgesMost bounds what waits while the bus is slow. Whoever misses one also polls.
const nudgesMost = 4096

func newNudges(b bus.Bus, log *slog.Logger) *nudges {
	return &nudges{bus: b, log: log, known: map[nudge]bool{}, wake: make(chan struct{}, 1)}
}

// soon takes nudges over and never waits.
func (n *nudges) soon(all ...nudge) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, one := range all {
		if len(n.waiting) < nudgesMost && !n.known[one] {
			n.waiting, n.known[one] = append(n.waiting, one), true
		}
	}
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// run tells until ctx ends, and then what is left.
func (n *nudges) run(ctx context.Context) {
	for {
		select {
		case <-n.wake:
			n.tell(context.WithoutCancel(ctx))
		case <-ctx.Done():
			n.tell(context.WithoutCancel(ctx))
			return
		}
	}
}

func (n *nudges) tell(ctx context.Context) {
	n.mu.Lock()
	all := n.waiting
	n.waiting = nil
	clear(n.known)
	n.mu.Unlock()
	for _, one := range all {
		n.now(ctx, one.topic, one.payload)
	}
}

// now tells at once.
func (n *nudges) now(ctx context.Context, topic, payload string) {
	if err := n.bus.Publish(ctx, topic, payload); err != nil {
		n.log.DebugContext(ctx, "nudge lost", slog.String("topic", topic), slog.Any("err", err))
	}
}
