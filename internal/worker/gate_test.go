package worker

import (
	"context"
	"database/sql/driver"
	"errors"
	"strings"
	"sync"
	"time"
)

// gate stands between a process and its database: it lets calls through, holds them, or fails them.
type gate struct {
	mu   sync.Mutex
	hold chan struct{} // nil: calls pass
	err  error
	only string // err is for statements with this in them; "" = for every call
	lose string // the transaction that runs a statement with this in it …
	lost bool   // … commits, and nobody hears of it
	full bool   // the disk is: the file can't grow
	trip trip
	slow time.Duration // every call takes so long
}

// fill makes the database's disk full: SQLite refuses every new page. Not so full that it refuses what fits.
func (g *gate) fill(full bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.full = full
}

// trip is something to happen in place of the n-th call of a kind.
type trip struct {
	statement string // calls with this in them; "" = every one. Begin and commit count as BEGIN and COMMIT
	left      int
	then      func() // must make the gate fail
}

// onCall has then happen in place of the n-th call from now on that has the statement in it.
func (g *gate) onCall(n int, statement string, then func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.trip = trip{statement, n, then}
}

// untripped reports whether onCall still waits for its call.
func (g *gate) untripped() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.trip.left > 0
}

// failOnly makes the statements with this in them fail until fail is called.
func (g *gate) failOnly(statement string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.only, g.err = statement, err
}

func (g *gate) setSlow(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.slow = d
}

// step counts a call, and has happen what should in its place.
func (g *gate) step(q string) {
	g.mu.Lock()
	var then func()
	if g.trip.left > 0 && strings.Contains(q, g.trip.statement) {
		if g.trip.left--; g.trip.left == 0 {
			then = g.trip.then
		}
	}
	g.mu.Unlock()
	if then != nil {
		then()
	}
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
	t.g.step("COMMIT")
	if t.g.failing() != nil {
		return errors.Join(t.g.failing(), t.Rollback())
	}
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
	g.only, g.err = "", err
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

func (g *gate) failing() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.only != "" {
		return nil
	}
	return g.err
}

func (g *gate) pass(ctx context.Context, q string) error {
	g.step(q)
	for {
		g.mu.Lock()
		hold, err, slow := g.hold, g.err, g.slow
		if !strings.Contains(q, g.only) {
			err = nil
		}
		g.mu.Unlock()
		if slow > 0 {
			select {
			case <-time.After(slow):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
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
	if err := c.g.pass(ctx, "CONNECT"); err != nil {
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
func (c *gatedConn) pass(ctx context.Context, q string) error {
	if err := c.g.pass(ctx, q); err != nil {
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
	if err := c.pass(ctx, q); err != nil {
		return nil, err
	}
	c.g.saw(q)
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, q, a)
}

func (c *gatedConn) QueryContext(ctx context.Context, q string, a []driver.NamedValue) (driver.Rows, error) {
	if err := c.pass(ctx, q); err != nil {
		return nil, err
	}
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, q, a)
}

func (c *gatedConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	if err := c.pass(ctx, "BEGIN"); err != nil {
		return nil, err
	}
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, o)
	return gatedTx{tx, c.g}, err
}

func (c *gatedConn) PrepareContext(ctx context.Context, q string) (driver.Stmt, error) {
	if err := c.pass(ctx, "PREPARE"); err != nil {
		return nil, err
	}
	return c.Conn.(driver.ConnPrepareContext).PrepareContext(ctx, q)
}

func (c *gatedConn) Ping(ctx context.Context) error { return c.g.pass(ctx, "PING") }
