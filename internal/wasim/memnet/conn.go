package memnet

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// chunk is one write on its way; nobody can read it before due.
type chunk struct {
	bytes []byte
	due   time.Time
}

// stream is one direction of a link.
type stream struct {
	mu         sync.Mutex
	queue      []chunk
	delay      time.Duration
	lastDue    time.Time
	err        error // both ends see it at once; what was queued is lost
	ended      bool  // the writing end closed: EOF after the queue
	readerGone bool  // the reading end closed: writes fail
	holed      bool
	held       bool
	changed    chan struct{} // closed and replaced at each change
}

func newStream(delay time.Duration) *stream {
	return &stream{delay: delay, changed: make(chan struct{})}
}

// bump wakes the reader. The caller holds mu.
func (s *stream) bump() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *stream) update(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.bump()
}

func (s *stream) fail(err error) {
	s.update(func() {
		if s.err == nil {
			s.err, s.queue = err, nil
		}
	})
}

func (s *stream) hold(hold bool) { s.update(func() { s.held = hold }) }
func (s *stream) hole(hole bool) { s.update(func() { s.holed = hole }) }

// open tells whether the direction can still carry something, or still keeps something back.
func (s *stream) open() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held || (s.err == nil && !s.ended)
}

// take copies what is ready. With nothing ready it returns n = 0, and the channel and the time to wait for.
func (s *stream) take(p []byte) (n int, changed <-chan struct{}, due time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.held:
	case s.err != nil:
		return 0, nil, time.Time{}, opError("read", s.err)
	case len(s.queue) > 0:
		head := &s.queue[0]
		if time.Now().Before(head.due) {
			return 0, s.changed, head.due, nil
		}
		n = copy(p, head.bytes)
		head.bytes = head.bytes[n:]
		if len(head.bytes) == 0 {
			s.queue = s.queue[1:]
		}
		return n, nil, time.Time{}, nil
	case s.ended && !s.holed:
		return 0, nil, time.Time{}, io.EOF
	}
	return 0, s.changed, time.Time{}, nil
}

func (s *stream) put(p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return opError("write", s.err)
	case s.holed:
		return nil
	case s.readerGone:
		return opError("write", syscall.EPIPE)
	}
	due := time.Now().Add(s.delay)
	if due.Before(s.lastDue) {
		due = s.lastDue
	}
	s.lastDue = due
	s.queue = append(s.queue, chunk{append([]byte(nil), p...), due})
	s.bump()
	return nil
}

// conn is one end of a link.
type conn struct {
	in, out       *stream
	local, remote addr
	once          sync.Once
	closed        chan struct{}

	mu            sync.Mutex
	readBy        time.Time // zero: no deadline
	writeBy       time.Time
	deadlineMoved chan struct{}
}

func newConn(in, out *stream, local, remote addr) *conn {
	return &conn{in: in, out: out, local: local, remote: remote, closed: make(chan struct{}), deadlineMoved: make(chan struct{})}
}

// Read waits until bytes have arrived, the peer has closed, the link failed, the deadline passed or this end
// was closed.
func (c *conn) Read(p []byte) (int, error) {
	for {
		c.mu.Lock()
		by, moved := c.readBy, c.deadlineMoved
		c.mu.Unlock()
		select {
		case <-c.closed:
			return 0, opError("read", net.ErrClosed)
		default:
		}
		if passed(by) {
			return 0, opError("read", os.ErrDeadlineExceeded)
		}
		if len(p) == 0 {
			return 0, nil
		}
		n, changed, due, err := c.in.take(p)
		if n > 0 || err != nil {
			return n, err
		}
		c.wait(changed, moved, earlier(by, due))
	}
}

// wait returns when something may have changed, or at the given time (zero: never).
func (c *conn) wait(changed, moved <-chan struct{}, at time.Time) {
	var alarm <-chan time.Time
	if !at.IsZero() {
		t := time.NewTimer(time.Until(at))
		defer t.Stop()
		alarm = t.C
	}
	select {
	case <-changed:
	case <-moved:
	case <-c.closed:
	case <-alarm:
	}
}

// Write queues a copy of p and returns at once.
func (c *conn) Write(p []byte) (int, error) {
	select {
	case <-c.closed:
		return 0, opError("write", net.ErrClosed)
	default:
	}
	c.mu.Lock()
	by := c.writeBy
	c.mu.Unlock()
	if passed(by) {
		return 0, opError("write", os.ErrDeadlineExceeded)
	}
	if err := c.out.put(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close ends this end: its reads and writes fail, the peer reads what is queued and then EOF, and the peer's
// writes fail. Through a black hole the peer learns of it only when the link is healed.
func (c *conn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.in.update(func() { c.in.readerGone = true })
		c.out.update(func() { c.out.ended = true })
	})
	return nil
}

// LocalAddr is the name of this end.
func (c *conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the name of the other end.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets both deadlines; a zero time removes them.
func (c *conn) SetDeadline(t time.Time) error { return c.setDeadlines(&t, &t) }

// SetReadDeadline also reaches a Read that waits already.
func (c *conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(&t, nil) }

// SetWriteDeadline only matters once it has passed, as writes never wait.
func (c *conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(nil, &t) }

func (c *conn) setDeadlines(read, write *time.Time) error {
	select {
	case <-c.closed:
		return opError("set", net.ErrClosed)
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if read != nil {
		c.readBy = *read
		close(c.deadlineMoved)
		c.deadlineMoved = make(chan struct{})
	}
	if write != nil {
		c.writeBy = *write
	}
	return nil
}

func passed(t time.Time) bool { return !t.IsZero() && !time.Now().Before(t) }

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
