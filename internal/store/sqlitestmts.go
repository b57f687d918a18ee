package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"time"

	"modernc.org/sqlite"
)

// preparedMax bounds what one connection remembers. The gateway and whatsmeow have about 200 texts between them; those
// with a list in them vary.
const preparedMax = 256

var errNoContext = errors.New("sqlite: the driver lost its context methods")

// preparing is a connection to a SQLite file that remembers its prepared statements by their text. The driver parses a
// text anew for every call, which costs more than most of our statements themselves.
type preparing struct {
	sqliteConn
	idle map[string]driver.Stmt // prepared, and nobody reads its rows
	turn chan struct{}          // of the file's writers in this process
	inTx bool
}

// sqliteConn is what the driver's connections can do, all of which must stay visible through the wrapper.
type sqliteConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

var (
	_ driver.Connector = (*fileSource)(nil)
	_ sqliteConn       = (*preparing)(nil)
)

// fileSource connects to one SQLite file. A file has one writer at a time, and SQLite lets the others look again after
// pauses that grow; the writers of this process stand in line instead, and each begins when the one before it is done.
type fileSource struct {
	url  string
	turn chan struct{} // one slot
}

func newFileSource(url string) *fileSource { return &fileSource{url, make(chan struct{}, 1)} }

// Connect implements driver.Connector.
func (f *fileSource) Connect(context.Context) (driver.Conn, error) {
	conn, err := f.Driver().Open(f.url)
	if err != nil {
		return nil, err
	}
	able, ok := conn.(sqliteConn)
	if !ok {
		_ = conn.Close()
		return nil, errNoContext
	}
	return &preparing{sqliteConn: able, idle: map[string]driver.Stmt{}, turn: f.turn}, nil
}

// free returns when nobody in this process writes, or ctx ends. Somebody else may begin at once.
func (f *fileSource) free(ctx context.Context) {
	select {
	case f.turn <- struct{}{}:
		<-f.turn
	case <-ctx.Done():
	}
}

// Driver implements driver.Connector.
func (*fileSource) Driver() driver.Driver { return fileDriver }

// fileDriver tells statements the time of this process. A literal would make every text another one, never prepared yet.
var fileDriver = func() *sqlite.Driver {
	d := &sqlite.Driver{}
	// "Deterministic" lets SQLite ask once per execution, as if the time were a literal, and use an index.
	d.MustRegisterDeterministicScalarFunction("wafleet_now", 0, func(*sqlite.FunctionContext, []driver.Value) (driver.Value, error) {
		return time.Now().UnixMilli(), nil
	})
	return d
}()

// BeginTx implements driver.ConnBeginTx.
func (p *preparing) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	if err := p.await(ctx); err != nil {
		return nil, err
	}
	tx, err := p.sqliteConn.BeginTx(ctx, o)
	if err != nil {
		<-p.turn
		return nil, err
	}
	p.inTx = true
	return &turnTx{tx, p}, nil
}

// await waits for this process's turn to write.
func (p *preparing) await(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// turnTx ends its turn with the transaction.
type turnTx struct {
	tx driver.Tx
	p  *preparing
}

// Commit implements driver.Tx.
func (t *turnTx) Commit() error { return t.end(t.tx.Commit) }

// Rollback implements driver.Tx.
func (t *turnTx) Rollback() error { return t.end(t.tx.Rollback) }

func (t *turnTx) end(f func() error) error {
	err := f()
	if t.p.inTx {
		t.p.inTx = false
		<-t.p.turn
	}
	return err
}

// ExecContext implements driver.ExecerContext.
func (p *preparing) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if !p.inTx {
		if err := p.await(ctx); err != nil {
			return nil, err
		}
		defer func() { <-p.turn }()
	}
	stmt, err := p.take(ctx, query)
	if err != nil {
		return nil, err
	}
	defer p.give(query, stmt)
	exec, ok := stmt.(driver.StmtExecContext)
	if !ok {
		return nil, errNoContext
	}
	return exec.ExecContext(ctx, args)
}

// QueryContext implements driver.QueryerContext.
func (p *preparing) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	stmt, err := p.take(ctx, query)
	if err != nil {
		return nil, err
	}
	ask, ok := stmt.(driver.StmtQueryContext)
	if !ok {
		p.give(query, stmt)
		return nil, errNoContext
	}
	rows, err := ask.QueryContext(ctx, args)
	if err != nil {
		p.give(query, stmt)
		return nil, err
	}
	return &preparedRows{Rows: rows, done: func() { p.give(query, stmt) }}, nil
}

// take returns a statement of this text that nobody uses: two results of one text may be read at the same time.
func (p *preparing) take(ctx context.Context, query string) (driver.Stmt, error) {
	if stmt, ok := p.idle[query]; ok {
		delete(p.idle, query)
		return stmt, nil
	}
	return p.PrepareContext(ctx, query)
}

func (p *preparing) give(query string, stmt driver.Stmt) {
	if _, twice := p.idle[query]; twice || p.idle == nil {
		_ = stmt.Close()
		return
	}
	if len(p.idle) >= preparedMax {
		for old, other := range p.idle { // any: what is used often comes back at once
			delete(p.idle, old)
			_ = other.Close()
			break
		}
	}
	p.idle[query] = stmt
}

// Close implements driver.Conn.
func (p *preparing) Close() error {
	for _, stmt := range p.idle {
		_ = stmt.Close()
	}
	p.idle = nil
	return p.sqliteConn.Close()
}

// preparedRows gives its statement back when it is closed.
type preparedRows struct {
	driver.Rows
	done func()
}

// Next implements driver.Rows.
func (r *preparedRows) Next(dest []driver.Value) error {
	if r.done == nil {
		return io.EOF
	}
	return r.Rows.Next(dest)
}

// Close implements driver.Rows.
func (r *preparedRows) Close() error {
	if r.done == nil {
		return nil
	}
	err := r.Rows.Close()
	r.done()
	r.done = nil
	return err
}
