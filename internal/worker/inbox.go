package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/plant"
)

// strikeLimit: a stanza that our own code can't handle is kept raw and acknowledged after this many
// failures, or it would come back for ever.
const strikeLimit = 3

// strikes counts deterministic failures per stanza, over generations.
type strikes struct {
	mu sync.Mutex
	n  map[string]int
}

func (s *strikes) add(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == nil || len(s.n) > 1000 {
		s.n = map[string]int{}
	}
	s.n[key]++
	return s.n[key]
}

func (s *strikes) clear(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.n, key)
}

// message makes one inbound message durable. WhatsApp gets its ack only if it returns nil.
func (g *generation) message(ctx context.Context, m fleet.Inbound) error {
	if g.ctx.Err() != nil {
		g.v.w.metrics.stale.Inc()
		return errGenerationOver
	}
	term, org := g.v.term.Fleet(), g.org
	if plant.AckFirst {
		g.wg.Go(func() {
			<-time.After(100 * time.Millisecond)
			_ = g.v.w.handle(g.ctx, term, org, m)
		})
		return nil
	}
	key := m.Chat + "/" + m.WAID
	err := guard(func() error { return g.v.w.handle(ctx, term, org, m) })
	if err == nil {
		g.v.strikes.clear(key)
		return nil
	}
	g.lose(err)
	if !deterministic(ctx, err) {
		g.log.WarnContext(ctx, "inbound message not stored; WhatsApp will deliver it again", slog.Any("err", err))
		return err
	}
	n := g.v.strikes.add(key)
	g.log.ErrorContext(ctx, "inbound message can't be handled", slog.Int("failures", n), slog.Any("err", err))
	if n < strikeLimit {
		return err
	}
	g.v.w.metrics.unprocessable.Inc()
	if raw := guard(func() error { return g.v.w.o.Inbound.HandleUnprocessable(ctx, term, org, m, err) }); raw != nil {
		g.lose(raw)
		return raw
	}
	g.v.strikes.clear(key)
	return nil
}

// receipt makes a receipt durable before WhatsApp gets its ack.
func (g *generation) receipt(ctx context.Context, r fleet.Receipt) error {
	if g.ctx.Err() != nil {
		g.v.w.metrics.stale.Inc()
		return errGenerationOver
	}
	err := guard(func() error { return g.v.w.o.Inbound.HandleReceipt(ctx, g.v.term.Fleet(), r) })
	if err == nil {
		return nil
	}
	g.lose(err)
	key := "receipt/" + r.Chat + "/" + string(r.Status) + "/" + fmt.Sprint(r.WAIDs)
	if deterministic(ctx, err) && g.v.strikes.add(key) >= strikeLimit {
		g.v.w.metrics.unprocessable.Inc()
		g.log.ErrorContext(ctx, "receipt can't be handled and is dropped", slog.Any("err", err))
		return nil
	}
	g.log.WarnContext(ctx, "receipt not stored; WhatsApp will deliver it again", slog.Any("err", err))
	return err
}

// lose ends the term if the fence said so.
func (g *generation) lose(err error) {
	if errors.Is(err, fleet.ErrLeaseLost) {
		g.v.term.Lose(fleet.ErrLeaseLost)
	}
}

var errPanic = errors.New("panic in handler")

// guard turns a panic into an error: whatsmeow would recover it and acknowledge the stanza.
func guard(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v\n%s", errPanic, p, debug.Stack())
		}
	}()
	return fn()
}

// deterministic reports whether the same stanza would fail again: a panic, or an error that is
// neither the infrastructure's nor an ending context's. Only these count as strikes.
func deterministic(ctx context.Context, err error) bool {
	if errors.Is(err, errPanic) {
		return true
	}
	return ctx.Err() == nil && !errors.Is(err, fleet.ErrUnavailable) && !errors.Is(err, fleet.ErrLeaseLost) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}
