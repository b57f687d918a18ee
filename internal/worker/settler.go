package worker

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
	"github.com/wafleet/wafleet/internal/plant"
	"github.com/wafleet/wafleet/internal/store"
)

// settler tells the ledger what became of frames, many at a time and beside the lanes: no send waits for
// it. What it can't tell is not lost for the caps: a reservation that nobody settles counts as if its frame
// left when it lapses.
type settler struct {
	ledger ledger.Ledger
	log    *slog.Logger
	ttl    func(ctx context.Context, org fleet.OrgID) time.Duration
	lost   func(n int)

	wake  chan struct{} // one slot: there is something in a queue
	mu    sync.Mutex    // of the queues; never held while anything waits
	queue []told
	pins  []pinned
}

// pinned is a person who wrote to a session.
type pinned struct {
	org  fleet.OrgID
	key  string
	slug fleet.SessionSlug
}

// told is a settlement, and when what it tells of happened.
type told struct {
	ledger.Settlement
	at time.Time
}

const (
	settleQueue = 8192
	settleMost  = 256
	settleTime  = 5 * time.Second
	settlePause = 10 * time.Millisecond // how long the first one waits for others
)

func newSettler(l ledger.Ledger, log *slog.Logger, ttl func(ctx context.Context, org fleet.OrgID) time.Duration, lost func(n int)) *settler {
	return &settler{ledger: l, log: log, ttl: ttl, lost: lost, wake: make(chan struct{}, 1)}
}

// tell takes a settlement over and never waits.
func (s *settler) tell(t ledger.Settlement) {
	if !enqueue(s, &s.queue, told{t, time.Now()}) {
		s.lost(1)
	}
}

// pin takes a pin over and never waits. One that is lost is made by the next message.
func (s *settler) pin(p pinned) { enqueue(s, &s.pins, p) }

// enqueue reports whether there was a place.
func enqueue[T any](s *settler, queue *[]T, v T) bool {
	s.mu.Lock()
	room := len(*queue) < settleQueue
	if room {
		*queue = append(*queue, v)
	}
	s.mu.Unlock()
	signal(s.wake)
	return room
}

// dequeue takes up to so many of a queue. One that is empty holds no memory.
func dequeue[T any](s *settler, queue *[]T, most int) []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(*queue), most)
	taken := (*queue)[:n:n]
	if *queue = (*queue)[n:]; len(*queue) == 0 {
		*queue = nil
	}
	return taken
}

// run tells the ledger until ctx ends, and then what is left.
func (s *settler) run(ctx context.Context) {
	for {
		for more := true; more; {
			settled, _ := s.settle(ctx)
			more = (s.pinNext(ctx) || settled) && ctx.Err() == nil
		}
		select {
		case <-s.wake:
			gather := time.NewTimer(settlePause)
			select {
			case <-gather.C:
			case <-ctx.Done():
				gather.Stop()
			}
		case <-ctx.Done():
			for {
				if more, err := s.settle(ctx); !more {
					return
				} else if err != nil { // the stop does not wait for each batch to fail
					s.lost(len(dequeue(s, &s.queue, settleQueue)))
					return
				}
			}
		}
	}
}

// pinNext makes one pin, if there is one to make.
func (s *settler) pinNext(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	next := dequeue(s, &s.pins, 1)
	if len(next) == 0 {
		return false
	}
	p := next[0]
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	if _, err := s.ledger.Pin(ctx, p.org, p.key, p.slug, s.ttl(ctx, p.org)); err != nil {
		s.log.DebugContext(ctx, "person not pinned to who they wrote to", slog.Any("err", err))
	}
	return true
}

// settle tells of as many frames as go together, and reports whether there were any. It is done also when ctx
// has ended.
func (s *settler) settle(ctx context.Context) (some bool, err error) {
	batch := dequeue(s, &s.queue, settleMost)
	if len(batch) == 0 {
		return false, nil
	}
	now := time.Now()
	settlements := make([]ledger.Settlement, len(batch))
	for i, t := range batch {
		t.Ago = now.Sub(t.at)
		if held := t.Reservation; plant.OldBucket && !held.IsZero() {
			t.Ago = now.Sub(held.At)
		}
		settlements[i] = t.Settlement
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	if err = s.ledger.Settle(ctx, settlements...); err != nil {
		s.lost(len(batch))
		s.log.WarnContext(ctx, "frames not told to the ledger; their reservations lapse", slog.Int("frames", len(batch)), slog.Any("err", err))
	}
	return true, err
}

// account says what a settled frame means for the budget and the health of its number.
func (l *lane) account(item *store.LaneItem, res *store.Result) {
	s := ledger.Settlement{Session: l.g.slug}
	switch res.Outcome {
	case fleet.OutcomeSent:
		s.Frames, s.Health = 1, ledger.HealthGood
	case fleet.OutcomeUnknown:
		s.Frames = 1
	case fleet.OutcomeRefused:
		if res.Code != 0 { // WhatsApp's own answer to a frame
			s.Frames = 1
		}
		if fleet.NumberFault(res.Code) {
			s.Health = ledger.HealthBad
		}
	default:
		return // none left: what was reserved waits for the next try
	}
	if s.Frames > 0 {
		l.g.v.frames.count(time.Now())
	}
	if !item.Repeat {
		held, err := ledger.ParseReservation(item.Reservation)
		if err != nil {
			l.g.log.Error("reservation can't be read", slog.String("message_id", string(item.ID)), slog.Any("err", err))
		}
		s.Reservation = held
	}
	if s.Frames == 0 && s.Reservation.IsZero() && s.Health == ledger.HealthSame {
		return
	}
	l.g.v.w.settler.tell(s)
}
