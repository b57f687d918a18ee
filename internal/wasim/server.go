package wasim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Options of a server. The zero value is usable.
type Options struct {
	// Log gets what goes wrong on the way; nil discards it.
	Log *slog.Logger
	// FewKeys reports one pre-key at the first count of a new companion. whatsmeow then uploads 50 keys and not
	// 812, which makes pairing ten times cheaper.
	FewKeys bool
	// PhonesOff makes primary devices swallow what they get undecrypted, and send nothing by themselves: no
	// push name and no history after pairing.
	PhonesOff bool
	// LogLimit is how many log entries are kept; 0 means 1,000,000.
	LogLimit int
}

// errClosed is the cause of everything that ends because the server was closed.
var errClosed = errors.New("simulator closed")

// Server is a WhatsApp server with phones. Use [New].
type Server struct {
	opts   Options
	log    *slog.Logger
	ca     *authority
	oracle *oracle
	faults faultTable
	web    http.Handler

	// life ends with Close. Goroutines of connections and phones outlive the call that started them, so the
	// context that bounds them belongs to the server.
	life context.Context //nolint:containedctx // see above: the server is the term it bounds
	end  context.CancelCauseFunc
	work sync.WaitGroup

	mu       sync.Mutex // guards everything below, and accounts and devices
	closed   bool
	https    map[*http.Server]bool
	byPN     map[string]*account
	byLID    map[string]*account
	forms    map[string]string // numbers by other digits that the server takes for them
	conns    map[int64]*conn
	lastConn int64
	refs     map[string]*conn  // QR references of unpaired connections
	codes    map[string]*conn  // connections that wait for a pairing code, by number
	dialers  map[string]string // who dials for which number: see SetFault
	counts   Stats
}

// Stats are totals since the start.
type Stats struct {
	Phones      int   `json:"phones"`
	Companions  int   `json:"companions"`
	Online      int   `json:"online"`      // companions logged in
	Connections int   `json:"connections"` // including unpaired ones
	Pending     int   `json:"pending"`     // stanzas that no device has acknowledged yet
	Messages    int64 `json:"messages"`    // message stanzas taken from clients
	Receipts    int64 `json:"receipts"`
	Requests    int64 `json:"requests"`
}

// New makes a server with new keys. It does nothing until Serve, or until its Handler is used.
func New(o Options) (*Server, error) {
	ca, err := newAuthority()
	if err != nil {
		return nil, err
	}
	quietSignalLibrary()
	s := &Server{
		opts: o, log: o.Log, ca: ca, oracle: newOracle(o.LogLimit), faults: faultTable{rules: map[Scope]*Fault{}},
		https: map[*http.Server]bool{}, byPN: map[string]*account{}, byLID: map[string]*account{}, forms: map[string]string{},
		conns: map[int64]*conn{}, refs: map[string]*conn{}, codes: map[string]*conn{}, dialers: map[string]string{},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.life, s.end = context.WithCancelCause(context.Background()) //nolint:forbidigo // ends with Close, not with whoever called New
	s.web = s.routes()
	return s, nil
}

// RootKey is the trust anchor of the server's certificates, for whatsmeow.WACertPubKey.
func (s *Server) RootKey() [32]byte { return *s.ca.root.Pub }

// Handler serves the websocket under /ws/chat and the control API and page under /sim/. Everything else,
// media too, is 404.
func (s *Server) Handler() http.Handler { return s.web }

// Serve answers on the listener until Close, and then returns nil.
func (s *Server) Serve(l net.Listener) error {
	h := &http.Server{Handler: s.web, ReadHeaderTimeout: 10 * time.Second}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return l.Close()
	}
	s.https[h] = true
	s.mu.Unlock()
	if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve simulator: %w", err)
	}
	return nil
}

// Close ends listeners and connections without a word, as a crash would, and waits for every goroutine of the
// server. It may be called more than once.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	var listeners []*http.Server
	for h := range s.https { // the order does not show: nothing is logged
		listeners = append(listeners, h)
	}
	s.mu.Unlock()
	s.end(errClosed)
	for _, h := range listeners {
		_ = h.Close() // closing a listener twice is its only error
	}
	s.work.Wait()
}

// spawn starts a goroutine that Close joins; after Close it does nothing. The caller holds the lock.
func (s *Server) spawn(f func()) bool {
	if s.closed {
		return false
	}
	s.work.Go(f)
	return true
}

// Stats counts what is there now.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.counts
	out.Phones, out.Connections = len(s.byPN), len(s.conns)
	for _, a := range s.byPN { // sums do not depend on the order
		for _, d := range a.devices {
			out.Companions++
			out.Pending += len(d.queue)
			if d.conn != nil {
				out.Online++
			}
		}
	}
	return out
}

// Pending is the number of stanzas that a companion has not acknowledged.
func (s *Server) Pending(pn string, dev uint16) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.companion(pn, dev); d != nil {
		return len(d.queue)
	}
	return 0
}

// companion finds a paired device. The caller holds the lock.
func (s *Server) companion(pn string, dev uint16) *device {
	if a := s.byPN[pn]; a != nil {
		return a.devices[dev]
	}
	return nil
}

// Repeat sends the last message that a companion got from a person once more, as it was. It returns false if
// there is none or the companion is not online.
func (s *Server) Repeat(pn string, dev uint16) bool {
	return s.withConn(pn, dev, func(d *device, c *conn) bool {
		if d.last == nil || !c.active {
			return false
		}
		c.send(*d.last)
		return true
	})
}

// Replace plays another login with the same keys: the present connection gets a conflict, and what it sends
// from now on is ignored. It returns false if the companion is not online, as the next three do.
func (s *Server) Replace(pn string, dev uint16) bool {
	return s.withConn(pn, dev, func(_ *device, c *conn) bool { c.sendLast(conflict("replaced"), "replaced"); return true })
}

// StreamError ends the present connection of a companion with a stream error that carries this code, such as "503".
func (s *Server) StreamError(pn string, dev uint16, code string) bool {
	return s.withConn(pn, dev, func(_ *device, c *conn) bool {
		c.sendLast(node{Tag: "stream:error", Attrs: attrs{"code": code}}, "stream error "+code)
		return true
	})
}

// Drop ends the TCP connection of a companion without a word.
func (s *Server) Drop(pn string, dev uint16) bool {
	return s.withConn(pn, dev, func(_ *device, c *conn) bool { c.drop("dropped"); return true })
}

// Mute makes the present connection of a companion silent: the server reads, answers nothing and delivers
// nothing. The next connection is not affected.
func (s *Server) Mute(pn string, dev uint16) bool {
	return s.withConn(pn, dev, func(_ *device, c *conn) bool { c.mute.Store(true); return true })
}

func (s *Server) withConn(pn string, dev uint16, f func(*device, *conn) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.companion(pn, dev)
	return d != nil && d.conn != nil && f(d, d.conn)
}

func conflict(typ string) node {
	return node{Tag: "stream:error", Content: []node{{Tag: "conflict", Attrs: attrs{"type": typ}}}}
}

// Phone returns the primary device of a number (digits), made on first use.
func (s *Server) Phone(pn string) *Phone {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.account(pn).phone
}

// Phones lists the numbers that exist, in order.
func (s *Server) Phones() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sortedKeys(s.byPN)
}
