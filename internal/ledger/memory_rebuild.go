package ledger

import (
	"context"
	"fmt"
	"maps"
)

// Warm implements Ledger.
func (m *Memory) Warm(ctx context.Context) error {
	cold := func(context.Context) (bool, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.generation == 0, nil
	}
	if c, _ := cold(ctx); !c {
		return nil
	}
	if !m.warming.CompareAndSwap(false, true) {
		return errCold()
	}
	defer m.warming.Store(false)
	if m.o.Rebuild == nil {
		return m.load(State{Generation: 1})
	}
	err := m.o.Rebuild(ctx, cold, func(_ context.Context, s State) error { return m.load(s) })
	if err != nil {
		// The generation that load was given may not have been committed.
		m.mu.Lock()
		m.generation = 0
		m.mu.Unlock()
		return fmt.Errorf("rebuild the ledger: %w: %w", errCold(), err)
	}
	return nil
}

func (m *Memory) load(s State) error {
	if s.Generation == 0 {
		return errNoGeneration
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	m.clear()
	m.accounts = s.accounts(now)
	for _, p := range s.Pins {
		m.pins[pinKey{p.Org, p.Key}] = pin{p.Session, p.Until.UnixMilli()}
	}
	maps.Copy(m.backlog, s.Backlog)
	for _, q := range s.Quota {
		m.quota[quotaKey{q.Project, q.Month}] = q.Used
	}
	m.generation, m.rebuilt = s.Generation, now
	return nil
}

// Cool implements Ledger.
func (m *Memory) Cool(_ context.Context, generation int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return errClosed
	}
	if m.generation == generation && m.o.Rebuild != nil {
		m.generation = 0
	}
	return nil
}

// Close implements Ledger.
func (m *Memory) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
}
