// Command stale freezes a worker by SIGSTOP for twice its TTL, in the middle of sends and idle, lets another one take its
// sessions, and wakes it: no frame under its superseded epochs may reach WhatsApp, everybody sees every message once, its
// first write is refused, and it dials for nobody. Then it plants bugs and must see that fail.
//
//	RUNS="none no-fence no-last-gate no-fence,no-last-gate" go run ./trials/stale
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

func main() { cluster.Main("stale", run) }

// What is planted in a run. With both planted the run must fail; with one of them the other layer may cover.
const (
	none       = "none"
	noFence    = "no-fence"
	noLastGate = "no-last-gate"
	both       = noFence + "," + noLastGate
)

// trial is what the runs share.
type trial struct {
	dir   string
	pg    *cluster.Postgres
	redis *cluster.Redis
	begun time.Time
}

func run(ctx context.Context) error {
	dir, remove, err := cluster.Folder("stale")
	if err != nil {
		return err
	}
	t := &trial{dir: dir, begun: time.Now()}
	t.say("logs in %s", dir)
	binary, err := cluster.Build(ctx, dir)
	if err != nil {
		return err
	}
	if t.pg, err = cluster.StartPostgres(ctx, cluster.PostgresOptions{Dir: dir}); err != nil {
		return err
	}
	defer t.pg.Close()
	if t.redis, err = cluster.StartRedis(ctx, cluster.RedisOptions{Dir: dir}); err != nil {
		return err
	}
	defer t.redis.Close()

	runs := []string{none, noFence, noLastGate, both}
	if text := os.Getenv("RUNS"); text != "" {
		runs = strings.Fields(text)
	}
	clean, planted := &verdict{}, ""
	tried, caught, covered := 0, []string{}, []string{}
	for _, plant := range runs {
		if plant != none && planted == "" {
			if planted, err = cluster.Build(ctx, dir, "plant"); err != nil {
				return err
			}
		}
		v, err := t.freeze(ctx, map[bool]string{true: binary, false: planted}[plant == none], plant)
		switch {
		case err != nil:
			return fmt.Errorf("%s planted: %w", plant, err)
		case plant == none:
			clean = v
		case v.stale > 0:
			tried++
			caught = append(caught, fmt.Sprintf("%s (%d)", plant, v.stale))
		default:
			tried++
			covered = append(covered, plant)
		}
	}
	plants := "none planted"
	if tried > 0 {
		plants = fmt.Sprintf("caught of those planted: [%s], covered by another layer: [%s]", strings.Join(caught, ", "), strings.Join(covered, ", "))
	}
	fmt.Printf("stale: %d frames of a superseded owner, %d lost, %d doubled of %d messages, its terms ended %s after it woke; %s (goal 0, 0, 0, %s, [%s] caught)\n",
		clean.stale, clean.lost, clean.doubled, clean.messages, clean.learned.Round(time.Millisecond), plants, learnLimit, both)
	if clean.wrong() > 0 || slices.Contains(covered, both) {
		return cluster.ErrShort
	}
	remove()
	return nil
}

func (t *trial) say(format string, args ...any) {
	fmt.Printf("%5.0fs  %s\n", time.Since(t.begun).Seconds(), fmt.Sprintf(format, args...))
}

// start starts a cluster in which w1 holds every session and w2 stands by.
func (t *trial) start(ctx context.Context, binary, plant string, sessions int) (*cluster.Cluster, error) {
	name := strings.NewReplacer("-", "_", ",", "_").Replace(plant)
	dir := filepath.Join(t.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil { //nolint:gosec // RUNS names it, and who runs this
		return nil, err
	}
	db, err := t.pg.CreateDatabase(ctx, name)
	if err != nil {
		return nil, err
	}
	settings := []string{"REDIS_PREFIX=" + name + ":", "LEASE_TTL=" + ttl.String(), "LEASE_BEAT=" + beat.String()}
	if plant != none {
		settings = append(settings, "WAFLEET_PLANT="+plant)
	}
	c, err := cluster.Start(ctx, cluster.Options{Binary: binary, Dir: dir, Database: db, Redis: t.redis.URL(), Workers: 1, Settings: settings})
	if err != nil {
		return nil, err
	}
	err = c.Pair(ctx, sessions)
	if err == nil {
		err = c.Worker(ctx, "w2")
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}
