package wasim

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	waBinary "go.mau.fi/whatsmeow/binary"
	"go.mau.fi/whatsmeow/proto/waWa6"
)

const (
	handshakeTimeout = 20 * time.Second
	writeTimeout     = 30 * time.Second
	// lastWait is how long the server leaves closing to the client after a last stanza. whatsmeow handles
	// stanzas asynchronously and forgets those still queued when the socket closes, so closing at once loses a
	// restart request or a failure now and then.
	lastWait = 3 * time.Second
)

// conn is one websocket of a client, paired or not.
type conn struct {
	srv    *Server
	seq    int64
	origin origin
	peer   *peer
	ws     *websocket.Conn
	frames *frameReader
	reg    *waWa6.ClientPayload_DevicePairingRegistrationData // nil for a login

	// life ends with the connection; every read and write is bounded by it.
	life context.Context //nolint:containedctx // see above: the connection is the term it bounds
	end  context.CancelFunc

	dev    *device // set before the writer starts, nil for unpaired connections
	active bool    // the offline queue was flushed; server's lock
	refs   []string
	link   *linkPairing // server's lock
	paired *pairing     // server's lock

	mute atomic.Bool

	mu     sync.Mutex
	out    []outgoing
	wake   chan struct{}
	last   bool // nothing may follow what is queued; what comes in is ignored
	reason string
	ids    int
}

type outgoing struct {
	stanza node
	due    time.Time
}

// serveSocket is the websocket endpoint: it lives as long as the connection.
func (s *Server) serveSocket(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		http.Error(w, "closed", http.StatusServiceUnavailable)
		return
	}
	s.work.Add(1)
	defer s.work.Done()
	s.lastConn++
	c := &conn{srv: s, seq: s.lastConn, origin: originOf(r), wake: make(chan struct{}, 1)}
	refused := s.refusesDial(c.origin)
	s.mu.Unlock()
	if refused {
		s.oracle.add(c.entry(Entry{Kind: KindDial, Error: 1}))
		panic(http.ErrAbortHandler) // ends the connection without an answer
	}
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // clients send WhatsApp's origin
	if err != nil {
		s.log.LogAttrs(r.Context(), slog.LevelWarn, "websocket refused", slog.Any("err", err))
		return
	}
	ws.SetReadLimit(maxFrame + 3)
	c.ws = ws
	c.life, c.end = context.WithCancel(s.life)
	defer c.end()
	s.oracle.add(c.entry(Entry{Kind: KindDial}))
	c.run()
}

// run does the handshake and then reads until the connection ends. Another goroutine writes.
func (c *conn) run() {
	s := c.srv
	defer func() { _ = c.ws.CloseNow() }() // nothing can be done about an error, it is closed in any case
	c.frames = &frameReader{source: c.receive}
	ctx, cancel := context.WithTimeout(c.life, handshakeTimeout)
	var err error
	c.peer, err = handshake(ctx, c.frames, c.write, s.ca)
	cancel()
	if err != nil {
		s.log.LogAttrs(c.life, slog.LevelWarn, "handshake failed", slog.Int64("conn", c.seq), slog.Any("err", err))
		s.oracle.add(c.entry(Entry{Kind: KindClose, Type: "handshake"}))
		return
	}
	s.mu.Lock()
	s.conns[c.seq] = c
	c.begin(c.peer.payload)
	s.mu.Unlock()

	var writer sync.WaitGroup
	writer.Go(c.writeLoop)
	c.readLoop()
	c.end()
	writer.Wait()

	s.mu.Lock()
	s.forget(c)
	s.mu.Unlock()
}

// forget removes a finished connection. The caller holds the lock.
func (s *Server) forget(c *conn) {
	delete(s.conns, c.seq)
	for _, r := range c.refs {
		delete(s.refs, r)
	}
	for _, pn := range sortedKeys(s.codes) {
		if s.codes[pn] == c {
			delete(s.codes, pn)
		}
	}
	if c.dev != nil && c.dev.conn == c {
		c.dev.conn = nil
		s.setPresence(c.dev, presenceUnavailable)
	}
	s.oracle.add(c.entry(Entry{Kind: KindClose, Type: c.closeReason("lost")}))
}

func (c *conn) receive(ctx context.Context) ([]byte, error) {
	typ, data, err := c.ws.Read(ctx)
	if err != nil {
		if websocket.CloseStatus(err) != -1 {
			c.closeReason("client")
		}
		return nil, err
	}
	if typ != websocket.MessageBinary {
		return nil, errors.New("text message on a binary protocol")
	}
	return data, nil
}

// write sends one frame as one websocket message: whatsmeow's reassembly of frames split over messages is wrong.
func (c *conn) write(ctx context.Context, payload []byte) error {
	b, err := frame(payload)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return c.ws.Write(ctx, websocket.MessageBinary, b)
}

