package main

import (
	"context"
	"fmt"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

// tries bounds how often a planted bug may escape by chance.
const tries = 3

// planting is a bug and how to provoke it.
type planting struct {
	name     string
	kind     string // of the finding that must be among the audit's
	workers  int
	sessions int
	settings []string
	provoke  func(t *trial, ctx context.Context, c *cluster.Cluster) error
}

// plants runs the storm and the kills with planted bugs. The audit must find each.
func (t *trial) plants(ctx context.Context) error {
	binary, err := t.plantedBinary(ctx)
	if err != nil {
		return err
	}
	short := []string{"LEASE_TTL=2s", "LEASE_BEAT=500ms"}
	for _, p := range []planting{
		{"new-id", cluster.Doubled, 2, 4, short, (*trial).provokeNewID},
		{"ack-first", cluster.Lost, 2, 4, short, (*trial).provokeAckFirst},
		{"no-fence", cluster.Stale, 1, t.sessions, t.lateSettings(), (*trial).provokeNoFence},
	} {
		caught := false
		for try := 0; try < tries && !caught; try++ {
			if caught, err = t.plant(ctx, p, binary); err != nil {
				return fmt.Errorf("with %s planted: %w", p.name, err)
			}
		}
		if !caught {
			return fmt.Errorf("%s was planted and not caught in %d tries", p.name, tries)
		}
		t.caught = append(t.caught, p.name)
	}
	return nil
}

func (t *trial) plant(ctx context.Context, p planting, binary string) (caught bool, err error) {
	c, err := t.start(ctx, "plant", binary, p.workers, p.sessions, append(p.settings, "WAFLEET_PLANT="+p.name)...)
	if err != nil {
		return false, err
	}
	defer c.Close()
	killed := t.killed
	err = p.provoke(t, ctx, c)
	t.killed = killed // these are not of the figure
	if err != nil {
		return false, err
	}
	unsettled := c.Settle(ctx, 20*time.Second)
	r, err := c.Audit(ctx)
	if err != nil {
		return false, err
	}
	t.say("planted %s: %d findings, %d of them %q; settled: %v", p.name, r.Count(), r.Count(p.kind), p.kind, unsettled == nil)
	if r.Count(p.kind) == 0 {
		t.say("%s", r)
	}
	return r.Count(p.kind) > 0, nil
}

// provokeNewID kills between relay and ack while the recipients' phones are off, and waits for the repeat.
func (t *trial) provokeNewID(ctx context.Context, c *cluster.Cluster) error {
	a := newAssassin(t, c)
	return t.inStorm(ctx, c, func() error {
		sessions, err := c.AwaitConnected(ctx, time.Minute)
		if err != nil {
			return err
		}
		owner := sessions[c.Numbers[0].Slug].WorkerID()
		if err := a.beforeAck(ctx, owner, true, func() error { return a.kill(ctx, owner) }); err != nil {
			return err
		}
		if err := c.Restart(ctx, owner); err != nil {
			return err
		}
		return a.mend(ctx)
	})
}

// provokeAckFirst kills both workers before the commit of incoming messages.
func (t *trial) provokeAckFirst(ctx context.Context, c *cluster.Cluster) error {
	a := newAssassin(t, c)
	return t.inStorm(ctx, c, func() error {
		for _, name := range []string{"w1", "w2"} {
			if _, err := c.AwaitConnected(ctx, time.Minute); err != nil {
				return err
			}
			if err := a.beforeCommit(ctx, func() error { return a.kill(ctx, name) }); err != nil {
				return err
			}
			if err := c.Restart(ctx, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// provokeNoFence takes leases from a worker that lives.
func (t *trial) provokeNoFence(ctx context.Context, c *cluster.Cluster) error {
	return t.inStorm(ctx, c, func() error { return t.theft(ctx, c, 3) })
}

func (t *trial) inStorm(ctx context.Context, c *cluster.Cluster, do func() error) error {
	storm := c.Storm(ctx, "storm", stormPause)
	if err := do(); err != nil {
		return err
	}
	return storm.End()
}
