// Package memnet is a network in memory for tests on simulated time: one listener, any number of named
// dialers, links that can be reset, held, black-holed or slowed while they run.
//
// It owns nothing but the bytes in flight. It never starts a goroutine and waits on channels and timers
// only, so inside a testing/synctest bubble every wait is durable and the fake clock can move. All of a Net
// has to be made and used inside the same bubble.
//
// Invariants:
//   - a write never blocks: buffers have no limit (net.Pipe has none at all, and a writer that waits for its
//     reader while holding a lock stops the fake clock);
//   - a local Close ends a local Read at once, whatever state the link is in;
//   - bytes of one direction arrive in order, never before the latency of the link has passed.
package memnet

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"
)

// Net hands the connections of its dialers to whoever calls Accept. It is a net.Listener.
type Net struct {
	// Latency is the one-way delay of a new connection of the named dialer; nil means none. Set it before
	// the first dial.
	Latency func(name string) time.Duration
	// OnDial, if set, is called before each dial; an error refuses it. Set it before the first dial.
	OnDial func(ctx context.Context, name string) error

	accept chan net.Conn
	done   chan struct{}
	once   sync.Once

	mu    sync.Mutex
	links map[string][]*Link
	down  map[string]bool
}

// New returns a network with an open listener.
func New() *Net {
	return &Net{
		accept: make(chan net.Conn),
		done:   make(chan struct{}),
		links:  map[string][]*Link{},
		down:   map[string]bool{},
	}
}

// Accept waits for the next dial. It returns net.ErrClosed after Close.
func (n *Net) Accept() (net.Conn, error) {
	select {
	case c := <-n.accept:
		return c, nil
	case <-n.done:
		return nil, net.ErrClosed
	}
}

// Close stops accepting. Connections that are open stay open.
func (n *Net) Close() error {
	n.once.Do(func() { close(n.done) })
	return nil
}

// Addr is the address of the listener; it has no meaning outside this network.
func (n *Net) Addr() net.Addr { return addr("listener") }

// Dialer returns a dial function for net/http and net.Dialer users. The network and address it is called with
// are ignored: there is one listener. The server sees the dialer's name as the remote address.
func (n *Net) Dialer(name string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		if n.OnDial != nil {
			if err := n.OnDial(ctx, name); err != nil {
				return nil, err
			}
		}
		n.mu.Lock()
		down := n.down[name]
		n.mu.Unlock()
		if down {
			return nil, opError("dial", syscall.ECONNREFUSED)
		}
		var delay time.Duration
		if n.Latency != nil {
			delay = n.Latency(name)
		}
		l := newLink(name, delay)
		n.mu.Lock()
		n.links[name] = append(n.live(name), l)
		n.mu.Unlock()
		select {
		case n.accept <- l.server:
			return l.client, nil
		case <-n.done:
			l.Reset()
			return nil, opError("dial", syscall.ECONNREFUSED)
		case <-ctx.Done():
			l.Reset()
			return nil, ctx.Err()
		}
	}
}

// SetDown makes every later dial of name fail with ECONNREFUSED, or lets them through again. Open links are
// not touched.
func (n *Net) SetDown(name string, down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down[name] = down
}

// Each calls f for every link that name has dialled and that is still open or held, in the order of dialling.
func (n *Net) Each(name string, f func(*Link)) {
	n.mu.Lock()
	live := n.live(name)
	n.links[name] = live
	live = append([]*Link(nil), live...)
	n.mu.Unlock()
	for _, l := range live {
		f(l)
	}
}

// live drops finished links. The caller holds mu.
func (n *Net) live(name string) []*Link {
	var live []*Link
	for _, l := range n.links[name] {
		if l.up.open() || l.down.open() {
			live = append(live, l)
		}
	}
	return live
}

// Link is one connection between a dialer and the listener.
type Link struct {
	// Name is the dialer's name.
	Name string

	up, down       *stream // client to server, server to client
	client, server *conn
}

func newLink(name string, delay time.Duration) *Link {
	l := &Link{Name: name, up: newStream(delay), down: newStream(delay)}
	l.client = newConn(l.down, l.up, addr(name), addr("listener"))
	l.server = newConn(l.up, l.down, addr("listener"), addr(name))
	return l
}

// Reset ends the link for both ends at once, as a TCP reset does; what was in flight is lost.
func (l *Link) Reset() {
	l.up.fail(syscall.ECONNRESET)
	l.down.fail(syscall.ECONNRESET)
}

// Hold keeps what is sent, in both directions, until it is released with false: a frozen process or a stalled
// path. Nothing is lost, and even a reset is not noticed before the release.
func (l *Link) Hold(hold bool) {
	l.up.hold(hold)
	l.down.hold(hold)
}

// BlackHole makes what is sent vanish, in both directions, while writers believe that it left. A link that was
// a black hole has a gap in its bytes: reset it after healing.
func (l *Link) BlackHole(hole bool) {
	l.up.hole(hole)
	l.down.hole(hole)
}

type addr string

// Network names the kind of address.
func (addr) Network() string { return "mem" }

// String is the name of the end.
func (a addr) String() string { return string(a) }

func opError(op string, err error) error { return &net.OpError{Op: op, Net: "mem", Err: err} }
