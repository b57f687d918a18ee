package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/inbound"
	"github.com/wafleet/wafleet/internal/ledger"
	"github.com/wafleet/wafleet/internal/router"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
	"github.com/wafleet/wafleet/internal/wa"
	"github.com/wafleet/wafleet/internal/wasim"
	"github.com/wafleet/wafleet/internal/wasim/memnet"
)

// Numbers of the tests: sessions, and people they talk to.
const (
	number1 = "5511900000001"
	number2 = "5511900000002"
	person1 = "5511900000101"
	person2 = "5511900000102"
)

// world is a whole gateway's worker side in one bubble: simulator, phones, workers, SQLite, on fake time.
type world struct {
	t   *testing.T
	url string
	sim *wasim.Server
	net *memnet.Net
	bus *bus.Local
	st  *store.Store // the operator's own view
	org fleet.OrgID

	ledger *ledger.Memory
	procs  []*proc
}

// bubble runs fn in a world. Time is fake; a clock that stops is reported with the goroutines that stop it.
func bubble(t *testing.T, fn func(t *testing.T, w *world)) {
	t.Helper()
	url := storetest.SQLiteURL(t)
	var progress atomic.Int64
	stop := testkit.Watchdog(t, 40*time.Second, &progress)
	defer stop()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, url, &progress)
		defer w.close()
		fn(t, w)
	})
}

func newWorld(t *testing.T, url string, progress *atomic.Int64) *world {
	t.Helper()
	sim, err := wasim.New(wasim.Options{Log: testkit.Logger(t), FewKeys: true})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, url: url, sim: sim, net: memnet.New(), bus: bus.NewLocal(), st: storetest.Open(t, url), org: "org-a"}
	w.ledger = ledger.NewMemory(ledger.Options{Rebuild: router.Rebuild(w.st, 20, 5)})
	t.Cleanup(w.ledger.Close)
	served := make(chan error, 1)
	go func() { served <- sim.Serve(w.net) }()
	quit, ticked := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ticked)
		for moves := time.NewTicker(time.Second); ; { // fake time that moves is progress
			select {
			case <-moves.C:
				progress.Add(1)
			case <-quit:
				moves.Stop()
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(quit)
		<-ticked
		if err := <-served; err != nil {
			t.Errorf("simulator ended with %v", err)
		}
	})
	if _, err := w.st.CreateOrganization(t.Context(), fleet.Organization{ID: w.org, Label: "Organization A", Strategy: fleet.StrategyPriority}); err != nil {
		t.Fatal(err)
	}
	return w
}

// close ends everything so that the bubble may exit.
func (w *world) close() {
	for _, p := range w.procs {
		p.stop()
	}
	w.sim.Close()
	_ = w.net.Close()
	_ = w.bus.Close()
	time.Sleep(10 * time.Minute) // fake: close timers and handshakes of whatsmeow run out
}

// proc is one worker process.
type proc struct {
	w      *world
	name   string
	st     *store.Store
	gate   *gate
	worker *Worker
	cancel context.CancelFunc
	done   chan struct{}
	once   sync.Once
}

// start runs a worker. Its dials go under its name, its database calls through a gate.
func (w *world) start(name string, change ...func(*Options)) *proc {
	w.t.Helper()
	p := &proc{w: w, name: name, gate: &gate{}, done: make(chan struct{})}
	p.st = storetest.Open(w.t, w.url, func(o *store.Options) { o.Wrap = p.gate.wrap })
	network, err := wa.SimulatedNetwork(w.sim.RootKey(), w.net.Dialer(name))
	if err != nil {
		w.t.Fatal(err)
	}
	o := Options{
		Store: p.st, Bus: w.bus, Network: network, ID: name, Owner: name + "/1", Version: "test",
		Inbound: inbound.New(inbound.Options{Store: p.st, Bus: w.bus, Log: testkit.Logger(w.t)}), Ledger: w.ledger,
		Log: testkit.Logger(w.t).With(slog.String("process", name)),
	}
	w.procs = append(w.procs, p)
	for _, c := range change {
		c(&o)
	}
	p.worker = New(o)
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	p.cancel = cancel
	go func() {
		defer close(p.done)
		if err := p.worker.Run(ctx); err != nil {
			w.t.Errorf("worker %s ended with %v", name, err)
		}
	}()
	return p
}

