// Command failover ends workers that hold many sessions, by kill -9 and in order, and starts all of them at once. It says
// how soon every session was connected elsewhere, and how many handshakes WhatsApp saw at a time. Then it does the same
// with two faults on purpose, and must see itself fail.
//
//	SESSIONS=200 go run ./trials/failover
package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

func main() { cluster.Main("failover", run) }

const (
	ttl         = 30 * time.Second // the default
	afterTTL    = 5 * time.Second
	downGoal    = 2 * time.Second
	concurrency = 10 // RESTORE_CONCURRENCY, the default
)

// figures are what one cluster showed.
type figures struct {
	sessions        int
	killed          time.Duration // from the kill until the last session was connected elsewhere
	stopped         time.Duration // the longest that a session was not connected over a graceful stop
	middle          time.Duration // and the middle of them
	cold            time.Duration // from the start of all workers until the last session was connected
	peak            int           // handshakes at a time after the kill, at most
	stopPeak        int           // over the graceful stop
	coldPeak        int
	messages, wrong int
}

func run(ctx context.Context) error {
	sessions, err := cluster.EnvNumber("SESSIONS", 200)
	if err != nil {
		return err
	}
	stage, err := cluster.NewStage(ctx, "failover")
	if err != nil {
		return err
	}
	good := false
	defer func() { stage.Close(good) }()
	f, err := failover(ctx, stage, sessions, "", "LEASE_TTL="+ttl.String(), "LEASE_BEAT=10s")
	if err != nil {
		return err
	}
	unmet := f.unmet(ttl)

	// The same with few sessions must be found short: leases that are kept at a stop, and handshakes that nobody bounds.
	short := []string{"LEASE_TTL=6s", "LEASE_BEAT=1s"}
	kept, err := failover(ctx, stage, 40, "no-release", short...)
	if err != nil {
		return fmt.Errorf("no-release planted: %w", err)
	}
	// On an idle machine ten handshakes are over before they meet, so the bound is looked at where it is two.
	few, err := failover(ctx, stage, 60, "", append(short, "RESTORE_CONCURRENCY=2")...)
	if err != nil {
		return fmt.Errorf("RESTORE_CONCURRENCY=2: %w", err)
	}
	many, err := failover(ctx, stage, 60, "", append(short, "RESTORE_CONCURRENCY=100")...)
	if err != nil {
		return fmt.Errorf("RESTORE_CONCURRENCY=100: %w", err)
	}
	const bound = 3 * 2
	if few.most() > bound {
		unmet = append(unmet, fmt.Sprintf("%d handshakes at a time with RESTORE_CONCURRENCY=2", few.most()))
	}
	caught := 0
	if kept.stopped >= downGoal {
		caught++
	}
	if many.most() > bound {
		caught++
	}
	stage.Say("kept leases: down %s at a stop; RESTORE_CONCURRENCY=2: %d handshakes at a time, goal ≤ %d; 100: %d", seconds(kept.stopped), few.most(), bound, many.most())
	if caught < 2 {
		unmet = append(unmet, "a fault that was made on purpose was not seen")
	}
	for _, text := range unmet {
		stage.Say("%s", text)
	}
	fmt.Printf("failover: %d sessions connected elsewhere %s after kill -9 (goal ≤ %s), each down %s at most at a stop, %s in the middle (goal < %s), "+
		"%d, %d and %d handshakes at a time after the kill, over the stop and at a cold start of %s (goal ≤ %d, %d, %d), %d wrong of %d messages (goal 0); %d of 2 faults on purpose caught (goal 2)\n",
		f.sessions, seconds(f.killed), ttl+afterTTL, seconds(f.stopped), seconds(f.middle), downGoal,
		f.peak, f.stopPeak, f.coldPeak, seconds(f.cold), 2*concurrency, 2*concurrency, 3*concurrency, f.wrong, f.messages, caught)
	if len(unmet) > 0 {
		return cluster.ErrShort
	}
	good = true
	return nil
}

func (f *figures) most() int { return max(f.peak, f.stopPeak, f.coldPeak) }

