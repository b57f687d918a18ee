// Command idle watches a fleet in which nothing happens: 1,000 connected sessions on PostgreSQL for a minute. Only beats
// may be written. It says what they cost: bytes of write-ahead log, processor time of the database and of the gateway.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

// The goals. A beat renews a lease in place: the lock and the new version of its row take less than 200 bytes of log. The
// bare library spends 30 µs a second on an idle session, for keepalives; the gateway may spend as much again, and its four
// processes a hundredth of a core on looks that find nothing. The database may spend 10 ms a second on beats of a thousand
// rows, and as much on those looks.
const (
	walPerRow      = 256      // bytes
	walBeside      = 64 << 10 // bytes a minute for the rows of workers and schedules, and for the server itself
	gatewayPerIdle = 60 * time.Microsecond
	gatewayBeside  = 10 * time.Millisecond
	databaseGoal   = 20 * time.Millisecond
)

const (
	window = time.Minute
	beat   = 10 * time.Second // the default
	quiet  = 80 * time.Second // an open is called stable after a minute, which is written
)

// beats are the tables that an idle fleet writes: leases and workers with each beat, and the slots of periodic jobs.
var beats = []string{"leases", "workers", "schedules"}

func main() { cluster.Main("bench-idle", run) }

func run(ctx context.Context) error {
	sessions := 1000
	if text := os.Getenv("SESSIONS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("SESSIONS=%q is not a number above 0", text)
		}
		sessions = n
	}
	dir, remove, err := cluster.Folder("idle")
	if err != nil {
		return err
	}
	defer remove()
	pg, err := cluster.StartPostgres(ctx, cluster.PostgresOptions{Dir: dir, Settings: map[string]string{
		// What the server does by itself is not the gateway's: after the pairings it would vacuum and write checkpoints.
		"autovacuum": "off", "checkpoint_timeout": "1h",
	}})
	if err != nil {
		return err
	}
	defer pg.Close()
	redis, err := cluster.StartRedis(ctx, cluster.RedisOptions{Dir: dir})
	if err != nil {
		return err
	}
	defer redis.Close()
	binary, err := cluster.Build(ctx, dir)
	if err != nil {
		return err
	}
	database, err := pg.CreateDatabase(ctx, "idle")
	if err != nil {
		return err
	}
	c, err := cluster.Start(ctx, cluster.Options{
		Binary: binary, Dir: dir, Database: database, Redis: redis.URL(), Workers: 1,
		Settings: []string{fmt.Sprintf("WORKER_MAX_SESSIONS=%d", sessions), "LEASE_TTL=30s", "LEASE_BEAT=" + beat.String()},
	})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Pair(ctx, sessions); err != nil {
		return err
	}
	if err := cluster.Pause(ctx, quiet); err != nil {
		return err
	}
	// The first write of a page after a checkpoint logs the whole page: let that be over.
	if _, err := c.DB.ExecContext(ctx, `CHECKPOINT`); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if err := cluster.Pause(ctx, 2*beat); err != nil {
		return err
	}
	before, err := look(ctx, c, pg)
	if err != nil {
		return err
	}
	if err := cluster.Pause(ctx, window); err != nil {
		return err
	}
	after, err := look(ctx, c, pg)
	if err != nil {
		return err
	}
	return judge(sessions, after.since(before))
}

// state is what the counters say at a moment, or how they differ between two.
type state struct {
	at       time.Time
	wal      int64
	database time.Duration            // processor time of all the server's processes
	gateway  map[string]time.Duration // by process
	written  map[string]int64         // rows inserted, updated and deleted, by table
	commits  int64
}

func look(ctx context.Context, c *cluster.Cluster, pg *cluster.Postgres) (s state, err error) {
	s = state{at: time.Now(), gateway: map[string]time.Duration{}, written: map[string]int64{}}
	err = c.DB.QueryRowContext(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint, (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database())`).Scan(&s.wal, &s.commits)
	if err != nil {
		return s, fmt.Errorf("read counters: %w", err)
	}
	if s.written, err = written(ctx, c.DB); err != nil {
		return s, err
	}
	if s.database, err = pg.CPU(); err != nil {
		return s, err
	}
	for _, name := range c.Names() {
		if name == "sim" {
			continue
		}
		if s.gateway[name], err = c.Process(name).CPU(); err != nil {
			return s, err
		}
	}
	return s, nil
}

func written(ctx context.Context, db *sql.DB) (map[string]int64, error) {
	rows, err := db.QueryContext(ctx, `SELECT relname, n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_user_tables`)
	if err != nil {
		return nil, fmt.Errorf("read table counters: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err says it
	all := map[string]int64{}
	for rows.Next() {
		var table string
		var n int64
		if err := rows.Scan(&table, &n); err != nil {
			return nil, fmt.Errorf("read table counters: %w", err)
		}
		all[table] = n
	}
	return all, rows.Err()
}

func (s state) since(before state) state {
	d := state{wal: s.wal - before.wal, database: s.database - before.database, commits: s.commits - before.commits, gateway: map[string]time.Duration{}, written: map[string]int64{}}
	for name, cpu := range s.gateway {
		d.gateway[name] = cpu - before.gateway[name]
	}
	for table, n := range s.written {
		if n != before.written[table] {
			d.written[table] = n - before.written[table]
		}
	}
	return d
}

func judge(sessions int, d state) error {
	var gateway time.Duration
	for _, name := range slices.Sorted(maps.Keys(d.gateway)) {
		fmt.Printf("  CPU of %-10s %v\n", name, d.gateway[name].Round(10*time.Millisecond))
		gateway += d.gateway[name]
	}
	var other []string
	for _, table := range slices.Sorted(maps.Keys(d.written)) {
		fmt.Printf("  rows written in %-12s %d\n", table, d.written[table])
		if !slices.Contains(beats, table) {
			other = append(other, table)
		}
	}
	fmt.Printf("  transactions %.1f a second\n", float64(d.commits)/window.Seconds())

	rows := d.written["leases"]
	most := int64(sessions) * (int64(window/beat) + 1)
	walGoal := rows*walPerRow + walBeside
	gatewayGoal := gatewayBeside + time.Duration(sessions)*gatewayPerIdle
	perSecond := func(d time.Duration) time.Duration { return d / (window / time.Second) }
	what := "beats only"
	if len(other) > 0 {
		what = "not only beats but " + strings.Join(other, ", ")
	}
	fmt.Printf("bench-idle: %d idle sessions write %s (goal: beats only), %d lease rows a minute (goal ≤ %d), %d bytes of WAL (goal ≤ %d); a second takes %s of the database's CPU (goal ≤ %s) and %s of the gateway's (goal ≤ %s)\n",
		sessions, what, rows, most, d.wal, walGoal, perSecond(d.database).Round(100*time.Microsecond), databaseGoal, perSecond(gateway).Round(100*time.Microsecond), gatewayGoal)
	if len(other) > 0 || rows == 0 || rows > most || d.wal > walGoal || perSecond(d.database) > databaseGoal || perSecond(gateway) > gatewayGoal {
		return cluster.ErrShort
	}
	return nil
}