// drop ends the connection without a word. It never waits, so it may be called under any lock.
func (c *conn) drop(reason string) {
	c.closeReason(reason)
	c.end()
}

// closeReason keeps the first reason given and returns it.
func (c *conn) closeReason(reason string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason == "" {
		c.reason = reason
	}
	return c.reason
}

// session is the own number of the connection, "" before login.
func (c *conn) session() string {
	if c.dev == nil {
		return ""
	}
	return c.dev.account.pn
}

// send queues a stanza. It never waits, so it may be called under the server's lock.
func (c *conn) send(n node) { c.sendAfter(n, 0) }

// sendAfter queues a stanza that leaves after an extra delay, on top of the connection's latency.
func (c *conn) sendAfter(n node, extra time.Duration) { c.enqueue(n, extra, false) }

// sendLast queues a stanza after which nothing is sent or handled any more. Closing is left to the client for
// a while; the reason is what the log says about the end of the connection.
func (c *conn) sendLast(n node, reason string) {
	c.closeReason(reason)
	c.enqueue(n, 0, true)
}

func (c *conn) enqueue(n node, extra time.Duration, last bool) {
	due := time.Now().Add(extra + c.srv.faults.latency(c.session(), ""))
	c.mu.Lock()
	if c.last {
		c.mu.Unlock()
		return
	}
	c.last = last
	at := len(c.out)
	for at > 0 && c.out[at-1].due.After(due) && !last {
		at--
	}
	c.out = append(c.out, outgoing{})
	copy(c.out[at+1:], c.out[at:])
	c.out[at] = outgoing{n, due}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// next takes what is due. Otherwise it tells how long to wait (0: until woken), or that the last one has left.
func (c *conn) next() (o outgoing, ok bool, wait time.Duration, finished bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.out) == 0 {
		return o, false, 0, c.last
	}
	if wait = time.Until(c.out[0].due); wait > 0 {
		return o, false, wait, false
	}
	o, c.out = c.out[0], c.out[1:]
	if len(c.out) == 0 {
		c.out = nil
	}
	return o, true, 0, false
}

func (c *conn) writeLoop() {
	for {
		o, ok, wait, finished := c.next()
		switch {
		case ok:
			if !c.transmit(o.stanza) {
				c.drop("lost")
				return
			}
			continue
		case finished:
			wait = lastWait
		}
		alarmed := c.sleep(wait)
		if c.life.Err() != nil {
			return
		}
		if alarmed && finished {
			c.drop("server")
			return
		}
	}
}

// sleep waits until woken, ended, or the time has passed (0: never), which it reports.
func (c *conn) sleep(wait time.Duration) bool {
	var alarm <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		alarm = t.C
	}
	select {
	case <-c.life.Done():
	case <-c.wake:
	case <-alarm:
		return true
	}
	return false
}

// transmit encrypts and sends one stanza, and logs it. False means that the connection is broken.
func (c *conn) transmit(n node) bool {
	s := c.srv
	if c.silent() {
		return true
	}
	plain, err := waBinary.Marshal(n)
	if err != nil {
		s.log.LogAttrs(c.life, slog.LevelError, "stanza not encodable", slog.String("tag", n.Tag), slog.Any("err", err))
		return true
	}
	s.logOut(c, &n)
	return c.write(c.life, c.peer.out.seal(plain)) == nil
}

func (c *conn) silent() bool {
	return c.mute.Load() || c.srv.faults.has(c.session(), "", func(f *Fault) bool { return f.Silent })
}

func (c *conn) readLoop() {
	s := c.srv
	for {
		sealed, err := c.frames.next(c.life)
		if err != nil || c.life.Err() != nil { // frames that were read ahead of a drop do not count
			return
		}
		plain, err := c.peer.in.open(sealed)
		if err != nil {
			c.closeReason("undecryptable")
			return
		}
		n, err := decodeNode(plain)
		if err != nil {
			s.log.LogAttrs(c.life, slog.LevelWarn, "stanza not decodable", slog.Int64("conn", c.seq), slog.Any("err", err))
			continue
		}
		if c.ignores() {
			s.logIgnored(c, n)
			continue
		}
		s.handle(c, n)
	}
}

// ignores tells whether incoming stanzas count for nothing: after a last stanza, or while silent.
func (c *conn) ignores() bool {
	c.mu.Lock()
	last := c.last
	c.mu.Unlock()
	return (last && c.dev != nil) || c.silent()
}

// nextID makes an id for a request of the server.
func (c *conn) nextID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids++
	return "sim-" + strconv.Itoa(c.ids)
}
