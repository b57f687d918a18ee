package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

const (
	ttl  = 4 * time.Second
	beat = time.Second
	// learnLimit: it learns it at its next beat; a busy machine may wake a process late.
	learnLimit = beat
	// holdLocks is how long the answers to beats are held back after it woke: less than the lock_timeout that wafleet
	// sets (2 s), and so long that a dial would have come.
	holdLocks = 1600 * time.Millisecond
	perGroup  = 2
)

// verdict is what one run showed.
type verdict struct {
	stale, lost, doubled, messages int
	learned                        time.Duration
	unmet                          []string
}

func (v *verdict) wrong() int { return v.stale + v.lost + v.doubled + len(v.unmet) }

// freeze does one run. The sessions are in four groups:
//
//	mid      frozen between a frame and its ack
//	idle     frozen with nothing to do; the next owner's login ends its connection
//	open     the next owner can't log in until later, so the frozen one's connection stays open, with unread messages
//	dropped  the connection is lost while its owner is frozen, so that it wants to dial when it wakes
//
// When it wakes, the database takes its time over everything that locks leases: what a fence or an answered beat would
// stop is stopped late, and what must hold meanwhile is that this worker itself does not trust its terms any more.
func (t *trial) freeze(ctx context.Context, binary, plant string) (*verdict, error) {
	c, err := t.start(ctx, binary, plant, 4*perGroup)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := errors.Join(c.Talk(ctx, "before", 1), c.Settle(ctx, time.Minute)); err != nil {
		return nil, err
	}
	w1 := c.Process("w1")
	group := func(i int) []*cluster.Number { return c.Numbers[i*perGroup : (i+1)*perGroup] }
	mid, open, dropped := group(0), group(2), group(3)

	for _, n := range mid {
		if err := c.Fault(ctx, n.Own, map[string]any{"latencyMs": 60_000}); err != nil {
			return nil, err
		}
		if _, _, err := c.Send(ctx, n, "in flight to "+n.Person); err != nil {
			return nil, err
		}
		if err := cluster.Until(ctx, 20*time.Second, func() error { return c.InFlight(ctx, n) }); err != nil {
			return nil, err
		}
	}
	if err := w1.Signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	frozen := time.Now()
	if err := whileFrozen(ctx, c, mid, open, dropped); err != nil {
		return nil, err
	}
	if err := awaitTakeover(ctx, c, open); err != nil {
		return nil, err
	}
	if err := cluster.Pause(ctx, 2*ttl-time.Since(frozen)); err != nil {
		return nil, err
	}
	logged := len(w1.Log())
	woken, err := wake(ctx, c, w1)
	if err != nil {
		return nil, err
	}
	for _, n := range open {
		if err := c.Fault(ctx, n.Own, nil); err != nil {
			return nil, err
		}
	}
	if _, err := c.AwaitConnected(ctx, 90*time.Second); err != nil {
		return nil, err
	}
	v := &verdict{}
	if err := c.Talk(ctx, "afterwards", 1); err != nil {
		return nil, err
	}
	if err := c.Settle(ctx, 90*time.Second); err != nil {
		v.unmet = append(v.unmet, "not settled: "+err.Error())
	}
	if plant == none {
		v.heard(w1.Log()[logged:], woken, len(c.Numbers), len(mid))
	}
	r, err := c.Audit(ctx)
	if err != nil {
		return nil, err
	}
	v.stale, v.lost, v.doubled, v.messages = r.Count(cluster.Stale), r.Count(cluster.Lost), r.Count(cluster.Doubled), r.Sent+r.Said
	if n := r.Count() - r.Count(cluster.Stale, cluster.Lost, cluster.Doubled, cluster.Met); n > 0 {
		v.unmet = append(v.unmet, fmt.Sprintf("%d other findings", n))
	}
	t.say("%s planted: %d frames of a superseded owner, %d lost, %d doubled, terms ended after %s%s", plant, v.stale, v.lost, v.doubled,
		v.learned.Round(time.Millisecond), strings.Join(append([]string{""}, v.unmet...), "; "))
	if plant == none && v.wrong() > 0 {
		t.say("%s", r)
	}
	return v, nil
}

