// Command route measures how fast the ledger decides: which of 1, 10 or 100 numbers sends, with three sliding windows,
// four token buckets, backlog, quota, new chats, health and affinity, taken in one step. Beside it, on the same server and
// in turns, runs the form that the budgets were first written down in: counters of fixed windows, read, decided on by the
// client, and raised in a MULTI.
//
//	SECONDS=1 ROUNDS=5 go run ./trials/route
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/wafleet/wafleet/internal/ledger"
	"github.com/wafleet/wafleet/trials/cluster"
)

// Goals at 100 candidates.
const (
	goalOne    = 1.5 // × MULTI, one client
	goalP99    = 3 * time.Millisecond
	goalMany   = 1.0    // × MULTI, eight clients
	goalMemory = 50_000 // decisions per second
)

func main() { cluster.Main("bench-route", run) }

// decider takes one decision for a person who was never written to.
type decider func(ctx context.Context, person int64) error

// figure is one run of one decider.
type figure struct {
	rate     float64
	p50, p99 time.Duration
}

func run(ctx context.Context) error {
	seconds, err := setting("SECONDS", 1)
	if err != nil {
		return err
	}
	rounds, err := setting("ROUNDS", 5)
	if err != nil {
		return err
	}
	dir, remove, err := cluster.Folder("route")
	if err != nil {
		return err
	}
	defer remove()
	redis, err := cluster.StartRedis(ctx, cluster.RedisOptions{Dir: dir})
	if err != nil {
		return err
	}
	defer redis.Close()

	between, err := ledger.NewRedis(ledger.RedisOptions{URL: redis.URL(), Prefix: "bench:"}) //nolint:contextcheck // it lives until Close
	if err != nil {
		return err
	}
	defer between.Close()
	within := ledger.NewMemory(ledger.Options{})
	defer within.Close()
	versions := map[ledger.Ledger]ledger.Version{}
	for _, l := range []ledger.Ledger{between, within} {
		if versions[l], err = l.Version(ctx, "org-a"); err != nil {
			return err
		}
		if err := l.Warm(ctx); err != nil {
			return err
		}
	}
	if err := cluster.Pause(ctx, 2*time.Second); err != nil { // token buckets begin empty
		return err
	}
	multi := newMulti(redis.Addr())
	defer multi.close()

	names := []string{"MULTI", "Redis", "memory"}
	_, _ = fmt.Fprintf(os.Stdout, "%-10s %-7s", "candidates", "clients")
	for _, name := range names {
		_, _ = fmt.Fprintf(os.Stdout, "  %-32s", name+": decisions/s (p50, p99)")
	}
	_, _ = fmt.Fprintln(os.Stdout, "  Redis/MULTI")
	last := map[int][]figure{}
	for _, n := range []int{1, 10, 100} {
		for _, clients := range []int{1, 8} {
			sides := []decider{multi.decider(n), ask(between, versions[between], n), ask(within, versions[within], n)}
			medians, err := compare(ctx, sides, clients, rounds, time.Duration(seconds)*time.Second)
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintf(os.Stdout, "%-10d %-7d", n, clients)
			for _, f := range medians {
				_, _ = fmt.Fprintf(os.Stdout, "  %-32s", f)
			}
			_, _ = fmt.Fprintf(os.Stdout, "  %.2f×\n", medians[1].rate/medians[0].rate)
			last[clients] = medians
		}
	}
	one, many := last[1], last[8]
	rOne, rMany := one[1].rate/one[0].rate, many[1].rate/many[0].rate
	memory := min(one[2].rate, many[2].rate)
	_, _ = fmt.Fprintf(os.Stdout, "\nbench-route: at 100 candidates 1 client %.2f× MULTI (goal ≥ %.1f×) with p99 %s (goal ≤ %s), 8 clients %.2f× (goal ≥ %.1f×), memory %.0f/s (goal ≥ %d/s)\n",
		rOne, goalOne, ms(one[1].p99), ms(goalP99), rMany, goalMany, memory, goalMemory)
	if rOne < goalOne || one[1].p99 > goalP99 || rMany < goalMany || memory < goalMemory {
		return cluster.ErrShort
	}
	return nil
}

func setting(name string, or int) (int, error) {
	text := os.Getenv(name)
	if text == "" {
		return or, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%s=%q is not a number from 1", name, text)
	}
	return n, nil
}

// person makes recipients that no run has seen before, so that none is pinned: a pinned one is a decision about one number.
var person struct {
	sync.Mutex
	n int64
}

func people(n int64) int64 {
	person.Lock()
	defer person.Unlock()
	person.n += n
	return person.n - n
}

// compare runs the sides in turns and gives each one's median round by its rate.
func compare(ctx context.Context, sides []decider, clients, rounds int, length time.Duration) ([]figure, error) {
	all := make([][]figure, len(sides))
	for round := range rounds + 1 {
		for i, side := range sides {
			f, err := measure(ctx, side, clients, length)
			if err != nil {
				return nil, err
			}
			if round > 0 { // the first warms up
				all[i] = append(all[i], f)
			}
		}
	}
	medians := make([]figure, len(sides))
	for i, figures := range all {
		slices.SortFunc(figures, func(a, b figure) int { return int(a.rate - b.rate) })
		medians[i] = figures[len(figures)/2]
	}
	return medians, nil
}

// measure lets clients decide in closed loops.
func measure(ctx context.Context, side decider, clients int, length time.Duration) (figure, error) {
	var wait sync.WaitGroup
	took := make([][]time.Duration, clients)
	failed := make([]error, clients)
	begun := time.Now()
	for c := range clients {
		wait.Go(func() {
			for n := int64(0); time.Since(begun) < length; {
				const block = 1000
				if n%block == 0 {
					n = people(block)
				}
				at := time.Now()
				if err := side(ctx, n); err != nil {
					failed[c] = err
					return
				}
				took[c] = append(took[c], time.Since(at))
				n++
			}
		})
	}
	wait.Wait()
	all := slices.Concat(took...)
	if err := errors.Join(failed...); err != nil || len(all) == 0 {
		return figure{}, errors.Join(err, fmt.Errorf("%d decisions", len(all)))
	}
	rate := float64(len(all)) / time.Since(begun).Seconds()
	slices.Sort(all)
	return figure{rate: rate, p50: all[len(all)/2], p99: all[len(all)*99/100]}, nil
}

func (f figure) String() string {
	return fmt.Sprintf("%8.0f (%s, %s)", f.rate, strings.TrimSuffix(ms(f.p50), " ms"), ms(f.p99))
}

func ms(d time.Duration) string { return fmt.Sprintf("%.3f ms", float64(d)/float64(time.Millisecond)) }
