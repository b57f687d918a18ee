// Command start measures a restart of the gateway with 50 sessions in one process on SQLite: how long until it answers
// over HTTP, how long until every session is logged in again, and how much memory it takes when they rest, beside bare
// whatsmeow with the same sessions.
package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
	"github.com/wafleet/wafleet/trials/sides"
)

// The goals.
const (
	readyGoal  = 150 * time.Millisecond
	onlineGoal = time.Second
	memoryGoal = 15 << 20 // bytes above the bare process
)

const (
	sessions = 50
	restarts = 7
	rest     = 30 * time.Second
)

func main() { cluster.Main("bench-start", run) }

func run(ctx context.Context) error {
	dir, remove, err := cluster.Folder("start")
	if err != nil {
		return err
	}
	defer remove()
	b, err := sides.Open(ctx, dir)
	if err != nil {
		return err
	}
	defer b.Close()
	if err := b.Pair(ctx, sessions); err != nil {
		return err
	}
	bare, err := measure(ctx, b, b.StartBare, rest)
	if err != nil {
		return err
	}
	fmt.Printf("bare: online after %s, at rest %.1f MiB resident (%.1f of it anonymous), CPU %s\n",
		bare.online.Round(time.Millisecond), mib(bare.RSS), mib(bare.Anonymous), bare.cpu.Round(10*time.Millisecond))
	var all []figures
	for i := range restarts {
		pause := time.Duration(0)
		if i == restarts-1 {
			pause = rest
		}
		f, err := measure(ctx, b, b.StartGateway, pause)
		if err != nil {
			return err
		}
		fmt.Printf("gateway: ready after %s, online after %s, CPU %s\n", f.ready.Round(time.Millisecond), f.online.Round(time.Millisecond), f.cpu.Round(10*time.Millisecond))
		all = append(all, f)
	}
	last := all[restarts-1]
	fmt.Printf("gateway at rest: %.1f MiB resident (%.1f of it anonymous)\n", mib(last.RSS), mib(last.Anonymous))

	ready := median(all, func(f figures) time.Duration { return f.ready })
	online := median(all, func(f figures) time.Duration { return f.online })
	more := last.RSS - bare.RSS
	fmt.Printf("bench-start: HTTP ready %s after the start (goal < %s), %d sessions online after %s (goal < %s), bare + %.1f MiB at rest (goal ≤ %d MiB)\n",
		ready.Round(time.Millisecond), readyGoal, sessions, online.Round(time.Millisecond), onlineGoal, mib(more), memoryGoal>>20)
	if ready >= readyGoal || online >= onlineGoal || more > memoryGoal {
		return cluster.ErrShort
	}
	return nil
}

// figures of one start.
type figures struct {
	sides.Vitals
	ready, online, cpu time.Duration
}

// measure starts a side, waits until its sessions are online and have rested, and stops it again.
func measure(ctx context.Context, b *sides.Bench, start func(context.Context) (*sides.Side, error), rest time.Duration) (f figures, err error) {
	s, err := start(ctx)
	if err != nil {
		return f, err
	}
	f.ready = s.Ready
	if err := b.AwaitOnline(ctx, time.Minute); err != nil {
		return f, err
	}
	f.online = time.Since(s.Started)
	if f.cpu, err = s.CPU(); err != nil {
		return f, err
	}
	if err := cluster.Pause(ctx, rest); err != nil {
		return f, err
	}
	if f.Vitals, err = s.Vitals(ctx); err != nil {
		return f, err
	}
	return f, s.End()
}

func median(all []figures, of func(figures) time.Duration) time.Duration {
	values := make([]time.Duration, len(all))
	for i, f := range all {
		values[i] = of(f)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }
