// Command rolling restarts the workers one after the other, and brings a fleet from one shard to two and back, while
// everybody writes: nothing may be lost or seen twice, and nothing stranded while processes count shards differently.
//
//	PARTS="restart shards adopt" SESSIONS=30 RATE=50 go run ./trials/rolling
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

func main() { cluster.Main("rolling", run) }

type trial struct {
	*cluster.Stage
	sessions, rate int

	lost, doubled, other, messages int
	restarts                       int
	achieved                       float64       // texts a second each way in the first part
	down                           time.Duration // the longest that a session was not connected over a restart
	stranded                       int           // messages that were not settled while processes counted shards differently
	adopted, back                  time.Duration
	unmet                          []string
}

var parts = []string{"restart", "shards", "adopt"}

func run(ctx context.Context) error {
	t := &trial{}
	var err error
	if t.sessions, err = cluster.EnvNumber("SESSIONS", 30); err != nil {
		return err
	}
	if t.rate, err = cluster.EnvNumber("RATE", 50); err != nil {
		return err
	}
	wanted := parts
	if text := os.Getenv("PARTS"); text != "" {
		wanted = strings.Fields(text)
	}
	if t.Stage, err = cluster.NewStage(ctx, "rolling"); err != nil {
		return err
	}
	good := false
	defer func() { t.Close(good) }()
	for _, part := range wanted {
		run, ok := map[string]func(context.Context) error{"restart": t.restart, "shards": t.shards, "adopt": t.adopt}[part]
		if !ok {
			return fmt.Errorf("PARTS: there is no part %q, only %v", part, parts)
		}
		if err := run(ctx); err != nil {
			return fmt.Errorf("%s: %w (logs in %s)", part, err, t.Dir)
		}
	}
	for _, text := range t.unmet {
		t.Say("%s", text)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "rolling: %d lost, %d doubled, %d otherwise wrong of %d messages (goal 0, 0, 0)", t.lost, t.doubled, t.other, t.messages)
	if slices.Contains(wanted, "restart") {
		fmt.Fprintf(&b, "; %d workers restarted at %.0f messages a second each way (goal %d), a session down %.2f s at most", t.restarts, t.achieved, t.rate, t.down.Seconds())
	}
	if slices.Contains(wanted, "shards") {
		fmt.Fprintf(&b, "; shards 1, 2, 1: %d stranded (goal 0)", t.stranded)
	}
	if slices.Contains(wanted, "adopt") {
		fmt.Fprintf(&b, "; a shard without its worker adopted after %.1f s (goal %s to %s), handed back %.1f s after it was there again (goal ≤ %s)",
			t.adopted.Seconds(), adoptAfter-beat, adoptAfter+adoptLate, t.back.Seconds(), adoptLate)
	}
	fmt.Println(b.String())
	if t.lost+t.doubled+t.other+t.stranded+len(t.unmet) > 0 {
		return cluster.ErrShort
	}
	good = true
	return nil
}

// finish audits a cluster and stops it.
func (t *trial) finish(ctx context.Context, c *cluster.Cluster) error {
	r, err := c.Finish(ctx, 2*time.Minute, cluster.SettleTime)
	if err != nil {
		return err
	}
	t.Say("%s", r)
	lost, doubled := r.Count(cluster.Lost), r.Count(cluster.Doubled)
	t.lost, t.doubled, t.other, t.messages = t.lost+lost, t.doubled+doubled, t.other+r.Count()-lost-doubled, t.messages+r.Sent+r.Said
	return c.Stop()
}

// restart restarts every worker once, in order, under traffic.
func (t *trial) restart(ctx context.Context) error {
	c, err := t.Start(ctx, "restart", "", cluster.Options{Workers: 3, Settings: []string{"LEASE_TTL=30s", "LEASE_BEAT=10s"}})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Pair(ctx, t.sessions); err != nil {
		return err
	}
	t.Say("%d sessions, %d messages a second each way", t.sessions, t.rate)
	began := time.Now()
	stream := c.Stream(ctx, "restart", t.rate)
	if err := cluster.Pause(ctx, 3*time.Second); err != nil {
		return err
	}
	for _, name := range []string{"w1", "w2", "w3"} {
		if err := restart(ctx, c, name); err != nil {
			return err
		}
		t.restarts++
		if _, err := c.AwaitConnected(ctx, time.Minute); err != nil {
			return err
		}
		if err := cluster.Pause(ctx, 2*time.Second); err != nil {
			return err
		}
	}
	if err := stream.End(); err != nil {
		return err
	}
	if t.achieved = stream.Rate(); t.achieved < 0.95*float64(t.rate) {
		t.unmet = append(t.unmet, fmt.Sprintf("only %.1f messages a second each way", t.achieved))
	}
	log, err := c.Log(ctx, 0, "")
	if err != nil {
		return err
	}
	t.down = cluster.Longest(cluster.Downs(log, began))
	return t.finish(ctx, c)
}

// restart ends a process in order and starts it again with more of an environment.
func restart(ctx context.Context, c *cluster.Cluster, name string, env ...string) error {
	p := c.Process(name)
	if code, err := p.Stop(syscall.SIGTERM, time.Minute); err != nil || code != 0 {
		return fmt.Errorf("%s ended with %d after SIGTERM: %w (log: %s)", name, code, err, p.LogPath())
	}
	return c.Restart(ctx, name, env...)
}
