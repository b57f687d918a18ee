// Command api measures how fast the API accepts messages: 32 closed-loop clients, beside pgbench with as many that runs the
// transactions of one such request, statement by statement as the server saw them, on the same server. Nothing else runs
// meanwhile: the worker, whose session the messages are for, is frozen under a long lease.
//
//	MESSAGES=10000 go run ./trials/api
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/wafleet/wafleet/trials/cluster"
)

const (
	clients = 32
	pool    = 16  // connections of the API, and of pgbench
	goal    = 0.5 // of pgbench's rate
)

func main() { cluster.Main("bench-api", run) }

func run(ctx context.Context) error {
	messages := 10_000
	if text := os.Getenv("MESSAGES"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 100 {
			return fmt.Errorf("MESSAGES=%q is not a number from 100", text)
		}
		messages = n
	}
	dir, remove, err := cluster.Folder("api")
	if err != nil {
		return err
	}
	defer remove()
	binary, err := cluster.Build(ctx, dir)
	if err != nil {
		return err
	}
	pg, err := cluster.StartPostgres(ctx, cluster.PostgresOptions{Dir: dir, Settings: map[string]string{"max_wal_size": "4GB", "checkpoint_timeout": "30min"}})
	if err != nil {
		return err
	}
	defer pg.Close()
	database, err := pg.CreateDatabase(ctx, "trial")
	if err != nil {
		return err
	}
	redis, err := cluster.StartRedis(ctx, cluster.RedisOptions{Dir: dir})
	if err != nil {
		return err
	}
	defer redis.Close()
	c, err := cluster.Start(ctx, cluster.Options{
		Binary: binary, Dir: dir, Database: database, Redis: redis.URL(), Workers: 1,
		Settings: []string{"LEASE_TTL=10m", "LEASE_BEAT=1m", "DATABASE_POOL_MAX=" + strconv.Itoa(pool)},
	})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Pair(ctx, 1); err != nil {
		return err
	}
	if err := c.Process("w1").Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for _, name := range []string{"webhooks", "scheduler"} {
		c.Process(name).Kill()
	}

	var words []string
	short := false
	for _, keyed := range []bool{false, true} {
		name := "no key"
		if keyed {
			name = "Idempotency-Key"
		}
		one, err := capture(ctx, c, pg, keyed)
		if err != nil {
			return fmt.Errorf("capture the statements of a request: %w", err)
		}
		_, _ = fmt.Fprintf(os.Stdout, "\n%s: %d statements a request\n", name, len(one.statements))
		bench, err := one.bench(ctx, dir, pg, messages/clients)
		if err != nil {
			return err
		}
		api, err := post(ctx, c, keyed, messages)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(os.Stdout, "  pgbench %6.0f/s, mean %.1f ms\n  API     %6.0f/s, p50 %.1f ms, p99 %.1f ms, %.2f ms of processor time a message\n",
			bench.rate, bench.meanMS, api.rate, api.p50MS, api.p99MS, api.cpuMS)
		words = append(words, fmt.Sprintf("%s %.0f/s (p50 %.1f ms, p99 %.1f ms) = %.2f× pgbench", name, api.rate, api.p50MS, api.p99MS, api.rate/bench.rate))
		short = short || api.rate < goal*bench.rate
	}
	_, _ = fmt.Fprintf(os.Stdout, "\nbench-api: accepted with %s (goal ≥ %.1f×)\n", strings.Join(words, ", with "), goal)
	if short {
		return cluster.ErrShort
	}
	return nil
}