// stop is the graceful stop; it returns when the worker has exited.
func (p *proc) stop() {
	p.once.Do(func() {
		p.gate.open()
		p.cancel()
		<-p.done
	})
}

// crash makes the process vanish: nothing it does reaches the database or the network any more.
func (p *proc) crash() {
	p.gate.fail(errors.New("the process is gone"))
	p.w.net.SetDown(p.name, true)
	p.w.net.Each(p.name, func(l *memnet.Link) { l.Reset() })
}

// session creates a session.
func (w *world) session() fleet.Session {
	w.t.Helper()
	s, err := w.st.CreateSession(w.t.Context(), store.NewSession{Org: w.org, Warmed: true})
	if err != nil {
		w.t.Fatal(err)
	}
	w.budget(s.Slug, fleet.Budget{PerMinute: 10_000, PerHour: 10_000, PerDay: 10_000})
	return s
}

// budget sets what a session may send.
func (w *world) budget(slug fleet.SessionSlug, b fleet.Budget) {
	w.t.Helper()
	if _, err := w.st.UpdateSession(w.t.Context(), slug, store.SessionChange{Budget: &b}); err != nil {
		w.t.Fatal(err)
	}
}

// paired creates a session and links it to number by QR. A worker must run.
func (w *world) paired(number string) fleet.Session {
	w.t.Helper()
	s := w.session()
	w.command(s.ID, fleet.CommandPair, `{"method":"qr"}`)
	w.await("a QR code", func() bool { return w.row(s.ID).Pairing.QR != "" })
	if err := w.sim.Phone(number).ScanQR(w.t.Context(), w.row(s.ID).Pairing.QR); err != nil {
		w.t.Fatal(err)
	}
	w.await("a complete pairing", func() bool {
		r := w.row(s.ID)
		return r.Observed == fleet.ObservedConnected && r.Ever()
	})
	w.sleep(5 * time.Second) // the phone's first sync is through: what ends in its middle is a race in whatsmeow
	return w.row(s.ID)
}

