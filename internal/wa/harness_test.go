package wa_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.mau.fi/whatsmeow/store"
	"go.mau.fi/whatsmeow/store/sqlstore"
	"go.mau.fi/whatsmeow/types"
	waLog "go.mau.fi/whatsmeow/util/log"
	_ "modernc.org/sqlite"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/testkit"
	"github.com/wafleet/wafleet/internal/wa"
	"github.com/wafleet/wafleet/internal/wasim"
)

// patience is how long a test on TCP waits for something that needs milliseconds.
const patience = 20 * time.Second

// shared is one simulator for all tests on TCP: whatsmeow trusts one root per process. Each test has its own numbers.
var shared *world

func TestMain(m *testing.M) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	addr := l.Addr().String()
	shared, err = newWorld(l, func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	shared.close()
	os.Exit(code)
}

var numbers atomic.Int64

// fresh is a number that no other test uses.
func fresh() string { return fmt.Sprintf("55119%08d", numbers.Add(1)) }

// world is a simulator and the way to it.
type world struct {
	sim    *wasim.Server
	net    *wa.Network
	dial   wa.DialFunc
	served chan error
}

func newWorld(l net.Listener, dial wa.DialFunc) (*world, error) {
	sim, err := wasim.New(wasim.Options{FewKeys: true})
	if err != nil {
		return nil, err
	}
	w := &world{sim: sim, dial: dial, served: make(chan error, 1)}
	go func() { w.served <- sim.Serve(l) }()
	w.net, err = wa.SimulatedNetwork(sim.RootKey(), dial)
	return w, err
}

func (w *world) close() {
	w.sim.Close()
	<-w.served
}

// log waits for at least n entries.
func (w *world) log(t *testing.T, n int, q wasim.Query) []wasim.Entry {
	t.Helper()
	wake, stop := w.sim.Watch()
	defer stop()
	limit := time.After(patience)
	for {
		if es := w.sim.Log(q); len(es) >= n {
			return es
		}
		select {
		case <-wake:
		case <-limit:
			t.Fatalf("Log(%+v) has %d entries, want %d", q, len(w.sim.Log(q)), n)
		}
	}
}

// entry waits for an entry that ok likes.
func (w *world) entry(t *testing.T, q wasim.Query, ok func(wasim.Entry) bool) wasim.Entry {
	t.Helper()
	for n := 1; ; n++ {
		if es := w.log(t, n, q); ok(es[n-1]) {
			return es[n-1]
		}
	}
}

func (w *world) fault(t *testing.T, scope wasim.Scope, f wasim.Fault) {
	t.Helper()
	w.sim.SetFault(scope, f)
	t.Cleanup(func() { w.sim.SetFault(scope, wasim.Fault{}) })
}

// number is one WhatsApp number with its keys, over several generations.
type number struct {
	t     *testing.T
	w     *world
	pn    string
	keys  *sqlstore.Container
	store *watchedStore
	jid   types.JID
	gen   int64
	// Texts that Payload gives, by id.
	payloads map[string][]byte
}

