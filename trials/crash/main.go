// Command crash kills processes of wafleet by SIGKILL while everybody writes, and audits that nothing was lost and that
// nobody saw anything twice. Then it plants bugs and must see the audit fail.
//
//	KILLS=50 SEED=… PHASES="workers late up edges plants" SESSIONS=10 go run ./trials/crash
package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

func main() {
	cluster.Main("crash", func(ctx context.Context) error {
		ok, err := run(ctx)
		if err == nil && !ok {
			return cluster.ErrShort
		}
		return err
	})
}

// trial is one run of the program.
type trial struct {
	dir, binary, planted string
	pg                   *cluster.Postgres
	redis                *cluster.Redis
	rand                 *rand.Rand
	begun                time.Time
	kills, sessions      int // asked for
	databases            int

	killed, messages, lost, doubled, other int // so far
	caught                                 []string
}

// phase is one part of the trial.
type phase struct {
	name string
	run  func(t *trial, ctx context.Context) error
}

var phases = []phase{
	{"workers", (*trial).workers},
	{"late", (*trial).late},
	{"up", (*trial).up},
	{"edges", (*trial).edges},
	{"plants", (*trial).plants},
}

func run(ctx context.Context) (ok bool, err error) {
	t := &trial{begun: time.Now()}
	if t.kills, err = number("KILLS", 50); err != nil {
		return false, err
	}
	if t.sessions, err = number("SESSIONS", 10); err != nil {
		return false, err
	}
	seed, err := number("SEED", int(time.Now().UnixNano()%1_000_000))
	if err != nil {
		return false, err
	}
	t.rand = rand.New(rand.NewPCG(uint64(seed), 0)) //nolint:gosec // chooses moments
	wanted := strings.Fields(os.Getenv("PHASES"))
	for _, name := range wanted {
		if !slices.ContainsFunc(phases, func(p phase) bool { return p.name == name }) {
			return false, fmt.Errorf("PHASES: there is no phase %q", name)
		}
	}
	dir, remove, err := cluster.Folder("crash")
	if err != nil {
		return false, err
	}
	t.dir = dir
	t.say("seed %d, logs in %s", seed, dir)
	defer func() {
		if ok && err == nil {
			remove()
		}
	}()
	if err := t.servers(ctx); err != nil {
		return false, err
	}
	defer t.redis.Close()
	defer t.pg.Close()
	for _, p := range phases {
		if len(wanted) > 0 && !slices.Contains(wanted, p.name) {
			continue
		}
		if err := p.run(t, ctx); err != nil {
			return false, fmt.Errorf("%s (seed %d): %w", p.name, seed, err)
		}
	}
	plants := "no plants tried"
	if len(t.caught) > 0 {
		plants = "caught: " + strings.Join(t.caught, ", ")
	}
	fmt.Printf("crash: %d lost, %d doubled, %d otherwise wrong of %s messages, %d kills; %s (goal 0, 0, 0)\n",
		t.lost, t.doubled, t.other, thousands(t.messages), t.killed, plants)
	return t.lost+t.doubled+t.other == 0, nil
}

// servers builds the binary and starts PostgreSQL and Redis.
func (t *trial) servers(ctx context.Context) (err error) {
	if t.binary, err = cluster.Build(ctx, t.dir); err != nil {
		return err
	}
	if t.pg, err = cluster.StartPostgres(ctx, cluster.PostgresOptions{Dir: t.dir}); err != nil {
		return err
	}
	t.redis, err = cluster.StartRedis(ctx, cluster.RedisOptions{Dir: t.dir})
	return err
}

// plantedBinary is the one in which bugs can be planted.
func (t *trial) plantedBinary(ctx context.Context) (string, error) {
	if t.planted != "" {
		return t.planted, nil
	}
	var err error
	t.planted, err = cluster.Build(ctx, t.dir, "plant")
	return t.planted, err
}

// start starts a cluster of separate processes on a database and Redis names of its own, and pairs its sessions.
func (t *trial) start(ctx context.Context, name, binary string, workers, sessions int, settings ...string) (*cluster.Cluster, error) {
	t.databases++
	name = fmt.Sprintf("%s%d", name, t.databases)
	db, err := t.pg.CreateDatabase(ctx, name)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(t.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	c, err := cluster.Start(ctx, cluster.Options{
		Binary: binary, Dir: dir, Database: db, Redis: t.redis.URL(), Workers: workers,
		Settings: append([]string{"REDIS_PREFIX=" + name + ":"}, settings...),
	})
	if err != nil {
		return nil, err
	}
	if err := c.Pair(ctx, sessions); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// share is how many kills a phase makes that makes so many of 50.
func (t *trial) share(of50 int) int { return max(1, t.kills*of50/50) }

// between is a random time.
func (t *trial) between(low, high time.Duration) time.Duration {
	return low + time.Duration(t.rand.Int64N(int64(high-low)))
}

func (t *trial) say(format string, args ...any) {
	fmt.Printf("%5.0fs  %s\n", time.Since(t.begun).Seconds(), fmt.Sprintf(format, args...))
}

// end lets every session come back, one more message go both ways, and everything settle; then it audits, and ends
// the processes as an operator does.
func (t *trial) end(ctx context.Context, c *cluster.Cluster, allowed ...string) error {
	if _, err := c.AwaitConnected(ctx, 2*time.Minute); err != nil {
		return fmt.Errorf("not every session logged in again: %w", err)
	}
	if err := c.Talk(ctx, "afterwards", 1); err != nil {
		return err
	}
	unsettled := c.Settle(ctx, settleTime)
	r, err := c.Audit(ctx)
	if err != nil {
		return err
	}
	if unsettled != nil {
		t.other++
		t.say("not settled: %v", unsettled)
	}
	t.messages += r.Sent + r.Said
	lost, doubled := r.Count(cluster.Lost), r.Count(cluster.Doubled)
	other := r.Count() - r.Count(append(allowed, cluster.Lost, cluster.Doubled)...)
	t.lost, t.doubled, t.other = t.lost+lost, t.doubled+doubled, t.other+other
	if lost+doubled+other > 0 {
		t.say("%s", r)
	} else {
		t.say("%d messages out, %d in, %d frames, %d events: all as they must be", r.Sent, r.Said, r.Frames, r.Events)
	}
	return c.Stop()
}

// settleTime is long enough for a second repeat, 5 minutes after an outcome became unknown.
const settleTime = 7 * time.Minute

func number(name string, otherwise int) (int, error) {
	text := os.Getenv(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%s=%q is not a number above 0", name, text)
	}
	return n, nil
}

func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
