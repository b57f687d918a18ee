package worker

import (
	"context"
	"log/slog"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
	"github.com/wafleet/wafleet/internal/store"
)

// settler tells the ledger what became of frames, many at a time and beside the lanes: no send waits for
// it. What it can't tell is not lost for the caps: a reservation that nobody settles counts as if its frame
// left when it lapses.
type settler struct {
	ledger ledger.Ledger
	log    *slog.Logger
	queue  chan told
	pins   chan pinned
	ttl    func(ctx context.Context, org fleet.OrgID) time.Duration
	lost   func(n int)
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
)

func newSettler(l ledger.Ledger, log *slog.Logger, ttl func(ctx context.Context, org fleet.OrgID) time.Duration, lost func(n int)) *settler {
	return &settler{ledger: l, log: log, queue: make(chan told, settleQueue), pins: make(chan pinned, settleQueue), ttl: ttl, lost: lost}
}

// tell takes a settlement over and never waits.
func (s *settler) tell(t ledger.Settlement) {
	select {
	case s.queue <- told{t, time.Now()}:
	default:
		s.lost(1)
	}
}

// pin takes a pin over and never waits. One that is lost is made by the next message.
func (s *settler) pin(p pinned) {
	select {
	case s.pins <- p:
	default:
	}
}

// run tells the ledger until ctx ends, and then what is left.
func (s *settler) run(ctx context.Context) {
	for {
		select {
		case first := <-s.queue:
			s.settle(ctx, first)
		case p := <-s.pins:
			pctx, cancel := context.WithTimeout(ctx, settleTime)
			if _, err := s.ledger.Pin(pctx, p.org, p.key, p.slug, s.ttl(pctx, p.org)); err != nil {
				s.log.DebugContext(ctx, "person not pinned to who they wrote to", slog.Any("err", err))
			}
			cancel()
		case <-ctx.Done():
			for {
				select {
				case first := <-s.queue:
					s.settle(context.WithoutCancel(ctx), first)
				default:
					return
				}
			}
		}
	}
}

func (s *settler) settle(ctx context.Context, first told) {
	batch := []told{first}
more:
	for len(batch) < settleMost {
		select {
		case next := <-s.queue:
			batch = append(batch, next)
		default:
			break more
		}
	}
	now := time.Now()
	settlements := make([]ledger.Settlement, len(batch))
	for i, t := range batch {
		t.Ago = now.Sub(t.at)
		settlements[i] = t.Settlement
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	if err := s.ledger.Settle(ctx, settlements...); err != nil {
		s.lost(len(batch))
		s.log.WarnContext(ctx, "frames not told to the ledger; their reservations lapse", slog.Int("frames", len(batch)), slog.Any("err", err))
	}
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
