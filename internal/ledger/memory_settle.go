package ledger

import (
	"context"

	"github.com/wafleet/wafleet/internal/fleet"
)

// giveBack ends what a reservation holds of its session, as if it had never been taken.
func (m *Memory) giveBack(now int64, r Reservation) {
	if r.Session == "" {
		return
	}
	a := m.account(r.Session, now/1000)
	a.free(r.Lapses.Unix(), r.NewChat)
	a.tokens = a.tokens.back(r.At.UnixMilli(), now)
}

// Settle implements Ledger.
func (m *Memory) Settle(ctx context.Context, settlements ...Settlement) error {
	for i := range settlements {
		if err := settlements[i].check(); err != nil {
			return err
		}
	}
	return m.locked(ctx, func(now int64) {
		for i := range settlements {
			m.settle(now, &settlements[i])
		}
	})
}

func (m *Memory) settle(now int64, s *Settlement) {
	r := s.Reservation
	slug := s.slug()
	ended := now - max(0, s.Ago.Milliseconds())
	// What ended before the rebuild read the rows, it has counted; what never had a row, it hasn't.
	known := !r.IsZero() && r.Generation != m.generation && (s.Unstored || ended <= m.rebuilt)
	if !known {
		if slug != "" {
			a := m.account(slug, now/1000)
			if r.Session != "" {
				a.free(r.Lapses.Unix(), r.NewChat)
			}
			chats := int64(0)
			if s.Frames > 0 && r.NewChat {
				chats = 1
			}
			a.count(ended/1000, int64(s.Frames), chats)
		}
		if r.Project != "" {
			m.backlog[r.Project] = max(0, m.backlog[r.Project]-1)
		}
		if s.Frames == 0 && !r.IsZero() {
			m.refund(now, r)
		}
	}
	if slug != "" && s.Health != HealthSame {
		m.heal(now, slug, s.Health)
	}
}

// refund gives back what a frame would have kept: tokens and quota.
func (m *Memory) refund(now int64, r Reservation) {
	taken := r.At.UnixMilli()
	if r.Session != "" {
		a := m.account(r.Session, now/1000)
		a.tokens = a.tokens.back(taken, now)
	}
	if r.Project == "" {
		return
	}
	for _, key := range sharedTokens(r.Org, r.Project) {
		if b, ok := m.tokens[key]; ok {
			m.tokens[key] = b.back(taken, now)
		}
	}
	if k := (quotaKey{r.Project, r.Month}); r.Month != "" && m.quota[k] > 0 {
		m.quota[k]--
	}
}

func (m *Memory) heal(now int64, slug fleet.SessionSlug, h Health) {
	a := m.account(slug, now/1000)
	switch {
	case h == HealthBad:
		a.heal(now, -m.o.HealthPenalty)
	case a.well(now) < fullHealth: // there is nothing to remember of a number that is well
		a.heal(now, m.o.HealthReward)
	}
}
