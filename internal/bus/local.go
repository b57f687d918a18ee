package bus

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// Local is the bus of one process. It has no goroutine: handlers run on the publisher's.
type Local struct {
	mu     sync.Mutex // guards subs and closed, never held while a handler runs
	subs   map[string][]*localSub
	closed bool
}

type localSub struct {
	fn      func(topic, payload string)
	stopped atomic.Bool
}

var _ Bus = (*Local)(nil)

// NewLocal returns an empty bus.
func NewLocal() *Local { return &Local{subs: map[string][]*localSub{}} }

// Publish implements Bus.
func (b *Local) Publish(ctx context.Context, topic, payload string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return ErrClosed
	}
	subs := b.subs[topic] // replaced, never changed in place
	b.mu.Unlock()
	for _, s := range subs {
		if !s.stopped.Load() {
			s.fn(topic, payload)
		}
	}
	return nil
}

// Subscribe implements Bus.
func (b *Local) Subscribe(ctx context.Context, fn func(topic, payload string), topics ...string) (func(), error) {
	if err := checkTopics(fn, topics); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	topics = slices.Compact(slices.Sorted(slices.Values(topics)))
	s := &localSub{fn: fn}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, ErrClosed
	}
	for _, t := range topics {
		b.subs[t] = append(slices.Clone(b.subs[t]), s)
	}
	return func() {
		if s.stopped.Swap(true) {
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, t := range topics {
			left := slices.DeleteFunc(slices.Clone(b.subs[t]), func(o *localSub) bool { return o == s })
			if len(left) == 0 {
				delete(b.subs, t)
				continue
			}
			b.subs[t] = left
		}
	}, nil
}

// Ping implements Bus.
func (b *Local) Ping(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return ErrClosed
	}
	return ctx.Err()
}

// Close implements Bus.
func (b *Local) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, subs := range b.subs {
		for _, s := range subs {
			s.stopped.Store(true)
		}
	}
	b.subs = nil
	return nil
}