func (w *world) number(t *testing.T, pn string) *number {
	t.Helper()
	db, err := sql.Open("sqlite", "file::memory:?_pragma=foreign_keys(1)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1) // each connection would be a database of its own
	t.Cleanup(func() { _ = db.Close() })
	keys := sqlstore.NewWithDB(db, "sqlite3", waLog.Noop)
	if err := keys.Upgrade(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &number{t: t, w: w, pn: pn, keys: keys, store: &watchedStore{}, payloads: map[string][]byte{}}
}

// paired is a number that was paired by QR, in a generation of its own.
func (w *world) paired(t *testing.T, pn string) *number {
	t.Helper()
	n := w.number(t, pn)
	g := n.start(func(o *wa.Options) {
		o.Pair = &wa.PairRequest{Method: fleet.PairQR, Until: time.Now().Add(time.Minute)}
	})
	if err := w.sim.Phone(pn).ScanQR(t.Context(), take(t, g.qr)); err != nil {
		t.Fatalf("ScanQR = %v", err)
	}
	p := take(t, g.paired)
	if end := g.end(); end.Reason != wa.ReasonPaired {
		t.Fatalf("pairing ended with %v, want %s", end, wa.ReasonPaired)
	}
	n.learn(p)
	return n
}

func (n *number) learn(p wa.Paired) {
	n.t.Helper()
	var err error
	if n.jid, err = types.ParseJID(p.DeviceJID); err != nil {
		n.t.Fatal(err)
	}
}

func (n *number) device() *store.Device {
	n.t.Helper()
	if n.jid.IsEmpty() {
		return n.keys.NewDevice()
	}
	d, err := n.keys.GetDevice(n.t.Context(), n.jid)
	if err != nil || d == nil {
		n.t.Fatalf("GetDevice(%s) = %v, %v", n.jid, d, err)
	}
	n.store.wrap(d)
	return d
}

// generation is one socket under test, with what its handlers were told.
type generation struct {
	t        *testing.T
	n        *number
	sock     *wa.Socket
	ctx      context.Context //nolint:containedctx // the worker's side of the generation
	cancel   context.CancelCauseFunc
	ended    chan wa.End
	qr       chan string
	code     chan string
	paired   chan wa.Paired
	ready    chan struct{}
	offline  chan int
	messages chan fleet.Inbound
	receipts chan fleet.Receipt
	names    chan string
	retries  atomic.Int64 // calls of AllowRetry
	asked    atomic.Int64 // calls of Payload
}

// start runs a generation; change sees the options last.
func (n *number) start(change ...func(*wa.Options)) *generation {
	n.t.Helper()
	n.gen++
	ctx, cancel := context.WithCancelCause(n.t.Context())
	g := &generation{
		t: n.t, n: n, ctx: ctx, cancel: cancel, ended: make(chan wa.End, 1),
		qr: make(chan string, 16), code: make(chan string, 1), paired: make(chan wa.Paired, 1), ready: make(chan struct{}, 1),
		offline: make(chan int, 1), messages: make(chan fleet.Inbound, 100), receipts: make(chan fleet.Receipt, 100),
		names: make(chan string, 10),
	}
	o := wa.Options{
		Device: n.device(), Network: n.w.net, Log: testkit.Logger(n.t), Generation: n.gen,
		Term: fleet.Term{SessionID: fleet.SessionID("session-" + n.pn), Owner: "worker-1.boot", Epoch: 7},
		Bind: n.store.bind, BeginSend: n.store.beginSend,
		Handler: wa.Handler{
			QR:          func(_ context.Context, text string, _ time.Time) { g.qr <- text },
			Code:        func(_ context.Context, code string, _ time.Time) { g.code <- code },
			Paired:      func(_ context.Context, p wa.Paired) error { g.paired <- p; return nil },
			Ready:       func(context.Context) { g.ready <- struct{}{} },
			OfflineDone: func(_ context.Context, count int) { g.offline <- count },
			Message:     func(_ context.Context, m fleet.Inbound) error { g.messages <- m; return nil },
			Receipt:     func(_ context.Context, r fleet.Receipt) error { g.receipts <- r; return nil },
			AllowRetry:  func(context.Context, string) bool { g.retries.Add(1); return true },
			Payload: func(_ context.Context, id string) ([]byte, error) {
				g.asked.Add(1)
				if raw, ok := n.payloads[id]; ok {
					return raw, nil
				}
				return nil, fleet.ErrNotFound
			},
			PushName: func(_ context.Context, name string) { g.names <- name },
		},
	}
	for _, c := range change {
		c(&o)
	}
	g.sock = wa.NewSocket(o)
	go func() { g.ended <- g.sock.Run(ctx) }()
	n.t.Cleanup(func() {
		cancel(context.Canceled)
		if e, ok := <-g.ended; ok {
			_ = e
		}
	})
	return g
}

// online runs a generation until it is ready.
func (n *number) online(change ...func(*wa.Options)) *generation {
	n.t.Helper()
	g := n.start(change...)
	take(n.t, g.ready)
	if n.gen == 2 { // the first login
		n.synced()
	}
	return g
}

// end waits for the generation to end by itself.
func (g *generation) end() wa.End {
	g.t.Helper()
	e := take(g.t, g.ended)
	close(g.ended) // for the cleanup
	return e
}

// stop ends the generation as a worker does.
func (g *generation) stop() {
	g.t.Helper()
	g.cancel(context.Canceled)
	if e := g.end(); e.Reason != wa.ReasonStopped {
		g.t.Errorf("Run after a stop = %v, want %s", e, wa.ReasonStopped)
	}
}

func (g *generation) send(to, id, text string) error {
	g.t.Helper()
	return g.sendWithin(patience, to, id, text)
}

func (g *generation) sendWithin(d time.Duration, to, id, text string) error {
	g.t.Helper()
	raw, err := wa.BuildText(text)
	if err != nil {
		g.t.Fatalf("BuildText(%q) = %v", text, err)
	}
	g.n.payloads[id] = raw
	ctx, cancel := context.WithTimeout(g.ctx, d)
	defer cancel()
	_, err = g.sock.Send(ctx, wa.Outgoing{JID: to + "@s.whatsapp.net", WAID: id, Payload: raw})
	return err
}

// mustFail checks outcome and reason of a failed send.
func mustFail(t *testing.T, err error, outcome fleet.Outcome, reason string, code int) {
	t.Helper()
	var se *wa.SendError
	if !errors.As(err, &se) {
		t.Fatalf("Send = %v, want a *SendError", err)
	}
	if se.Outcome != outcome || se.Reason != reason || se.Code != code {
		t.Fatalf("Send = %s %s %d (%v), want %s %s %d", se.Outcome, se.Reason, se.Code, se.Err, outcome, reason, code)
	}
}

// framesOf returns the message stanzas of this number that the simulator got, without those to own devices.
func (n *number) framesOf(id string) []wasim.Entry {
	return n.w.sim.Log(wasim.Query{Session: n.pn, Kind: wasim.KindMessage, Dir: wasim.DirIn, ID: id})
}

func take[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		var none T
		t.Fatalf("no %T came", none)
		return none
	}
}

// synced waits for the phone's first sync with a new companion. A send to the phone that crosses it makes two sessions
// at once, and whatsmeow then asks the phone to repeat a message, which holds up what comes after it.
func (n *number) synced() {
	n.t.Helper()
	n.w.log(n.t, 2, wasim.Query{Recipient: n.pn, Kind: wasim.KindMessage, Dir: wasim.DirOut, Type: "peer"})
	// The keys make whatsmeow fetch five collections.
	n.w.log(n.t, 5, wasim.Query{Session: n.pn, Kind: wasim.KindRequest, Type: "w:sync:app:state"})
	n.settled()
}

// settled waits until the companion has acknowledged all that it was given.
func (n *number) settled() {
	n.t.Helper()
	testkit.Eventually(n.t, patience, func() error {
		if p := n.w.sim.Pending(n.pn, 1); p != 0 {
			return fmt.Errorf("%d stanzas are not acknowledged", p)
		}
		return nil
	})
}

// noFrame fails if the simulator got a frame with this id.
func (n *number) noFrame(id string) {
	n.t.Helper()
	if es := n.framesOf(id); len(es) > 0 {
		n.t.Errorf("the simulator got %d frames with id %s, want none: %+v", len(es), id, es)
	}
}

func kinds(es []wasim.Entry) []string {
	out := make([]string, 0, len(es))
	for _, e := range es {
		out = append(out, e.Kind+"/"+e.Type)
	}
	slices.Sort(out)
	return out
}
