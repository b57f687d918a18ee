package wa

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wafleet/wafleet/internal/plant"
)

// A write that WhatsApp's side does not take for so long means that the connection is dead.
const writeTimeout = 30 * time.Second

var errShut = errors.New("this generation has ended")

// gate is the last thing between a generation and the network. Nothing is dialled and nothing is written once the term
// has ended or the generation is over: a login writes nothing to the database, so the fence there can't stop it.
type gate struct {
	valid   func() error // nil = always valid
	invalid func(error)  // told the first error of valid
	seen    func()       // told about every read that brought something

	lost     chan struct{} // closed when a main connection is gone
	lostOnce sync.Once
	badOnce  sync.Once

	mu    sync.Mutex // never held across anything that waits
	shut  bool
	conns map[*gatedConn]struct{}
}

func newGate(valid func() error, invalid func(error), seen func()) *gate {
	return &gate{valid: valid, invalid: invalid, seen: seen, lost: make(chan struct{}), conns: map[*gatedConn]struct{}{}}
}

func (g *gate) closed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shut
}

func (g *gate) check() error {
	if g.closed() {
		return errShut
	}
	if g.valid == nil || plant.NoLastGate {
		return nil
	}
	if err := g.valid(); err != nil {
		g.badOnce.Do(func() { g.invalid(err) })
		return err
	}
	return nil
}

// dialer wraps dial. main marks the connection whose end is the end of the generation; media connections are not.
func (g *gate) dialer(dial DialFunc, main bool) DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if err := g.check(); err != nil {
			return nil, err
		}
		raw, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c := &gatedConn{Conn: raw, gate: g, main: main}
		if err := g.add(c); err != nil {
			_ = raw.Close()
			return nil, err
		}
		if err := g.check(); err != nil { // dialling takes time
			_ = c.Close()
			return nil, err
		}
		return c, nil
	}
}

func (g *gate) add(c *gatedConn) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return errShut
	}
	g.conns[c] = struct{}{}
	return nil
}

func (g *gate) gone(c *gatedConn) {
	g.mu.Lock()
	delete(g.conns, c)
	g.mu.Unlock()
	if c.main {
		g.lostOnce.Do(func() { close(g.lost) })
	}
}

// close refuses everything from now on and closes what is open.
func (g *gate) close() {
	g.mu.Lock()
	g.shut = true
	open := make([]*gatedConn, 0, len(g.conns))
	for c := range g.conns {
		open = append(open, c)
	}
	g.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
}

// gatedConn is a connection behind the gate. It sits below TLS, so it sees every byte of both directions.
type gatedConn struct {
	net.Conn
	gate *gate
	main bool
	// Deadline for writes that somebody above asked for, in unix nanoseconds; 0 = none.
	above atomic.Int64
}

// Read notes that the other side is alive.
func (c *gatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.gate.closed() {
		// Nobody takes frames any more, and whatsmeow's read loop would wait for somebody for ever.
		c.gate.gone(c)
		return 0, errShut
	}
	if n > 0 {
		c.gate.seen()
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.gate.gone(c)
	}
	return n, err
}

// Write fails and closes the connection once the term or the generation ended.
func (c *gatedConn) Write(p []byte) (int, error) {
	if err := c.gate.check(); err != nil {
		_ = c.Close()
		return 0, err
	}
	deadline := time.Now().Add(writeTimeout)
	if ns := c.above.Load(); ns != 0 {
		if asked := time.Unix(0, ns); asked.Before(deadline) {
			deadline = asked
		}
	}
	_ = c.Conn.SetWriteDeadline(deadline)
	n, err := c.Conn.Write(p)
	if err != nil {
		c.gate.gone(c)
	}
	return n, err
}

// Close closes the connection; it may be called more than once.
func (c *gatedConn) Close() error {
	err := c.Conn.Close()
	c.gate.gone(c)
	return err
}

// SetDeadline sets both deadlines.
func (c *gatedConn) SetDeadline(t time.Time) error {
	c.keep(t)
	return c.Conn.SetDeadline(t)
}

// SetWriteDeadline is honoured if it is earlier than the gate's own.
func (c *gatedConn) SetWriteDeadline(t time.Time) error {
	c.keep(t)
	return c.Conn.SetWriteDeadline(t)
}

func (c *gatedConn) keep(t time.Time) {
	if t.IsZero() {
		c.above.Store(0)
		return
	}
	c.above.Store(t.UnixNano())
}
