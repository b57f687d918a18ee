package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wafleet/wafleet/trials/cluster"
)

// cpu reads the processor time of a process so far.
type cpu func() (time.Duration, error)

// meter reads what one side has used so far: its processes and, on PostgreSQL, the backends of its database and what
// the server counted.
type meter struct {
	processes map[string]cpu // by name
	database  string         // "" on SQLite
	admin     *pgx.Conn      // to another database of the server; nil on SQLite
}

// cost is what a side used, or the difference of two of them.
type cost struct {
	cpu        map[string]time.Duration // by process; the backends together are "postgres"
	backends   map[int]time.Duration
	writes     int64 // transactions that wrote
	wal        int64 // bytes
	statements map[string]statement
}

// statement is what pg_stat_statements says of one text.
type statement struct {
	calls int64
	time  time.Duration
}

const postgres = "postgres"

func (m *meter) read(ctx context.Context) (cost, error) {
	c := cost{cpu: map[string]time.Duration{}, backends: map[int]time.Duration{}, statements: map[string]statement{}}
	for name, read := range m.processes {
		used, err := read()
		if err != nil {
			return c, fmt.Errorf("processor time of %s: %w", name, err)
		}
		c.cpu[name] = used
	}
	if m.admin == nil {
		return c, nil
	}
	found, err := m.admin.Query(ctx, `SELECT pid FROM pg_stat_activity WHERE datname=$1 AND backend_type='client backend'`, m.database)
	if err != nil {
		return c, fmt.Errorf("backends of %s: %w", m.database, err)
	}
	pids, err := pgx.CollectRows(found, pgx.RowTo[int])
	if err != nil {
		return c, fmt.Errorf("backends of %s: %w", m.database, err)
	}
	for _, pid := range pids {
		if used, err := cluster.CPUOf(pid); err == nil { // it may just have left
			c.backends[pid] = used
		}
	}
	err = m.admin.QueryRow(ctx, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_wal_insert_lsn()-'0/0'::pg_lsn`).Scan(&c.writes, &c.wal)
	if err != nil {
		return c, fmt.Errorf("counters of the server: %w", err)
	}
	rows, err := m.admin.Query(ctx, `SELECT s.query, s.calls, s.total_exec_time FROM pg_stat_statements s JOIN pg_database d ON d.oid=s.dbid WHERE d.datname=$1`, m.database)
	if err != nil {
		return c, fmt.Errorf("statements of %s: %w", m.database, err)
	}
	for rows.Next() {
		var text string
		var calls int64
		var ms float64
		if err := rows.Scan(&text, &calls, &ms); err != nil {
			return c, fmt.Errorf("statements of %s: %w", m.database, err)
		}
		text = strings.Join(strings.Fields(text), " ")
		had := c.statements[text]
		c.statements[text] = statement{had.calls + calls, had.time + time.Duration(ms*float64(time.Millisecond))}
	}
	return c, rows.Err()
}

// still reads what the side has used once it has come to rest: when it takes next to nothing any more.
func (m *meter) still(ctx context.Context) (cost, error) {
	const pause, rest = 300 * time.Millisecond, 20 * time.Millisecond
	before, err := m.read(ctx)
	for range 50 {
		if err == nil {
			err = cluster.Pause(ctx, pause)
		}
		if err != nil {
			return before, err
		}
		var now cost
		if now, err = m.read(ctx); err == nil && now.since(before).total() < rest {
			return now, nil
		}
		before = now
	}
	return before, err
}

// since is what was used between an earlier reading and this one.
func (c cost) since(before cost) cost {
	d := cost{cpu: map[string]time.Duration{}, statements: map[string]statement{}, writes: c.writes - before.writes, wal: c.wal - before.wal}
	for name, used := range c.cpu {
		d.cpu[name] = used - before.cpu[name]
	}
	for pid, used := range c.backends {
		d.cpu[postgres] += used - before.backends[pid]
	}
	for text, s := range c.statements {
		if calls := s.calls - before.statements[text].calls; calls > 0 {
			d.statements[text] = statement{calls, s.time - before.statements[text].time}
		}
	}
	return d
}

// total is the processor time of all.
func (c cost) total() time.Duration {
	var sum time.Duration
	for _, used := range c.cpu {
		sum += used
	}
	return sum
}

func (c cost) roundTrips() int64 {
	var sum int64
	for _, s := range c.statements {
		sum += s.calls
	}
	return sum
}

// dearest lists the statements that cost most.
func (c cost) dearest(n int) []string {
	texts := make([]string, 0, len(c.statements))
	for text := range c.statements {
		texts = append(texts, text)
	}
	slices.SortFunc(texts, func(a, b string) int { return int(c.statements[b].time - c.statements[a].time) })
	return texts[:min(n, len(texts))]
}
