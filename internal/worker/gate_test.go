package worker

import (
	"context"
	"database/sql/driver"
	"errors"
	"strings"
	"sync"
)

// gate stands between a process and its database: it lets calls through, holds them, or fails them.
type gate struct {
	mu   sync.Mutex
	hold chan struct{} // nil: calls pass
	err  error
	lose string // the transaction that runs a statement with this in it …
	lost bool   // … commits, and nobody hears of it
	full bool   // the disk is: the file can't grow
}

// fill makes the database's disk full: SQLite refuses every new page. Not so full that it refuses what fits.
func (g *gate) fill(full bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.full = full
}

// loseCommit loses the answer to the commit of the next transaction that runs such a statement.
func (g *gate) loseCommit(statement string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lose = statement
}

func (g *gate) saw(q string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lose != "" && strings.Contains(q, g.lose) {
		g.lose, g.lost = "", true
	}
}

var errAnswerLost = errors.New("the commit's answer was lost")

type gatedTx struct {
	driver.Tx
	g *gate
}

func (t gatedTx) Commit() error {
	err := t.Tx.Commit()
	t.g.mu.Lock()
	defer t.g.mu.Unlock()
	if t.g.lost {
		t.g.lost, err = false, errAnswerLost
	}
	return err
}

func (g *gate) freeze() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.hold == nil {
		g.hold = make(chan struct{})
	}
}

func (g *gate) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = err
	if g.hold != nil {
		close(g.hold)
		g.hold = nil
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.hold != nil {
		close(g.hold)
		g.hold = nil
	}
}

func (g *gate) pass(ctx context.Context) error {
	for {
		g.mu.Lock()
		hold, err := g.hold, g.err
		g.mu.Unlock()
		if err != nil {
			return err
		}
		if hold == nil {
			return nil
		}
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (g *gate) wrap(c driver.Connector) driver.Connector { return gatedConnector{c, g} }

type gatedConnector struct {
	driver.Connector
	g *gate
}

func (c gatedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	if err := c.g.pass(ctx); err != nil {
		return nil, err
	}
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &gatedConn{Conn: conn, g: c.g}, nil
}

type gatedConn struct {
	driver.Conn
	g    *gate
	full bool // this connection knows that the disk is
}

// pass waits for the gate and tells the connection how large its file may be.
func (c *gatedConn) pass(ctx context.Context) error {
	if err := c.g.pass(ctx); err != nil {
		return err
	}
	c.g.mu.Lock()
	full := c.g.full
	c.g.mu.Unlock()
	if full == c.full {
		return nil
	}
	limit := "PRAGMA max_page_count=1" // never less than it has
	if !full {
		limit = "PRAGMA max_page_count=1073741823"
	}
	rows, err := c.Conn.(driver.QueryerContext).QueryContext(ctx, limit, nil)
	if err != nil {
		return err
	}
	c.full = full
	return rows.Close()
}

func (c *gatedConn) ExecContext(ctx context.Context, q string, a []driver.NamedValue) (driver.Result, error) {
	if err := c.pass(ctx); err != nil {
		return nil, err
	}
	c.g.saw(q)
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, q, a)
}

func (c *gatedConn) QueryContext(ctx context.Context, q string, a []driver.NamedValue) (driver.Rows, error) {
	if err := c.pass(ctx); err != nil {
		return nil, err
	}
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, q, a)
}

func (c *gatedConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	if err := c.pass(ctx); err != nil {
		return nil, err
	}
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, o)
	return gatedTx{tx, c.g}, err
}

func (c *gatedConn) PrepareContext(ctx context.Context, q string) (driver.Stmt, error) {
	if err := c.pass(ctx); err != nil {
		return nil, err
	}
	return c.Conn.(driver.ConnPrepareContext).PrepareContext(ctx, q)
}

func (c *gatedConn) Ping(ctx context.Context) error { return c.g.pass(ctx) }