// whileFrozen does what happens between SIGSTOP and the takeover.
func whileFrozen(ctx context.Context, c *cluster.Cluster, mid, open, dropped []*cluster.Number) error {
	for _, n := range mid {
		if err := c.Fault(ctx, n.Own, nil); err != nil {
			return err
		}
	}
	for _, n := range open {
		if err := c.Fault(ctx, n.Own, map[string]any{"refuseDials": true}); err != nil {
			return err
		}
	}
	for _, n := range dropped {
		if err := c.Drop(ctx, n); err != nil {
			return err
		}
	}
	return c.Each(func(n *cluster.Number) error {
		for i := range 5 {
			if err := c.Say(ctx, n, fmt.Sprintf("while frozen %d from %s", i, n.Person)); err != nil {
				return err
			}
		}
		return nil
	})
}

// awaitTakeover waits until w2 owns every session, and is connected with all but the open ones.
func awaitTakeover(ctx context.Context, c *cluster.Cluster, open []*cluster.Number) error {
	refused := map[string]bool{}
	for _, n := range open {
		refused[n.Slug] = true
	}
	return cluster.Until(ctx, 4*ttl, func() error {
		sessions, err := c.Sessions(ctx)
		if err != nil {
			return err
		}
		for _, s := range sessions {
			if s.WorkerID() != "w2" || !s.Connected && !refused[s.SessionID] {
				return fmt.Errorf("%s is %s on %s", s.SessionID, s.State, s.Worker)
			}
		}
		return nil
	})
}

// wake lets the frozen worker go on while everything that locks leases has to wait.
func wake(ctx context.Context, c *cluster.Cluster, w1 *cluster.Process) (at time.Time, err error) {
	conn, err := c.DB.Conn(ctx)
	if err != nil {
		return at, err
	}
	defer conn.Close() //nolint:errcheck // the transaction in it is what counts
	for _, statement := range []string{`SET idle_in_transaction_session_timeout=0`, `BEGIN`, `LOCK TABLE leases IN EXCLUSIVE MODE`} {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return at, err
		}
	}
	at = time.Now()
	if err := w1.Signal(syscall.SIGCONT); err != nil {
		return at, err
	}
	paused := cluster.Pause(ctx, holdLocks)
	_, err = conn.ExecContext(ctx, `ROLLBACK`)
	return at, errors.Join(paused, err)
}

var ended = regexp.MustCompile(`(?m)^time=(\S+) .*msg="term ended".*$`)

// heard reads what the worker logged since it woke: each of its terms ended within the limit, and the record of each
// send that was in flight was refused because the lease is lost.
func (v *verdict) heard(log string, woken time.Time, terms, sends int) {
	all := ended.FindAllStringSubmatch(log, -1)
	for _, m := range all[:min(len(all), terms)] {
		at, err := time.Parse(time.RFC3339Nano, m[1])
		if err != nil {
			v.unmet = append(v.unmet, err.Error())
			return
		}
		v.learned = max(v.learned, at.Sub(woken))
	}
	if len(all) < terms {
		v.unmet = append(v.unmet, fmt.Sprintf("%d terms ended, want %d", len(all), terms))
	}
	if v.learned > learnLimit {
		v.unmet = append(v.unmet, fmt.Sprintf("it learned of its loss after %s", v.learned))
	}
	refused := 0
	for line := range strings.Lines(log) {
		if strings.Contains(line, "outcome of a send not written") && strings.Contains(line, "lease lost") {
			refused++
		}
	}
	if refused < sends {
		v.unmet = append(v.unmet, fmt.Sprintf("%d writes of outcomes were refused for the lost lease, want %d", refused, sends))
	}
}
