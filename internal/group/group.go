// Package group commits together what several callers want committed at about the same time, so that a
// database syncs its log once for all of them.
//
// It owns the queue between the callers and one commit at a time, and knows nothing of what is
// committed. Batches are natural: the first caller is served at once and alone, and whoever comes
// while a commit is under way, or can't begin yet, shares the next one. Nobody ever waits for a batch to fill.
//
// A Committer has a goroutine only while there is something to commit; Wait joins it.
package group

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// Most is how many steps one commit takes at most.
const Most = 256

// Rejected marks an error after which nothing of the batch is committed for certain, and which is
// about what some step holds and not about the database: the steps are tried again one by one.
func Rejected(err error) error { return &rejected{err} }

type rejected struct{ err error }

func (r *rejected) Error() string { return r.err.Error() }
func (r *rejected) Unwrap() error { return r.err }

// Committer commits steps of one kind. Make it with New; it is safe for use by several goroutines.
type Committer[S any] struct {
	// Ready, if it is set before the first step, returns when a commit could begin. A database that others write to
	// gets fewer and larger commits so: who comes meanwhile shares the next.
	Ready func(ctx context.Context)

	commit func(ctx context.Context, steps []S) error
	limit  time.Duration

	mu    sync.Mutex // never held while a commit runs
	queue []*entry[S]
	busy  bool
	work  sync.WaitGroup
	wake  chan struct{} // one slot: a step that can't wait has come
}

type entry[S any] struct {
	step S
	wait time.Duration // it may wait for company
	done chan error    // one slot
}

// New returns a committer. commit gets the steps in the order they came and at most limit of time. It
// says in each step what became of it, and returns an error if nothing was committed or nobody knows.
func New[S any](limit time.Duration, commit func(ctx context.Context, steps []S) error) *Committer[S] {
	return &Committer[S]{commit: commit, limit: limit, wake: make(chan struct{}, 1)}
}

// Do commits a step, with others if there are any, and returns the error of its commit. The step's
// answers may be read only if that is nil. A caller whose context ends is told so at once: its step is
// not committed if it was still waiting, and may be committed otherwise.
func (c *Committer[S]) Do(ctx context.Context, step S) error { return c.DoWithin(ctx, step, 0) }

// DoWithin is Do for a step that is in no hurry: it goes with the next step that is, and begins after
// wait at the latest.
func (c *Committer[S]) DoWithin(ctx context.Context, step S, wait time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e := &entry[S]{step: step, wait: wait, done: make(chan error, 1)}
	c.mu.Lock()
	c.queue = append(c.queue, e)
	if !c.busy {
		c.busy = true
		c.work.Go(func() { c.run(context.WithoutCancel(ctx)) })
	} else if wait <= 0 {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
	c.mu.Unlock()
	select {
	case err := <-e.done:
		return err
	case <-ctx.Done():
		c.withdraw(e)
		return ctx.Err()
	}
}

// Wait returns when nothing is being committed. Nobody may call Do meanwhile.
func (c *Committer[S]) Wait() {
	c.mu.Lock() // whoever called Do before has begun its work by now
	defer c.work.Wait()
	c.mu.Unlock()
}

// withdraw takes a step out of the queue, if it is still there.
func (c *Committer[S]) withdraw(e *entry[S]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, queued := range c.queue {
		if queued == e {
			c.queue = append(c.queue[:i], c.queue[i+1:]...)
			return
		}
	}
}

// run commits until nothing is left.
func (c *Committer[S]) run(ctx context.Context) {
	for {
		c.rest()
		c.ready(ctx)
		batch := c.take()
		if batch == nil {
			return
		}
		c.settle(ctx, batch)
	}
}

// rest waits while all that is queued may wait.
func (c *Committer[S]) rest() {
	c.mu.Lock()
	wait := time.Duration(0)
	for i, e := range c.queue {
		if e.wait <= 0 {
			wait = 0
			break
		}
		if i == 0 || e.wait < wait {
			wait = e.wait
		}
	}
	select {
	case <-c.wake: // the step that it was for is in the queue
	default:
	}
	c.mu.Unlock()
	if wait <= 0 {
		return
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.wake:
	}
}

func (c *Committer[S]) ready(ctx context.Context) {
	if c.Ready == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	c.Ready(ctx)
}

func (c *Committer[S]) take() []*entry[S] {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(c.queue), Most)
	if n == 0 {
		c.busy, c.queue = false, nil
		return nil
	}
	batch := c.queue[:n:n]
	c.queue = c.queue[n:]
	return batch
}

// settle commits a batch and tells everybody in it.
func (c *Committer[S]) settle(ctx context.Context, batch []*entry[S]) {
	steps := make([]S, len(batch))
	for i, e := range batch {
		steps[i] = e.step
	}
	err := c.guarded(ctx, steps)
	if _, alone := errors.AsType[*rejected](err); !alone || len(batch) == 1 {
		for _, e := range batch {
			e.done <- err
		}
		return
	}
	for _, e := range batch { // one of them is poison, and only that one is to fail
		e.done <- c.guarded(ctx, []S{e.step})
	}
}

// guarded turns a panic into an error: it would take everybody's process with it.
func (c *Committer[S]) guarded(ctx context.Context, steps []S) (err error) {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = Rejected(fmt.Errorf("panic in a commit: %v\n%s", p, debug.Stack()))
		}
	}()
	return c.commit(ctx, steps)
}
