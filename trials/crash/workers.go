package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

// stormPause lies between two exchanges of a number, so that two cores are busy and not drowned.
const stormPause = 300 * time.Millisecond

// workers kills workers at 50 moments of a storm in both directions, and starts each again at once.
func (t *trial) workers(ctx context.Context) error {
	c, err := t.start(ctx, "workers", t.binary, 2, t.sessions, "LEASE_TTL=2s", "LEASE_BEAT=500ms")
	if err != nil {
		return err
	}
	defer c.Close()
	kills := t.share(50)
	t.say("workers: %d sessions, LEASE_TTL 2s, %d kills", t.sessions, kills)
	storm := c.Storm(ctx, "storm", stormPause)
	a := newAssassin(t, c)
	for i := range kills {
		if err := a.strike(ctx, i, fmt.Sprintf("w%d", 1+t.rand.IntN(2))); err != nil {
			return err
		}
	}
	if err := a.mend(ctx); err != nil {
		return err
	}
	if err := storm.End(); err != nil {
		return err
	}
	t.say("moments: %v", a.moments)
	return t.end(ctx, c)
}

// late does the same with the TTL of real life: a worker whose sessions are taken from it while it lives, as by a step
// of the database's clock, and three kills.
func (t *trial) late(ctx context.Context) error {
	kills := t.kills * 3 / 50
	if kills == 0 {
		t.say("late: left out of a short run")
		return nil
	}
	c, err := t.start(ctx, "late", t.binary, 1, t.sessions, t.lateSettings()...)
	if err != nil {
		return err
	}
	defer c.Close()
	t.say("late: %d sessions, LEASE_TTL 30s, a theft and %d kills", t.sessions, kills)
	storm := c.Storm(ctx, "storm", stormPause)
	if err := t.theft(ctx, c, 3); err != nil {
		return err
	}
	a := newAssassin(t, c)
	for i := range kills {
		name := fmt.Sprintf("w%d", 1+i%2)
		if err := a.strike(ctx, i, name); err != nil {
			return err
		}
		if _, err := c.AwaitConnected(ctx, 90*time.Second); err != nil {
			return fmt.Errorf("after the kill of %s: %w", name, err)
		}
	}
	if err := a.mend(ctx); err != nil {
		return err
	}
	if err := storm.End(); err != nil {
		return err
	}
	return t.end(ctx, c, cluster.Met) // the thief's login ends the connection of an owner that has not noticed yet
}

// lateSettings are those of a theft. The first worker holds all it may, so what is taken from it goes to the second.
func (t *trial) lateSettings() []string {
	return []string{"LEASE_TTL=30s", "LEASE_BEAT=10s", fmt.Sprintf("WORKER_MAX_SESSIONS=%d", t.sessions)}
}

// theft lets the leases of some sessions of w1 run out although w1 lives and has just beaten: w2 takes them, and cannot
// log in for a while, so that w1's connections stay open. Traffic goes on.
func (t *trial) theft(ctx context.Context, c *cluster.Cluster, sessions int) error {
	if err := c.Worker(ctx, "w2"); err != nil {
		return err
	}
	victims := c.Numbers[:sessions]
	for _, n := range victims {
		if err := c.Fault(ctx, n.Own, map[string]any{"refuseDials": true}); err != nil {
			return err
		}
	}
	if err := steal(ctx, c, victims); err != nil {
		return err
	}
	if err := cluster.Pause(ctx, 4*time.Second); err != nil {
		return err
	}
	for _, n := range victims {
		if err := c.Fault(ctx, n.Own, nil); err != nil {
			return err
		}
	}
	_, err := c.AwaitConnected(ctx, 90*time.Second) // their backoff has grown meanwhile
	return err
}

// steal lets the leases of these sessions of w1 run out right after a beat of it, so that it does not learn of it by the
// next one for a while, and waits until w2 has claimed them.
func steal(ctx context.Context, c *cluster.Cluster, victims []*cluster.Number) error {
	const of = ` WHERE owner LIKE 'w1/%' AND session_id=(SELECT id FROM sessions WHERE slug=$1)`
	expires := func() (at int64, err error) {
		return at, c.DB.QueryRowContext(ctx, `SELECT expires_at FROM leases`+of, victims[0].Slug).Scan(&at)
	}
	before, err := expires()
	if err != nil {
		return err
	}
	err = cluster.Until(ctx, 30*time.Second, func() error {
		now, err := expires()
		if err == nil && now == before {
			err = errors.New("w1 does not beat")
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, n := range victims {
		if _, err := c.DB.ExecContext(ctx, `UPDATE leases SET expires_at=1`+of, n.Slug); err != nil {
			return err
		}
	}
	return cluster.Until(ctx, 20*time.Second, func() error {
		var left int
		err := c.DB.QueryRowContext(ctx, `SELECT count(*) FROM leases WHERE owner LIKE 'w1/%' AND expires_at=1`).Scan(&left)
		if err == nil && left > 0 {
			err = fmt.Errorf("%d leases were not taken from w1", left)
		}
		return err
	})
}
