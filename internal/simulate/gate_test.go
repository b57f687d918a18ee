package simulate

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing/synctest"
	"time"
)

// gate stands between one process and its database. It lets calls through, slows them, holds them, makes single ones
// fail, or lets the process die between two of them.
type gate struct {
	owner string                   // as terms of this process name it
	died  func(rest time.Duration) // told once, before the call that killed it returns; must not wait
	stops func(rest time.Duration) // freezes the process for a while; must not wait

	mu     sync.Mutex    // never held across anything that waits
	frozen chan struct{} // the process stands still: what it was about to ask is asked when it goes on, however late
	cut    chan struct{} // the database doesn't answer: who asks may give up
	slow   time.Duration // what a call takes
	dead   bool
	traps  []*trap
	seen   map[string]int // statements by kind
	writes []fencedWrite
}

// fencedWrite is a statement under a term that changed something.
type fencedWrite struct {
	session string
	epoch   int64
	at      time.Time
	kind    string
}

// trap waits for the n-th statement of a kind.
type trap struct {
	kind  string // "update:messages", or "any"
	left  int
	after bool // the statement takes effect (its transaction commits), and only the answer is lost
	crash bool // the process dies there
	stop  bool // the process stands still there, and goes on as if nothing had happened
	rest  time.Duration
}

var (
	errLost = &net.OpError{Op: "read", Net: "mem", Err: syscall.ECONNRESET}
	errGone = errors.New("the process is gone")
	errIdle = errors.New("the transaction was ended because it did nothing for too long")
)

// idleLimit is how long a frozen process may keep a transaction open before the database ends it.
const idleLimit = 2 * time.Second

