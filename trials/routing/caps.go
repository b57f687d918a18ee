package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

const (
	burst = 100 // sends at once
	// soon is when a number that has nothing left is surely asked before it has something again: Retry-After is whole
	// seconds, rounded up.
	soon = 2 * time.Second
	// arriveTime is more than a worker needs that has just been woken.
	arriveTime = 40 * time.Second
)

// caps proves the budget of a number that two processes share.
func (t *trial) caps(ctx context.Context, v *verdict) error {
	g, err := t.start(ctx, t.binary, "caps", "", v)
	if err != nil {
		return err
	}
	defer g.Close()
	free, err := g.addOrg(ctx, "org-free", 1, 1, 10, perMinute)
	if err != nil {
		return err
	}
	if err := g.burst(ctx, free); err != nil {
		return err
	}
	// While frames wait nobody knows when they leave: then Retry-After is on the safe side.
	if err := errors.Join(g.arrived(ctx, arriveTime, never), cluster.Pause(ctx, time.Second)); err != nil {
		return err
	}
	if err := g.reopens(ctx, free); err != nil {
		return err
	}
	if err := g.crowd(ctx, free, 65*time.Second); err != nil {
		return err
	}
	if err := g.auditCaps(ctx, free); err != nil {
		return err
	}
	held, err := g.addOrg(ctx, "org-held", 10_001, 1, 10, perMinute)
	if err != nil {
		return err
	}
	if err := g.heldUp(ctx, held, t.hold, true); err != nil {
		return err
	}
	if err := g.reopens(ctx, held); err != nil {
		return err
	}
	if err := g.auditCaps(ctx, held); err != nil {
		return err
	}
	if err := g.arrived(ctx, arriveTime, never); err != nil {
		t.say("%v", err)
	}
	if err := g.auditArrivals(ctx, nil); err != nil {
		return err
	}
	return g.Stop()
}

// burst sends a hundred at once over both processes: as many are taken as the number has, and the rest is told when to
// come again.
func (g *gateway) burst(ctx context.Context, o *org) error {
	for _, api := range g.apis { // a ledger that is new is cold for a moment
		err := cluster.Until(ctx, arriveTime, func() error {
			return cluster.Call(ctx, http.MethodGet, api+"/api/v1/capacity", o.key, nil, nil, nil)
		})
		if err != nil {
			return err
		}
	}
	answers := make([]answer, burst)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i] = g.send(ctx, o, o.people[i%len(o.people)], g.text(o), i) })
	}
	all.Wait()
	taken, refused := 0, 0
	for _, a := range answers {
		switch {
		case a.status == http.StatusAccepted:
			taken++
		case a.status == http.StatusTooManyRequests && a.code == "RATE_LIMITED" && a.after > 0:
			refused++
		default:
			return fmt.Errorf("one of %d sends at once was answered: %w", burst, a.err)
		}
	}
	g.say("%s: of %d sends at once over two processes %d are taken, %d told 429 RATE_LIMITED (of %d and %d)", o.id, burst, taken, refused, o.cap, burst-o.cap)
	g.v.Early += max(0, taken-o.cap)
	g.v.Late += max(0, o.cap-taken)
	return ctx.Err()
}

// reopens checks what Retry-After says: until then sends are refused, then one is taken and arrives.
func (g *gateway) reopens(ctx context.Context, o *org) error {
	var told answer
	for i := 0; ; i++ { // until the number has nothing left
		if told = g.send(ctx, o, o.people[0], g.text(o), i); told.status == http.StatusTooManyRequests {
			break
		}
		if err := cluster.Pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	if told.after > soon {
		if err := cluster.Pause(ctx, time.Until(told.asked.Add(told.after-soon))); err != nil {
			return err
		}
		early := g.send(ctx, o, o.people[0], g.text(o), 1)
		if early.status == http.StatusAccepted && early.answered.Before(told.asked.Add(told.after-time.Second)) {
			g.v.Early++
			g.say("%s: taken %s after a refusal with Retry-After %s", o.id, early.answered.Sub(told.asked), told.after)
		}
	}
	if err := cluster.Pause(ctx, time.Until(told.answered.Add(told.after))); err != nil {
		return err
	}
	then := g.send(ctx, o, o.people[0], g.text(o), 0)
	for late := time.Now().Add(arriveTime); then.status == http.StatusServiceUnavailable && time.Now().Before(late); { // another reason
		if err := cluster.Pause(ctx, then.after); err != nil {
			return err
		}
		then = g.send(ctx, o, o.people[0], g.text(o), 0)
	}
	if then.status != http.StatusAccepted {
		g.v.Late++
		g.say("%s: refused when the time of Retry-After (%s) was over: %v", o.id, told.after, then.err)
		return ctx.Err()
	}
	err := cluster.Until(ctx, arriveTime, func() error {
		seen, err := g.seen(ctx)
		if err == nil && seen[o.people[0]+" "+then.text] == 0 {
			err = fmt.Errorf("%q has not arrived", then.text)
		}
		return err
	})
	if err != nil {
		g.v.Late++
		g.say("%s: %v", o.id, err)
		return ctx.Err()
	}
	g.say("%s: refused until Retry-After (%s) was nearly over, then taken and seen by the person", o.id, told.after)
	return nil
}

// crowd lets clients ask without a pause to speak of, whatever they are told.
func (g *gateway) crowd(ctx context.Context, o *org, d time.Duration) error {
	end := time.Now().Add(d)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for n := i; time.Now().Before(end) && ctx.Err() == nil; n++ {
				g.send(ctx, o, o.people[n%len(o.people)], g.text(o), n)
				_ = cluster.Pause(ctx, 100*time.Millisecond)
			}
		})
	}
	all.Wait()
	return ctx.Err()
}

