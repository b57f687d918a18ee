package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

// up kills "up" on SQLite, 20 times in a storm.
func (t *trial) up(ctx context.Context) error {
	dir := filepath.Join(t.dir, "up")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	c, err := cluster.Start(ctx, cluster.Options{Binary: t.binary, Dir: dir})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Pair(ctx, t.sessions); err != nil {
		return err
	}
	kills := t.share(20)
	t.say("up: %d sessions, SQLite, %d kills", t.sessions, kills)
	storm := c.Storm(ctx, "storm", stormPause)
	a := newAssassin(t, c)
	for range kills {
		if err := cluster.Pause(ctx, t.between(300*time.Millisecond, 3*time.Second)); err != nil {
			return err
		}
		if err := a.kill(ctx, "up"); err != nil {
			return err
		}
		if err := c.Restart(ctx, "up"); err != nil {
			return err
		}
	}
	if err := storm.End(); err != nil {
		return err
	}
	return t.end(ctx, c)
}

// gaps are the places between the steps that accept a message under an Idempotency-Key; internal/outbound names them.
var gaps = []string{"claimed", "routed", "inserted", "committed"}

// edges kills the API and the webhooks process, 20 times each: at random moments of the storm, and the API in every gap
// of the protocol around the Idempotency-Key, where the binary with plants kills itself. Clients repeat with their key.
func (t *trial) edges(ctx context.Context) error {
	c, err := t.start(ctx, "edges", t.binary, 1, t.sessions)
	if err != nil {
		return err
	}
	defer c.Close()
	planted, err := t.plantedBinary(ctx)
	if err != nil {
		return err
	}
	kills := t.share(20)
	inGaps := max(1, kills/2/len(gaps)) * len(gaps)
	atRandom := max(1, kills-inGaps)
	t.say("edges: %d sessions, %d kills of api and %d of webhooks at random, %d of api in the gaps of the idempotency protocol", t.sessions, atRandom, kills, inGaps)
	storm := c.Storm(ctx, "storm", stormPause)
	a := newAssassin(t, c)
	for i := range kills {
		for _, name := range []string{"api", "webhooks"} {
			if name == "api" && i >= atRandom {
				continue
			}
			if err := cluster.Pause(ctx, t.between(200*time.Millisecond, 2*time.Second)); err != nil {
				return err
			}
			if err := a.kill(ctx, name); err != nil {
				return err
			}
			if err := c.Restart(ctx, name); err != nil {
				return err
			}
		}
	}
	if err := a.kill(ctx, "api"); err != nil {
		return err
	}
	for i := range inGaps {
		gap := gaps[i%len(gaps)]
		if err := c.Begin("api", planted, "WAFLEET_PLANT=crash-"+gap); err != nil {
			return err
		}
		wctx, cancel := context.WithTimeout(ctx, 90*time.Second) // every client may wait for a key whose holder died
		code, err := c.Process("api").Wait(wctx)
		cancel()
		if err != nil || code != -1 {
			return fmt.Errorf("api that should die in the gap %q ended with %d, %w", gap, code, err)
		}
		t.killed++
	}
	if err := c.Restart(ctx, "api"); err != nil {
		return err
	}
	if err := storm.End(); err != nil {
		return err
	}
	return t.end(ctx, c)
}
