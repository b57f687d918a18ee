package ledger

import (
	"context"
	"time"
)

// CallLimit bounds how fast requests of some kind come in, whatever they ask for. Numbers and messages have nothing
// to do with it.
type CallLimit struct {
	Name string // whose requests they are
	Rate Rate
}

// Admission is whether a request may go on.
type Admission struct {
	Wait time.Duration // 0: it may; else until all of its limits have room
	Left int           // requests that may follow at once under the first limit
}

// Admit implements Ledger.
func (m *Memory) Admit(_ context.Context, limits ...CallLimit) (Admission, error) {
	if len(limits) == 0 {
		return Admission{}, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return Admission{}, errClosed
	}
	now := m.now()
	var wait int64
	levels := make([]float64, len(limits))
	for i, l := range limits {
		levels[i] = l.Rate.Burst // a bucket that nobody took from is full
		if b, ok := m.calls[l.Name]; ok {
			levels[i] = b.now(now, l.Rate)
		}
		wait = max(wait, lacks(levels[i], l.Rate))
	}
	if wait > 0 {
		return Admission{Wait: time.Duration(wait) * time.Millisecond}, nil
	}
	for i, l := range limits {
		m.calls[l.Name] = bucket{levels[i] - 1, now, l.Rate}
	}
	return Admission{Left: int(levels[0] - 1)}, nil
}

// Admit implements Ledger.
func (l *Redis) Admit(ctx context.Context, limits ...CallLimit) (Admission, error) {
	if len(limits) == 0 {
		return Admission{}, nil
	}
	args := make([]string, 0, 3*len(limits))
	for _, c := range limits {
		args = append(args, c.Name, number(c.Rate.PerSecond), number(c.Rate.Burst))
	}
	got, err := l.do(ctx, "admit", args...) // a request does not wait for a rebuild
	if err != nil {
		return Admission{}, err
	}
	return Admission{Wait: time.Duration(got.number(1)) * time.Millisecond, Left: int(got.number(2))}, nil
}