// heldUp freezes the worker, lets clients ask for a hundred sends and go on asking, takes Redis' memory away half way if
// flush is set, and wakes it: what was taken leaves at once, and nothing else may be taken before it has left the minute.
func (g *gateway) heldUp(ctx context.Context, o *org, hold time.Duration, flush bool) error {
	w := g.Process("w1")
	if err := w.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	woken := false
	defer func() {
		if !woken {
			_ = w.Signal(syscall.SIGCONT)
		}
	}()
	frozen := time.Now()
	if err := g.burst(ctx, o); err != nil {
		return err
	}
	if err := g.nothing(ctx, o, frozen.Add(hold/2)); err != nil {
		return err
	}
	if flush {
		if got, err := g.redis.Do(ctx, "FLUSHALL"); err != nil || got != "+OK" {
			return fmt.Errorf("FLUSHALL: %s, %w", got, err)
		}
	}
	if err := g.nothing(ctx, o, frozen.Add(hold)); err != nil {
		return err
	}
	if err := w.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	woken = true
	g.say("%s: the worker was frozen for %s", o.id, time.Since(frozen).Round(time.Second))
	err := cluster.Until(ctx, arriveTime, func() error {
		frames, err := g.frames(ctx, o.numbers[0])
		if err == nil && len(frames) < o.cap {
			err = fmt.Errorf("%d frames of %s left, want %d", len(frames), o.slugs[0], o.cap)
		}
		return err
	})
	if err != nil {
		g.v.Late++
		g.say("%s: %v", o.id, err)
	}
	if err := g.nothing(ctx, o, time.Now().Add(5*time.Second)); err != nil {
		return err
	}
	return g.auditCaps(ctx, o)
}

// nothing asks every second until then, and counts what is taken.
func (g *gateway) nothing(ctx context.Context, o *org, until time.Time) error {
	taken := 0
	for n := 0; time.Now().Before(until); n++ {
		for range 4 {
			if a := g.send(ctx, o, o.people[n%len(o.people)], g.text(o), n); a.status == http.StatusAccepted {
				taken++
			}
		}
		if err := cluster.Pause(ctx, time.Second); err != nil {
			return err
		}
	}
	if taken > 0 {
		g.v.Early += taken
		g.say("%s: %d sends were taken while it had nothing left", o.id, taken)
	}
	return nil
}

// planted runs heldUp with planted bugs.
func (t *trial) planted(ctx context.Context, v *verdict) error {
	binary, err := cluster.Build(ctx, t.dir, "plant")
	if err != nil {
		return err
	}
	for i, plant := range t.plants {
		own := &verdict{}
		if err := t.plant(ctx, binary, fmt.Sprintf("plant%d", i), plant, own); err != nil {
			return fmt.Errorf("with %s planted: %w", plant, err)
		}
		t.say("planted %s: %d frames over the budget, %d sends taken too early", plant, own.Over, own.Early)
		switch plant {
		case "no-lane-cap": // what the ledger takes may leave
			if own.Over+own.Early > 0 {
				t.say("the ledger alone does not keep the budget")
				v.Over += own.Over
				v.Early += own.Early
			}
		case "lose-held", "old-bucket":
			v.Planted++
			v.Caught += min(1, own.Early)
		default:
			v.Planted++
			v.Caught += min(1, own.Over)
		}
	}
	return nil
}

func (t *trial) plant(ctx context.Context, binary, name, plant string, v *verdict) error {
	g, err := t.start(ctx, binary, name, plant, v)
	if err != nil {
		return err
	}
	defer g.Close()
	o, err := g.addOrg(ctx, "org-held", 1, 1, 10, perMinute)
	if err != nil {
		return err
	}
	// What is told of before a loss the ledger made anew knows already: that would cover a frame of an old bucket.
	return g.heldUp(ctx, o, plantedHold, !strings.Contains(plant, "old-bucket"))
}