func (g *gate) set(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

// freeze holds calls until they are let go: those of a process that stands still, or those to a database that does.
func (g *gate) freeze()  { g.set(func() { g.shut(&g.frozen) }) }
func (g *gate) silence() { g.set(func() { g.shut(&g.cut) }) }
func (g *gate) thaw()    { g.set(func() { release(&g.frozen) }) }
func (g *gate) answer()  { g.set(func() { release(&g.cut) }) }

func (g *gate) shut(c *chan struct{}) {
	if *c == nil && !g.dead {
		*c = make(chan struct{})
	}
}

func release(c *chan struct{}) {
	if *c != nil {
		close(*c)
		*c = nil
	}
}

// kill makes every later call fail without effect.
func (g *gate) kill(rest time.Duration) {
	first := false
	g.set(func() { first, g.dead = !g.dead, true })
	g.thaw()
	g.answer()
	if first && g.died != nil {
		g.died(rest)
	}
}

// pass waits while the process is frozen or the database silent, in an open transaction for idle at most. The context it
// returns is the one to go on with: time does not run out for a process that stands still. (In a transaction it does, or
// database/sql would wait for this call with a mutex, which stops the fake clock.)
func (g *gate) pass(ctx context.Context, idle <-chan time.Time) (context.Context, error) {
	for {
		var frozen, cut chan struct{}
		var slow time.Duration
		dead := false
		g.set(func() { frozen, cut, slow, dead = g.frozen, g.cut, g.slow, g.dead })
		switch {
		case dead:
			return ctx, errGone
		case frozen != nil && idle == nil:
			<-frozen
			ctx = context.WithoutCancel(ctx) //nolint:fatcontext // once for each time it is frozen
		case frozen != nil:
			select {
			case <-frozen:
			case <-idle:
				return ctx, errIdle
			case <-ctx.Done():
				return ctx, ctx.Err()
			}
		case cut != nil:
			select {
			case <-cut:
			case <-idle:
				return ctx, errIdle
			case <-ctx.Done():
				return ctx, ctx.Err()
			}
		case slow > 0:
			t := time.NewTimer(slow)
			defer t.Stop()
			select {
			case <-t.C:
				return ctx, nil
			case <-ctx.Done():
				return ctx, ctx.Err()
			}
		default:
			return ctx, nil
		}
	}
}

// caught returns the trap that this statement steps on.
func (g *gate) caught(q string) (found *trap) {
	kind := kindOf(q)
	g.set(func() {
		g.seen[kind]++
		for i, t := range g.traps {
			if t.kind != kind && t.kind != "any" {
				continue
			}
			if t.left--; t.left > 0 {
				continue
			}
			found = t
			g.traps = append(g.traps[:i:i], g.traps[i+1:]...)
			return
		}
	})
	return found
}

// spring does what the trap is for, once the statement has taken effect or in its place.
func (g *gate) spring(t *trap) error {
	if t.stop {
		g.stops(t.rest)
		_, err := g.pass(context.Background(), nil)
		return err
	}
	if t.crash {
		g.kill(t.rest)
		return errGone
	}
	return errLost
}

// kindOf is the verb and the table of a statement, the writing one where there are several.
func kindOf(q string) string {
	at, kind := len(q), ""
	for _, verb := range []string{"INSERT INTO ", "UPDATE ", "DELETE FROM "} {
		if i := strings.Index(q, verb); i >= 0 && i < at {
			at, kind = i, verb
		}
	}
	if kind == "" {
		if at = strings.Index(q, "FROM "); at < 0 {
			return "other"
		}
		kind = "SELECT"
		at += len("FROM ")
	} else {
		at += len(kind)
		kind, _, _ = strings.Cut(kind, " ")
	}
	table := strings.TrimLeft(q[at:], "( \n\t")
	if i := strings.IndexAny(table, " (,\n\t)"); i >= 0 {
		table = table[:i]
	}
	return strings.ToLower(kind + ":" + table)
}

func (g *gate) wrap(c driver.Connector) driver.Connector { return gatedConnector{c, g} }

type gatedConnector struct {
	driver.Connector
	g *gate
}

func (c gatedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	ctx, err := c.g.pass(ctx, nil)
	if err != nil {
		return nil, err
	}
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &gatedConn{Conn: conn, g: c.g}, nil
}

// gatedConn is used by one goroutine at a time.
type gatedConn struct {
	driver.Conn
	g  *gate
	tx *gatedTx // open now
}

// wait lets the process and the transaction stand still, if they do.
func (c *gatedConn) wait(ctx context.Context) (context.Context, error) {
	if c.tx != nil {
		return c.tx.alive(ctx)
	}
	return c.g.pass(ctx, nil)
}

// before decides about one statement; the trap is for after it.
func (c *gatedConn) before(ctx context.Context, q string) (context.Context, *trap, error) {
	var err error
	if ctx, err = c.wait(ctx); err != nil {
		return ctx, nil, err
	}
	t := c.g.caught(q)
	switch {
	case t == nil:
	case !t.after && t.stop:
		c.g.stops(t.rest)
		ctx, err = c.wait(ctx)
		return ctx, nil, err
	case !t.after:
		return ctx, nil, c.g.spring(t)
	case c.tx != nil:
		c.tx.lose, t = t, nil // the commit's answer is lost
	}
	return ctx, t, nil
}

func (c *gatedConn) ExecContext(ctx context.Context, q string, a []driver.NamedValue) (driver.Result, error) {
	ctx, t, err := c.before(ctx, q)
	if err != nil {
		return nil, err
	}
	res, err := c.Conn.(driver.ExecerContext).ExecContext(ctx, q, a)
	if err != nil {
		return nil, err
	}
	c.note(q, a, res)
	if t != nil {
		err = c.g.spring(t)
	}
	return res, err
}

// note remembers a write whose first arguments are a term of this process. In a transaction it counts at the commit.
func (c *gatedConn) note(q string, a []driver.NamedValue, res driver.Result) {
	if n, err := res.RowsAffected(); len(a) < 3 || err != nil || n == 0 {
		return
	}
	session, _ := a[0].Value.(string)
	owner, _ := a[1].Value.(string)
	epoch, ok := a[2].Value.(int64)
	if !ok || owner != c.g.owner {
		return
	}
	w := fencedWrite{session, epoch, time.Now(), kindOf(q)}
	if c.tx != nil {
		c.tx.writes = append(c.tx.writes, w)
		return
	}
	c.g.set(func() { c.g.writes = append(c.g.writes, w) })
}

func (c *gatedConn) QueryContext(ctx context.Context, q string, a []driver.NamedValue) (driver.Rows, error) {
	ctx, t, err := c.before(ctx, q)
	if err != nil {
		return nil, err
	}
	rows, err := c.Conn.(driver.QueryerContext).QueryContext(ctx, q, a)
	if err != nil || t == nil {
		return rows, err
	}
	if t.stop {
		if err := c.g.spring(t); err != nil {
			_ = rows.Close()
			return nil, err
		}
		return rows, nil
	}
	for values := make([]driver.Value, len(rows.Columns())); err == nil; {
		err = rows.Next(values) // it takes effect when it is read to its end
	}
	if closed := rows.Close(); errors.Is(err, io.EOF) {
		err = closed
	}
	if err == nil {
		err = c.g.spring(t)
	}
	return nil, err
}

func (c *gatedConn) PrepareContext(ctx context.Context, q string) (driver.Stmt, error) {
	ctx, err := c.g.pass(ctx, nil)
	if err != nil {
		return nil, err
	}
	return c.Conn.(driver.ConnPrepareContext).PrepareContext(ctx, q)
}

func (c *gatedConn) Ping(ctx context.Context) error {
	_, err := c.g.pass(ctx, nil)
	return err
}

func (c *gatedConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	ctx, err := c.g.pass(ctx, nil)
	if err != nil {
		return nil, err
	}
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, o)
	if err != nil {
		return nil, err
	}
	c.tx = &gatedTx{Tx: tx, c: c}
	return c.tx, nil
}

type gatedTx struct {
	driver.Tx
	c      *gatedConn
	over   error // the database has ended it
	lose   *trap
	writes []fencedWrite
}

// alive waits while the process is frozen, but ends the transaction where a database would.
func (t *gatedTx) alive(ctx context.Context) (context.Context, error) {
	if t.over != nil {
		return ctx, t.over
	}
	idle := time.NewTimer(idleLimit)
	defer idle.Stop()
	ctx, err := t.c.g.pass(ctx, idle.C)
	if errors.Is(err, errIdle) {
		t.over = errIdle
		_ = t.Tx.Rollback() // the database does it, whatever the process wants
		if _, held := t.c.g.pass(ctx, make(chan time.Time)); held != nil {
			return ctx, held
		}
	}
	return ctx, err
}

func (t *gatedTx) Commit() error {
	_, err := t.alive(context.Background())
	if err != nil {
		_ = t.Rollback()
		return err
	}
	t.c.tx = nil
	if err = t.Tx.Commit(); err != nil {
		return err
	}
	t.c.g.set(func() { t.c.g.writes = append(t.c.g.writes, t.writes...) })
	if t.lose != nil {
		return t.c.g.spring(t.lose)
	}
	return nil
}

// Rollback always takes effect: a database rolls back what a dead process left open.
func (t *gatedTx) Rollback() error {
	t.c.tx = nil
	if t.over != nil {
		return t.over
	}
	return t.Tx.Rollback()
}

// pause lets fake time pass.
func pause(d time.Duration) { time.Sleep(d) }

// settle waits until everybody in the bubble waits.
func settle() { synctest.Wait() }
