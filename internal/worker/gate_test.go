package worker

import (
	"context"
	"database/sql/driver"
	"sync"
)

// gate stands between a process and its database: it lets calls through, holds them, or fails them.
type gate struct {
	mu   sync.Mutex
	hold chan struct{} // nil: calls pass
	err  error
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
	return gatedConn{conn, c.g}, nil
}

type gatedConn struct {
	driver.Conn
	g *gate
}

func (c gatedConn) ExecContext(ctx context.Context, q string, a []driver.NamedValue) (driver.Result, error) {
	if err := c.g.pass(ctx); err != nil {
		return nil, err
	}
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, q, a)
}

func (c gatedConn) QueryContext(ctx context.Context, q string, a []driver.NamedValue) (driver.Rows, error) {
	if err := c.g.pass(ctx); err != nil {
		return nil, err
	}
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, q, a)
}

func (c gatedConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	if err := c.g.pass(ctx); err != nil {
		return nil, err
	}
	return c.Conn.(driver.ConnBeginTx).BeginTx(ctx, o)
}

func (c gatedConn) PrepareContext(ctx context.Context, q string) (driver.Stmt, error) {
	if err := c.g.pass(ctx); err != nil {
		return nil, err
	}
	return c.Conn.(driver.ConnPrepareContext).PrepareContext(ctx, q)
}

func (c gatedConn) Ping(ctx context.Context) error { return c.g.pass(ctx) }
