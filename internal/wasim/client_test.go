package wasim

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"go.mau.fi/whatsmeow"
	"go.mau.fi/whatsmeow/appstate"
	"go.mau.fi/whatsmeow/proto/waE2E"
	"go.mau.fi/whatsmeow/store/sqlstore"
	"go.mau.fi/whatsmeow/types"
	"go.mau.fi/whatsmeow/types/events"
	waLog "go.mau.fi/whatsmeow/util/log"
	"google.golang.org/protobuf/proto"
	_ "modernc.org/sqlite"
)

// patience is how long a test waits for something that needs milliseconds.
const patience = 20 * time.Second

// testCA signs for the servers of all tests: whatsmeow keeps its trust anchor in a global, which must not change
// while clients of an earlier test still end.
var testCA *authority

func TestMain(m *testing.M) {
	ca, err := newAuthority()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testCA = ca
	whatsmeow.WACertPubKey = *ca.root.Pub
	os.Exit(m.Run())
}

func testLog() *slog.Logger {
	if os.Getenv("WASIM_LOG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// world is a server on TCP.
type world struct {
	srv    *Server
	addr   string
	served chan error
	// patience is how long awaitLog waits.
	patience time.Duration
}

// newWorld starts a server that ends with the test.
func newWorld(t *testing.T) *world {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := serve(t, l)
	w.addr = l.Addr().String()
	t.Cleanup(func() { w.stop(t) })
	return w
}

func serve(t *testing.T, l net.Listener) *world {
	t.Helper()
	srv, err := New(Options{FewKeys: true, Log: testLog()})
	if err != nil {
		t.Fatal(err)
	}
	srv.ca = testCA
	w := &world{srv: srv, served: make(chan error, 1), patience: patience}
	go func() { w.served <- srv.Serve(l) }()
	return w
}

func (w *world) stop(t *testing.T) {
	t.Helper()
	w.srv.Close()
	if err := <-w.served; err != nil {
		t.Errorf("Serve = %v", err)
	}
}

// client is a real whatsmeow client with its store on SQLite.
type client struct {
	*whatsmeow.Client
	t      *testing.T
	w      *world
	pn     string
	events chan any
	kept   []any // events that no await has taken
	http   *http.Client
}

func dialTo(dial func(ctx context.Context, network, addr string) (net.Conn, error)) *http.Client {
	return &http.Client{Transport: &http.Transport{DialTLSContext: dial}}
}

func (w *world) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", w.addr)
}

func openStore(t *testing.T) *sqlstore.Container {
	t.Helper()
	db, err := sql.Open("sqlite", "file::memory:?_pragma=foreign_keys(1)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1) // each connection would be a database of its own
	t.Cleanup(func() { _ = db.Close() })
	c := sqlstore.NewWithDB(db, "sqlite3", waLog.Noop)
	if err = c.Upgrade(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

func (w *world) newClient(t *testing.T, pn string) *client {
	t.Helper()
	return w.newClientOver(t, pn, w.dial)
}

func (w *world) newClientOver(t *testing.T, pn string, dial func(context.Context, string, string) (net.Conn, error)) *client {
	t.Helper()
	log := waLog.Noop
	if os.Getenv("WASIM_LOG") != "" {
		log = waLog.Stdout(pn, "DEBUG", false)
	}
	c := &client{t: t, w: w, pn: pn, events: make(chan any, 10000), http: dialTo(dial)}
	c.Client = whatsmeow.NewClient(openStore(t).NewDevice(), log)
	c.wire()
	t.Cleanup(func() {
		c.Disconnect()
		c.http.CloseIdleConnections()
	})
	return c
}

func (c *client) wire() {
	c.SetPreLoginHTTPClient(c.http)
	c.SetWebsocketHTTPClient(c.http)
	c.SetMediaHTTPClient(c.http)
	c.AddEventHandler(func(e any) { c.events <- e })
}

// paired returns a client that is paired by QR and logged in.
func (w *world) paired(t *testing.T, pn string) *client {
	t.Helper()
	c := w.newClient(t, pn)
	c.pair()
	return c
}

func (c *client) pair() {
	c.t.Helper()
	if err := c.Connect(); err != nil {
		c.t.Fatal(err)
	}
	qr := await[*events.QR](c, nil)
	if err := c.w.srv.Phone(c.pn).ScanQR(c.t.Context(), qr.Codes[0]); err != nil {
		c.t.Fatalf("ScanQR = %v", err)
	}
	await[*events.PairSuccess](c, nil)
	await[*events.Connected](c, nil)
	c.settle()
}

// settle waits until the client has taken the phone's first sync. whatsmeow loses a Signal session now and then if
// it encrypts and decrypts with the same device at once, here its own phone; the retry that heals it would be
// one stanza more than a test expects.
func (c *client) settle() {
	c.t.Helper()
	want := 1 // LIDs
	if len(c.w.srv.Phone(c.pn).knownContacts()) > 0 {
		want++ // names
	}
	for n := 1; ; n++ {
		taken := 0
		for _, e := range c.w.awaitLog(c.t, n, Query{Session: c.pn, Kind: KindReceipt, Type: "hist_sync"}) {
			if e.Device == c.Store.ID.Device {
				taken++
			}
		}
		if taken >= want {
			break
		}
	}
	// The fetch of the app state that the phone's key share started; a logout in the middle of it is a race in whatsmeow.
	for _, name := range appstate.AllPatchNames {
		await(c, func(e *events.AppStateSyncComplete) bool { return e.Name == name })
	}
}

// await takes the first event of a type for which ok (if given) is true; others stay for later.
func await[T any](c *client, ok func(T) bool) T {
	c.t.Helper()
	fits := func(e any) (T, bool) {
		v, is := e.(T)
		return v, is && (ok == nil || ok(v))
	}
	for i, e := range c.kept {
		if v, yes := fits(e); yes {
			c.kept = slices.Delete(c.kept, i, i+1)
			return v
		}
	}
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		select {
		case e := <-c.events:
			if v, yes := fits(e); yes {
				return v
			}
			c.kept = append(c.kept, e)
		case <-limit.C:
			var none T
			c.t.Fatalf("no %T came to %s", none, c.pn)
			return none
		}
	}
}

func (c *client) text(id string, to types.JID, text string) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	_, err := c.SendMessage(ctx, to, &waE2E.Message{Conversation: proto.String(text)}, whatsmeow.SendRequestExtra{ID: id, Timeout: patience})
	return err
}

func (c *client) mustText(id string, to types.JID, text string) {
	c.t.Helper()
	if err := c.text(id, to, text); err != nil {
		c.t.Fatalf("SendMessage(%s) = %v", id, err)
	}
}

func (c *client) awaitText(text string) *events.Message {
	c.t.Helper()
	return await(c, func(m *events.Message) bool { return m.Message.GetConversation() == text })
}

func pnJID(pn string) types.JID { return types.NewJID(pn, types.DefaultUserServer) }

func (p *Phone) awaitID(t *testing.T, id string) Received {
	t.Helper()
	return p.await(t, func(r Received) bool { return r.ID == id })
}

func (p *Phone) await(t *testing.T, ok func(Received) bool) Received {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := p.Wait(ctx, ok)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// awaitLog waits until the query selects at least n entries and returns them.
func (w *world) awaitLog(t *testing.T, n int, q Query) []Entry {
	t.Helper()
	wake, stop := w.srv.Watch()
	defer stop()
	limit := time.NewTimer(w.patience)
	defer limit.Stop()
	for {
		if es := w.srv.Log(q); len(es) >= n {
			return es
		}
		select {
		case <-wake:
		case <-limit.C:
			t.Fatalf("Log(%+v) has %d entries, want %d", q, len(w.srv.Log(q)), n)
		}
	}
}

// awaitEntry waits for an entry for which ok is true.
func (w *world) awaitEntry(t *testing.T, q Query, ok func(Entry) bool) {
	t.Helper()
	for n := 1; ; n++ {
		es := w.awaitLog(t, n, q)
		if ok(es[n-1]) {
			return
		}
	}
}
