package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

const (
	ttl        = 6 * time.Second
	beat       = time.Second
	adoptAfter = 2 * ttl
	adoptLate  = 6 * time.Second // a beat to see it, one to tell, and twenty logins
	// strandedAfter is how long a message may take while processes count shards differently: each looks by itself every second.
	strandedAfter = 20 * time.Second
)

var (
	leases = []string{"LEASE_TTL=" + ttl.String(), "LEASE_BEAT=" + beat.String()}
	two    = []string{"SHARD_COUNT=2"}
)

func shardOf(index int) []string {
	return []string{"SHARD_COUNT=2", "SHARD_INDEX=" + strconv.Itoa(index)}
}

// shards brings a fleet from one shard to two and back, one process after the other, and stays for a while where api and
// workers count differently.
func (t *trial) shards(ctx context.Context) error {
	c, err := t.Start(ctx, "shards", "", cluster.Options{Workers: 2, Settings: leases})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Pair(ctx, 12); err != nil {
		return err
	}
	for _, step := range []struct {
		what string
		do   func() error
		two  bool // sessions must be where two shards say
	}{
		{"api at 2, workers at 1", func() error { return restart(ctx, c, "api", two...) }, false},
		{"api at 2, one worker at 2", func() error { return restart(ctx, c, "w1", shardOf(0)...) }, false},
		{"all at 2", func() error {
			return restartAll(ctx, c, map[string][]string{"w2": shardOf(1), "webhooks": two, "scheduler": two})
		}, true},
		{"api at 1, workers at 2", func() error { return restart(ctx, c, "api") }, true},
		{"all at 1", func() error {
			return restartAll(ctx, c, map[string][]string{"w1": nil, "w2": nil, "webhooks": nil, "scheduler": nil})
		}, false},
	} {
		stream := c.Stream(ctx, step.what, 20)
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
		if err := cluster.Pause(ctx, 4*time.Second); err != nil {
			return err
		}
		if err := stream.End(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
		left, err := t.left(ctx, c)
		if err != nil {
			return err
		}
		t.stranded += left
		sessions, err := c.AwaitConnected(ctx, time.Minute)
		if err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
		if step.two {
			if err := t.inPlace(ctx, c, 30*time.Second); err != nil {
				t.unmet = append(t.unmet, step.what+": "+err.Error())
			}
		}
		t.Say("%s: %d messages each way, %d stranded, on %v", step.what, stream.Texts, left, perWorker(sessions))
	}
	return t.finish(ctx, c)
}

func restartAll(ctx context.Context, c *cluster.Cluster, env map[string][]string) error {
	for _, name := range c.Names() {
		if more, ok := env[name]; ok {
			if err := restart(ctx, c, name, more...); err != nil {
				return err
			}
		}
	}
	return nil
}

// left counts the messages that are still on their way when those that were accepted have had their time.
func (t *trial) left(ctx context.Context, c *cluster.Cluster) (n int, err error) {
	if err := c.Settle(ctx, strandedAfter); err == nil || ctx.Err() != nil {
		return 0, ctx.Err()
	}
	return n, c.DB.QueryRowContext(ctx, `SELECT count(*) FROM messages WHERE status IN ('queued', 'sending')`).Scan(&n)
}

func perWorker(sessions map[string]cluster.Session) map[string]int {
	out := map[string]int{}
	for _, s := range sessions {
		out[s.WorkerID()]++
	}
	return out
}

// inPlace waits until every session is connected on the worker of its shard, w1 or w2.
func (t *trial) inPlace(ctx context.Context, c *cluster.Cluster, within time.Duration) error {
	return cluster.Until(ctx, within, func() error {
		sessions, err := c.AwaitConnected(ctx, time.Second)
		if err != nil {
			return err
		}
		rows, err := c.DB.QueryContext(ctx, `SELECT slug, id FROM sessions`)
		if err != nil {
			return err
		}
		defer rows.Close() //nolint:errcheck // Err says it
		for rows.Next() {
			var slug, id string
			if err := rows.Scan(&slug, &id); err != nil {
				return err
			}
			head, err := strconv.ParseUint(id[:8], 16, 64)
			if err != nil {
				return err
			}
			if want := fmt.Sprintf("w%d", head%2+1); sessions[slug].WorkerID() != want {
				return fmt.Errorf("%s is on %s, want %s", slug, sessions[slug].Worker, want)
			}
		}
		return rows.Err()
	})
}

// adopt kills the only worker of a shard, and starts it again when the other one has taken its sessions.
func (t *trial) adopt(ctx context.Context) error {
	settings := append([]string{"SHARD_ADOPT_AFTER=" + adoptAfter.String()}, leases...)
	c, err := t.Start(ctx, "adopt", "", cluster.Options{Workers: 1, Settings: settings})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Pair(ctx, 12); err != nil {
		return err
	}
	for _, name := range []string{"api", "webhooks", "scheduler"} {
		if err := restart(ctx, c, name, two...); err != nil {
			return err
		}
	}
	if err := restart(ctx, c, "w1", shardOf(0)...); err != nil {
		return err
	}
	second := []string{"worker", "--worker-id=w2"}
	if err := c.RunWith(ctx, "w2", shardOf(1), second...); err != nil {
		return err
	}
	if err := t.inPlace(ctx, c, time.Minute); err != nil {
		return err
	}
	stream := c.Stream(ctx, "adopt", 10)
	if err := c.AwaitBeat(ctx, "w2"); err != nil {
		return err
	}
	killed := time.Now()
	c.Process("w2").Kill()
	if _, err := c.AwaitConnected(ctx, 2*time.Minute, "w1"); err != nil {
		return err
	}
	log, err := c.Log(ctx, 0, "")
	if err != nil {
		return err
	}
	logins := cluster.FirstLogins(log, killed, "w2")
	t.adopted = cluster.Longest(logins)
	for session, took := range logins {
		if took < adoptAfter-beat || took > adoptAfter+adoptLate {
			t.unmet = append(t.unmet, fmt.Sprintf("session %s was adopted after %s", session, took))
		}
	}
	if err := c.RunWith(ctx, "w2", shardOf(1), second...); err != nil {
		return err
	}
	ready := time.Now()
	if err := t.inPlace(ctx, c, time.Minute); err != nil {
		return err
	}
	if t.back = time.Since(ready); t.back > adoptLate {
		t.unmet = append(t.unmet, "sessions were handed back late")
	}
	t.Say("adopted %d sessions after %s, handed back after %s", len(logins), t.adopted, t.back)
	if err := stream.End(); err != nil {
		return err
	}
	return t.finish(ctx, c)
}
