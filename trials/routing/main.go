// Command routing proves with real processes what routing promises. Two api processes share the budget of one number:
// of a hundred sends at once as many are taken as it has, and no minute at WhatsApp has more, also when the number's worker
// was frozen after it had taken them. Redis loses its memory in mid-traffic, in four ways: budgets, opt-outs and who hears from
// whom hold. Then it plants bugs and must see that fail.
//
//	PARTS="caps redis plants" HOLD=180 PLANTS="lose-held old-bucket" go run ./trials/routing
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

func main() { cluster.Main("routing", run) }

const perMinute = 20

// plantedHold is longer than a minute: a frame that counts when it was reserved has left every minute by then.
const plantedHold = 70 * time.Second

// Planted bugs. Two layers keep the cap: the ledger takes no more than may leave, and the lane lets no more leave. With one
// of them broken the other covers what WhatsApp sees, so the ledger's bugs show in what is taken.
var plants = []string{"lose-held", "old-bucket", "no-lane-cap", "lose-held,no-lane-cap", "old-bucket,no-lane-cap"}

var parts = []string{"caps", "redis", "plants"}

// trial is what the parts share.
type trial struct {
	dir    string
	binary string
	pg     *cluster.Postgres
	redis  *cluster.Redis
	begun  time.Time
	parts  []string
	plants []string
	hold   time.Duration // how long the worker is frozen
}

func readTrial() (*trial, error) {
	t := &trial{begun: time.Now(), parts: parts, plants: plants, hold: 3 * time.Minute}
	if text := os.Getenv("PARTS"); text != "" {
		t.parts = strings.Fields(text)
		for _, part := range t.parts {
			if !slices.Contains(parts, part) {
				return nil, fmt.Errorf("PARTS=%q: there is no part %q, only %v", text, part, parts)
			}
		}
	}
	if text := os.Getenv("PLANTS"); text != "" {
		t.plants = strings.Fields(text)
	}
	if text := os.Getenv("HOLD"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 20 || n > 500 {
			return nil, fmt.Errorf("HOLD=%q is not a number of seconds from 20 to 500", text)
		}
		t.hold = time.Duration(n) * time.Second
	}
	return t, nil
}

func run(ctx context.Context) error {
	t, err := readTrial()
	if err != nil {
		return err
	}
	var remove func()
	if t.dir, remove, err = cluster.Folder("routing"); err != nil {
		return err
	}
	t.say("logs in %s", t.dir)
	if t.binary, err = cluster.Build(ctx, t.dir); err != nil {
		return err
	}
	if t.pg, err = cluster.StartPostgres(ctx, cluster.PostgresOptions{Dir: t.dir}); err != nil {
		return err
	}
	defer t.pg.Close()
	if t.redis, err = cluster.StartRedis(ctx, cluster.RedisOptions{Dir: t.dir, AOF: true}); err != nil {
		return err
	}
	defer t.redis.Close()

	sum := &verdict{}
	for _, step := range []struct {
		part string
		run  func(context.Context, *verdict) error
	}{{"caps", t.caps}, {"redis", t.lostRedis}, {"plants", t.planted}} {
		if !slices.Contains(t.parts, step.part) {
			continue
		}
		if err := step.run(ctx, sum); err != nil {
			return fmt.Errorf("%s: %w", step.part, err)
		}
	}
	fmt.Println(sum)
	if !sum.good() {
		return cluster.ErrShort
	}
	remove()
	return nil
}

func (t *trial) say(format string, args ...any) {
	fmt.Printf("%5.0fs  %s\n", time.Since(t.begun).Seconds(), fmt.Sprintf(format, args...))
}

// start starts a gateway with two api processes and one worker. Its leases outlive the time for which the worker is frozen.
func (t *trial) start(ctx context.Context, binary, name, plant string, v *verdict) (*gateway, error) {
	dir := filepath.Join(t.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	db, err := t.pg.CreateDatabase(ctx, name)
	if err != nil {
		return nil, err
	}
	settings := []string{"REDIS_PREFIX=" + name + ":", "LEASE_TTL=20m", "LEASE_BEAT=2s"}
	if plant != "" {
		settings = append(settings, "WAFLEET_PLANT="+plant)
	}
	c, err := cluster.Start(ctx, cluster.Options{Binary: binary, Dir: dir, Database: db, Redis: t.redis.URL(), Workers: 1, Settings: settings})
	if err != nil {
		return nil, err
	}
	second, err := c.SecondAPI(ctx, "api2")
	if err != nil {
		c.Close()
		return nil, err
	}
	return &gateway{Cluster: c, trial: t, v: v, apis: []string{c.API, second}, accepted: map[string]sent{}}, nil
}

// verdict sums up what all parts found.
type verdict struct {
	Sent, Refused    int // messages that were taken, and requests that were refused
	Over             int // frames that were more than the budget in some 60 seconds
	Early            int // sends that were taken though the number had nothing left
	Late             int // sends that were refused, or did not arrive, after the time that Retry-After named
	Wrong            int // answers that are none of 202, 429 and 503 with Retry-After
	Suppressed       int // frames to somebody who had opted out
	Strayed          int // people who heard from another number than before
	Lost, Doubled    int // accepted messages that nobody saw, or somebody saw twice
	Planted, Caught  int
	Losses, OptedOut int
}

func (v *verdict) good() bool {
	return v.Over+v.Early+v.Late+v.Wrong+v.Suppressed+v.Strayed+v.Lost+v.Doubled == 0 && v.Caught == v.Planted
}

// String is the last line: every figure and its goal.
func (v *verdict) String() string {
	return fmt.Sprintf("routing: of %d messages %d frames over a budget, %d taken too early, %d late; over %d losses of Redis %d frames to %d who opted out, "+
		"%d people heard from another number, %d lost, %d doubled; %d of %d refusals not 429 or 503 with Retry-After; %d of %d planted bugs caught "+
		"(goal 0, 0, 0; 0, 0, 0, 0; 0; %d)",
		v.Sent, v.Over, v.Early, v.Late, v.Losses, v.Suppressed, v.OptedOut, v.Strayed, v.Lost, v.Doubled, v.Wrong, v.Refused, v.Caught, v.Planted, v.Planted)
}
