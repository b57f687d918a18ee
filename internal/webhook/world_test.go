package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/wasim/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// request is one that a receiver got.
type request struct {
	host    string
	header  http.Header
	body    []byte
	at      time.Time
	status  int
	Event   fleet.EventKind
	ID      fleet.EventID
	Seq     int64
	Payload struct{ Text string }
	Conv    string `json:"conversationId"`
}

// receiver is the other side of every endpoint of a test: it keeps what came and answers as told.
type receiver struct {
	mu     sync.Mutex
	got    []request
	answer map[string]func(w http.ResponseWriter, r *http.Request, q *request) // by host; missing = 200
}

func (v *receiver) on(host string, answer func(w http.ResponseWriter, r *http.Request, q *request)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.answer[host] = answer
}

func (v *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	q := request{host: r.Host, header: r.Header.Clone(), body: body, at: time.Now()}
	if err := json.Unmarshal(body, &q); err != nil {
		panic(fmt.Sprintf("body is not JSON: %v", err))
	}
	v.mu.Lock()
	answer := v.answer[r.Host]
	v.mu.Unlock()
	rec := &recorder{ResponseWriter: w, status: http.StatusOK}
	if answer != nil {
		answer(rec, r, &q)
	}
	q.status = rec.status
	v.mu.Lock()
	defer v.mu.Unlock()
	v.got = append(v.got, q)
}

type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// requests returns what a host got, in the order in which the answers were given.
func (v *receiver) requests(host string) []request {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []request
	for _, q := range v.got {
		if q.host == host {
			out = append(out, q)
		}
	}
	return out
}

func always(status int) func(http.ResponseWriter, *http.Request, *request) {
	return func(w http.ResponseWriter, _ *http.Request, _ *request) { w.WriteHeader(status) }
}

// world is a database, a receiver and a worker on one clock.
type world struct {
	t    *testing.T
	s    *store.Store
	bus  bus.Bus
	rx   *receiver
	net  *memnet.Net
	logs *syncBuffer
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// newWorld is for the inside of a synctest bubble: SQLite, and a network in memory.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, s: storetest.SQLite(t), bus: bus.NewLocal(), net: memnet.New(), logs: &syncBuffer{}}
	w.rx = &receiver{answer: map[string]func(http.ResponseWriter, *http.Request, *request){}}
	server := &http.Server{Handler: w.rx, ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(w.net)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
		_ = w.bus.Close()
	})
	return w
}

func (w *world) options(owner string) Options {
	return Options{
		Store: w.s, Bus: w.bus, Owner: owner, Client: newClient(w.net.Dialer(owner), nil),
		Log: slog.New(slog.NewTextHandler(io.MultiWriter(w.logs, w.t.Output()), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}

// run starts a worker; stop ends it and waits.
func run(t *testing.T, o Options) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := New(o).Run(ctx); err != nil {
			t.Errorf("Run = %v", err)
		}
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(stop)
	return stop
}

func org(t *testing.T, s *store.Store, id fleet.OrgID) fleet.Session {
	t.Helper()
	if _, err := s.CreateOrganization(t.Context(), fleet.Organization{ID: id, Strategy: fleet.StrategyWeighted}); err != nil {
		t.Fatal(err)
	}
	v, err := s.CreateSession(t.Context(), store.NewSession{Org: id})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func endpoint(t *testing.T, s *store.Store, e fleet.Endpoint) fleet.Endpoint {
	t.Helper()
	if e.Scope == "" {
		e.Scope = fleet.ScopeOrganization
	}
	got, err := s.CreateEndpoint(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// say stores a message of somebody and its event, as inbound does.
func say(t *testing.T, s *store.Store, session fleet.Session, contact, text string) fleet.EventID {
	t.Helper()
	var id fleet.EventID
	err := s.InTx(t.Context(), func(ctx context.Context) error {
		conversation, err := s.Conversation(ctx, session.OrgID, contact)
		if err != nil {
			return err
		}
		_, m, err := s.InsertInbound(ctx, fleet.Inbound{
			OrgID: session.OrgID, SessionID: session.ID, ConversationID: conversation, Chat: contact + "@s.whatsapp.net", Sender: contact + "@s.whatsapp.net",
			SenderPhone: contact, WAID: fleet.NewWAID(), Kind: "text", Text: text, SentAt: time.Now(),
		})
		if err != nil {
			return err
		}
		ev, err := s.AppendEvent(ctx, fleet.Event{
			OrgID: session.OrgID, Kind: fleet.EventMessage, SessionID: session.ID, ConversationID: conversation, Data: fleet.EventData{InboundID: m.ID},
		})
		id = ev.ID
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func deliveries(t *testing.T, s *store.Store, q store.DeliveryQuery) []fleet.Delivery {
	t.Helper()
	q.Limit = 1000
	list, err := s.ListDeliveries(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func contact(n int) string { return fmt.Sprintf("55119000%05d", n) }
