package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"

	"github.com/wafleet/wafleet/trials/cluster"
)

// ground is what must be the same on both sides: how safe a commit is, and how many connections a process has for its work.
type ground struct {
	Durability string `json:"durability"`
	Pool       int    `json:"pool"`
}

var poolMetric = regexp.MustCompile(`(?m)^go_sql_max_open_connections\{db_name="work"\} (\d+)$`)

// groundOf asks a process of the gateway: its log and its metrics, both of which tell what its own connections have.
func groundOf(ctx context.Context, p *cluster.Process, ops string) (g ground, err error) {
	if g.Durability, err = p.Find(ctx, `"database is open".* durability="([^"]+)"`); err != nil {
		return g, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, ops+"/metrics", nil)
	if err != nil {
		return g, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return g, err
	}
	defer resp.Body.Close() //nolint:errcheck // it is read to its end
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return g, err
	}
	m := poolMetric.FindSubmatch(raw)
	if m == nil {
		return g, fmt.Errorf("%s/metrics does not tell the pool's size", ops)
	}
	g.Pool, err = strconv.Atoi(string(m[1]))
	return g, err
}

// groundOfPool asks the bare side's own connections, in the words of the gateway's log.
func groundOfPool(ctx context.Context, db *sql.DB, dialect string) (ground, error) {
	g := ground{Pool: db.Stats().MaxOpenConnections}
	var commit, log string
	if dialect != sqlite {
		err := db.QueryRowContext(ctx, `SELECT current_setting('fsync'), current_setting('synchronous_commit')`).Scan(&commit, &log)
		g.Durability = "fsync=" + commit + " synchronous_commit=" + log
		return g, err
	}
	err := db.QueryRowContext(ctx, `PRAGMA synchronous`).Scan(&commit)
	if err == nil {
		err = db.QueryRowContext(ctx, `PRAGMA journal_mode`).Scan(&log)
	}
	g.Durability = "synchronous=" + commit + " journal_mode=" + log
	return g, err
}