func (w *world) command(id fleet.SessionID, kind, payload string) fleet.CommandID {
	w.t.Helper()
	c, err := w.st.InsertCommand(w.t.Context(), fleet.Command{
		SessionID: id, Class: fleet.ClassControl, Kind: kind, Payload: payload, ExpiresAt: time.Now().Add(5 * time.Minute),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	_ = w.bus.Publish(w.t.Context(), bus.TopicUnassigned, string(id)) // whoever owns it looks, too
	return c.ID
}

func (w *world) row(id fleet.SessionID) fleet.Session {
	w.t.Helper()
	s, err := w.st.SessionByID(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// send queues a text as the API would.
func (w *world) send(s fleet.Session, to, text string) fleet.MessageID {
	w.t.Helper()
	r, err := fleet.ParseRecipient(to)
	if err != nil {
		w.t.Fatal(err)
	}
	var id fleet.MessageID
	err = w.st.InTx(w.t.Context(), func(ctx context.Context) error {
		cnv, err := w.st.Conversation(ctx, s.OrgID, r.ContactKey)
		if err != nil {
			return err
		}
		m, err := w.st.CreateMessage(ctx, fleet.Message{
			OrgID: s.OrgID, SessionID: s.ID, ConversationID: cnv, ContactKey: r.ContactKey, To: to, ToJID: r.JID,
			Kind: "text", Text: text, WAID: fleet.NewWAID(),
		}, fleet.DefaultTTL)
		id = m.ID
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	_ = w.bus.Publish(w.t.Context(), bus.TopicSend, string(s.ID))
	return id
}

func (w *world) message(id fleet.MessageID) fleet.Message {
	w.t.Helper()
	m, err := w.st.GetMessage(w.t.Context(), w.org, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

func (w *world) awaitStatus(id fleet.MessageID, want ...fleet.Status) {
	w.t.Helper()
	w.await(fmt.Sprintf("message in %v", want), func() bool { return slices.Contains(want, w.message(id).Status) })
}

// await looks every 200 fake milliseconds, for at most two fake minutes.
func (w *world) await(what string, ok func() bool) {
	w.t.Helper()
	w.awaitFor(2*time.Minute, what, ok)
}

func (w *world) awaitFor(limit time.Duration, what string, ok func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(limit); !ok(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("after %v: no %s; sessions %s", limit, what, w.describe())
		}
	}
}

// sleep lets fake time pass.
func (w *world) sleep(d time.Duration) { time.Sleep(d) }

func (w *world) describe() string {
	var out strings.Builder
	sessions, err := w.st.OrgSessions(w.t.Context(), w.org)
	if err != nil {
		return err.Error()
	}
	for _, s := range sessions {
		fmt.Fprintf(&out, "[%s %s reason=%s error=%q owner=%s epoch=%d generation=%d attempts=%d]",
			s.Slug, s.Observed, s.Reason, s.LastError, s.LeaseOwner, s.LeaseEpoch, s.Generation, s.Attempts)
	}
	return out.String()
}

// texts returns what a phone shows: every text from others once, in order.
func (w *world) texts(phone string) []string {
	var out []string
	for _, r := range w.sim.Phone(phone).Received() {
		if !r.Duplicate && !r.FromMe && r.Text != "" {
			out = append(out, r.Text)
		}
	}
	return out
}

// frames returns the message frames of one WhatsApp id that the server took in.
func (w *world) frames(waID string) []wasim.Entry {
	return w.sim.Log(wasim.Query{ID: waID, Kind: wasim.KindMessage, Dir: wasim.DirIn})
}

func (w *world) logins(number string) []wasim.Entry {
	return w.sim.Log(wasim.Query{Session: number, Kind: wasim.KindLogin})
}

// events returns the events of one kind, in the order they were written.
func (w *world) events(kind fleet.EventKind) []fleet.Event {
	w.t.Helper()
	rows, err := w.st.DB().Query(w.t.Context(), `SELECT id FROM events WHERE kind=$1 ORDER BY n`, string(kind))
	if err != nil {
		w.t.Fatal(err)
	}
	var ids []fleet.EventID
	for rows.Next() {
		var id fleet.EventID
		if err := rows.Scan(&id); err != nil {
			w.t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		w.t.Fatal(err)
	}
	var out []fleet.Event
	for _, id := range ids {
		e, err := w.st.GetEvent(w.t.Context(), "", id)
		if err != nil {
			w.t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

// came counts the events of messages that came in.
func (w *world) came() int {
	w.t.Helper()
	var n int
	if err := w.st.DB().QueryRow(w.t.Context(), `SELECT count(*) FROM events WHERE kind=$1`, fleet.EventMessage).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// inbound returns the inbound messages that events were written for, in event order.
func (w *world) inbound() []fleet.Inbound {
	w.t.Helper()
	var out []fleet.Inbound
	for _, e := range w.events(fleet.EventMessage) {
		m, err := w.st.GetInbound(w.t.Context(), w.org, e.Data.InboundID)
		if err != nil {
			w.t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}

// route asks the router for a session that sends now, and wants this refusal, "" for none.
func (w *world) route(want string) fleet.SessionSlug {
	w.t.Helper()
	c, err := router.New(router.Options{Store: w.st, Ledger: w.ledger, Keep: -1}).Route(w.t.Context(), router.Send{Org: w.org, Project: "prj_1", Key: "5511900000001"})
	code := ""
	if coded, ok := errors.AsType[*fleet.CodedError](err); ok {
		code = coded.Code
	} else if err != nil {
		w.t.Fatal(err)
	}
	if code != want {
		w.t.Errorf("Route = %q, %v, want %q; sessions %s", c.Session.Slug, err, want, w.describe())
	}
	return c.Session.Slug
}

// statuses returns the states that session.status events told, in order.
func (w *world) statuses() []fleet.Observed {
	w.t.Helper()
	var out []fleet.Observed
	for _, e := range w.events(fleet.EventSessionStatus) {
		out = append(out, e.Data.Observed)
	}
	return out
}