func (f *figures) unmet(ttl time.Duration) (unmet []string) {
	for _, goal := range []struct {
		met  bool
		text string
	}{
		{f.killed <= ttl+afterTTL, "the sessions of a killed worker were connected elsewhere too late"},
		{f.stopped < downGoal, "a session was down for too long at a stop"},
		{f.peak <= 2*concurrency && f.stopPeak <= 2*concurrency && f.coldPeak <= 3*concurrency, "too many handshakes at a time"},
		{f.wrong == 0, "the audit found something"},
	} {
		if !goal.met {
			unmet = append(unmet, goal.text)
		}
	}
	return unmet
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

func failover(ctx context.Context, stage *cluster.Stage, sessions int, plants string, settings ...string) (*figures, error) {
	c, err := stage.Start(ctx, "failover", plants, cluster.Options{Workers: 1, Settings: settings})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	f := &figures{sessions: sessions}
	if err := c.Pair(ctx, sessions); err != nil {
		return nil, err
	}
	if err := errors.Join(c.Worker(ctx, "w2"), c.Worker(ctx, "w3")); err != nil {
		return nil, err
	}
	stage.Say("%d sessions on w1; %s%s", sessions, strings.Join(settings, " "), map[bool]string{true: ", planted: " + plants}[plants != ""])
	for _, step := range []func(context.Context, *cluster.Cluster, *figures) error{kill, stop, coldStart} {
		if err := step(ctx, c, f); err != nil {
			return nil, err
		}
	}
	stage.Say("killed: %s; stopped: %s, %s in the middle; started: %s; handshakes at a time: %d, %d, %d",
		seconds(f.killed), seconds(f.stopped), seconds(f.middle), seconds(f.cold), f.peak, f.stopPeak, f.coldPeak)
	r, err := c.Finish(ctx, time.Minute, cluster.SettleTime)
	if err != nil {
		return nil, err
	}
	f.messages, f.wrong = r.Sent+r.Said, r.Count()
	if r.Count() > 0 {
		stage.Say("%s", r)
	}
	return f, c.Stop()
}

// kill kills the worker that holds every session, right after a beat of it: others have to wait the longest then.
func kill(ctx context.Context, c *cluster.Cluster, f *figures) error {
	if _, err := c.AwaitConnected(ctx, time.Minute, "w1"); err != nil {
		return err
	}
	if err := c.AwaitBeat(ctx, "w1"); err != nil {
		return err
	}
	at := time.Now()
	c.Process("w1").Kill()
	if _, err := c.AwaitConnected(ctx, 2*time.Minute, "w2", "w3"); err != nil {
		return err
	}
	log, err := c.Log(ctx, 0, "")
	if err != nil {
		return err
	}
	logins := cluster.FirstLogins(log, at, "w1")
	if len(logins) != f.sessions {
		return fmt.Errorf("%d sessions logged in after the kill, want %d", len(logins), f.sessions)
	}
	f.killed, f.peak = cluster.Longest(logins), cluster.PeakHandshakes(log, at)
	return nil
}

// stop brings every session to w3, and then stops w3 while two others stand by.
func stop(ctx context.Context, c *cluster.Cluster, f *figures) error {
	if err := end(ctx, c, "w2"); err != nil {
		return err
	}
	if _, err := c.AwaitConnected(ctx, 2*time.Minute, "w3"); err != nil {
		return err
	}
	if err := errors.Join(c.Restart(ctx, "w1"), c.Restart(ctx, "w2")); err != nil {
		return err
	}
	at := time.Now()
	if err := end(ctx, c, "w3"); err != nil {
		return err
	}
	if _, err := c.AwaitConnected(ctx, 2*time.Minute, "w1", "w2"); err != nil {
		return err
	}
	log, err := c.Log(ctx, 0, "")
	if err != nil {
		return err
	}
	downs := cluster.Downs(log, at)
	if len(downs) != f.sessions {
		return fmt.Errorf("%d sessions moved at the stop, want %d", len(downs), f.sessions)
	}
	f.stopped, f.middle, f.stopPeak = cluster.Longest(downs), cluster.Median(downs), cluster.PeakHandshakes(log, at)
	return nil
}

// coldStart stops every worker and starts three at the same time.
func coldStart(ctx context.Context, c *cluster.Cluster, f *figures) error {
	if err := errors.Join(end(ctx, c, "w1"), end(ctx, c, "w2")); err != nil {
		return err
	}
	at := time.Now()
	for _, name := range []string{"w1", "w2", "w3"} {
		if err := c.Begin(name, ""); err != nil {
			return err
		}
	}
	if _, err := c.AwaitConnected(ctx, 2*time.Minute); err != nil {
		return err
	}
	log, err := c.Log(ctx, 0, "")
	if err != nil {
		return err
	}
	logins := cluster.FirstLogins(log, at, "")
	if len(logins) != f.sessions {
		return fmt.Errorf("%d sessions logged in after the start, want %d", len(logins), f.sessions)
	}
	f.cold, f.coldPeak = cluster.Longest(logins), cluster.PeakHandshakes(log, at)
	return nil
}

func end(ctx context.Context, c *cluster.Cluster, name string) error {
	p := c.Process(name)
	if code, err := p.Stop(syscall.SIGTERM, time.Minute); err != nil || code != 0 {
		return fmt.Errorf("%s ended with %d after SIGTERM: %w (log: %s)", name, code, err, p.LogPath())
	}
	return ctx.Err()
}
