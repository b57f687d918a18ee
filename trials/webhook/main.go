// Command webhook shows what happens to webhooks while their receiver is down: under traffic in both directions it
// refuses everything for half a minute. Nothing may be lost, the receiver must hear of something soon after its return,
// and while all is well an event must be posted soon after its commit. It does the same with a planted bug that loses
// events, and fails if that goes unnoticed.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

// The goals.
const (
	returnGoal = 2 * time.Second
	medianGoal = 50 * time.Millisecond
)

const (
	numbers  = 10
	calm     = 20 * time.Second // traffic with the receiver up, on either side of the outage
	outage   = 30 * time.Second
	pause    = time.Second // per number, between one exchange and the next
	settling = 2 * time.Minute
)

func main() { cluster.Main("bench-webhook", run) }

func run(ctx context.Context) (err error) {
	dir, remove, err := cluster.Folder("webhook")
	if err != nil {
		return err
	}
	defer func() {
		if err == nil || errors.Is(err, cluster.ErrShort) {
			remove()
			return
		}
		fmt.Fprintln(os.Stderr, "logs are in", dir)
	}()
	pg, err := cluster.StartPostgres(ctx, cluster.PostgresOptions{Dir: dir})
	if err != nil {
		return err
	}
	defer pg.Close()
	redis, err := cluster.StartRedis(ctx, cluster.RedisOptions{Dir: dir})
	if err != nil {
		return err
	}
	defer redis.Close()
	t := trial{dir: dir, pg: pg, redis: redis}

	sound, err := t.outage(ctx, "sound", outage)
	if err != nil {
		return err
	}
	sound.print("as it is")
	planted, err := t.outage(ctx, "planted", 5*time.Second, "WAFLEET_PLANT=any-answer")
	if err != nil {
		return err
	}
	planted.print("with a bug that loses events")

	caught := "caught"
	if planted.lost == 0 {
		caught = "NOT caught"
	}
	fmt.Printf("bench-webhook: %d lost of %d events over an outage of %s (goal 0); the first %s after the return (goal < %s); p50 from commit to POST %s (goal < %s); planted loss %s\n",
		sound.lost, sound.events, outage, sound.back.Round(time.Millisecond), returnGoal, sound.p50.Round(100*time.Microsecond), medianGoal, caught)
	if sound.lost > 0 || sound.back >= returnGoal || sound.p50 >= medianGoal || planted.lost == 0 {
		return cluster.ErrShort
	}
	return nil
}

type trial struct {
	dir   string
	pg    *cluster.Postgres
	redis *cluster.Redis
}

// result is what one outage brought.
type result struct {
	events, lost, refused int
	back                  time.Duration // from the return to the first event
	p50, p99              time.Duration // from commit to POST, with the receiver up
}

func (r result) print(how string) {
	fmt.Printf("%s: %d events, %d lost, %d tries refused, first one %s after the return, commit to POST p50 %s p99 %s\n",
		how, r.events, r.lost, r.refused, r.back.Round(time.Millisecond), r.p50.Round(100*time.Microsecond), r.p99.Round(100*time.Microsecond))
}

// outage runs a gateway of separate processes through traffic, an outage of the receiver, and traffic again. With env
// its binary has planted bugs.
func (t *trial) outage(ctx context.Context, name string, down time.Duration, env ...string) (r result, err error) {
	dir := t.dir + "/" + name
	if err := os.Mkdir(dir, 0o700); err != nil {
		return r, err
	}
	var tags []string
	if len(env) > 0 {
		tags = []string{"plant"}
	}
	binary, err := cluster.Build(ctx, dir, tags...)
	if err != nil {
		return r, err
	}
	database, err := t.pg.CreateDatabase(ctx, name)
	if err != nil {
		return r, err
	}
	c, err := cluster.Start(ctx, cluster.Options{
		Binary: binary, Dir: dir, Database: database, Redis: t.redis.URL(), Settings: append(env, "REDIS_PREFIX="+name+":"), Workers: 1,
	})
	if err != nil {
		return r, err
	}
	defer c.Close()
	if err := c.Pair(ctx, numbers); err != nil {
		return r, err
	}

	start := time.Now()
	storm := c.Storm(ctx, name, pause)
	err = cluster.Pause(ctx, calm)
	fell := time.Now()
	c.RefuseHooks(true)
	err = errors.Join(err, cluster.Pause(ctx, down))
	returned := time.Now()
	r.refused = c.RefuseHooks(false)
	err = errors.Join(err, cluster.Pause(ctx, calm), storm.End())
	if err != nil {
		return r, err
	}
	within := settling
	if len(env) > 0 {
		within = 10 * time.Second // it never will
	}
	if err := c.Settle(ctx, within); err != nil && len(env) == 0 {
		fmt.Fprintln(os.Stderr, "not settled:", err)
	}
	return r, r.count(ctx, c, start, fell, returned)
}

// count compares the events that were stored with those that came.
func (r *result) count(ctx context.Context, c *cluster.Cluster, start, fell, returned time.Time) error {
	came := map[string]bool{}
	var delays []time.Duration
	r.back = time.Since(returned)
	for _, e := range c.Events() {
		if e.At.After(returned) {
			r.back = min(r.back, e.At.Sub(returned))
		}
		if !came[e.ID] && e.Timestamp.After(start) && e.At.Before(fell) {
			delays = append(delays, e.At.Sub(e.Timestamp))
		}
		came[e.ID] = true
	}
	if len(delays) == 0 {
		return errors.New("no event came before the outage")
	}
	slices.Sort(delays)
	r.p50, r.p99 = delays[len(delays)/2], delays[len(delays)*99/100]
	stored, err := c.DB.QueryContext(ctx, `SELECT e.id FROM events e JOIN deliveries d ON d.event_id = e.id`)
	if err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	defer stored.Close() //nolint:errcheck // Err says it
	for stored.Next() {
		var id string
		if err := stored.Scan(&id); err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		r.events++
		if !came[id] {
			r.lost++
		}
	}
	return stored.Err()
}
