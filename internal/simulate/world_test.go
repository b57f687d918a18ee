package simulate

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alexedwards/argon2id"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
	"github.com/wafleet/wafleet/internal/router"
	"github.com/wafleet/wafleet/internal/seal"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/wasim"
	"github.com/wafleet/wafleet/internal/wasim/memnet"
)

const org = fleet.OrgID("org-a")

// world is everything of one run. All of it is made inside the bubble.
type world struct {
	t      *testing.T
	plan   plan
	url    string
	log    *slog.Logger
	lookup *seal.Lookup
	secret string // the organization's API key

	sim      *wasim.Server
	whatsapp *memnet.Net
	hooks    *memnet.Net
	bus      *flakyBus
	ledger   *ledger.Memory
	st       *store.Store // the test's own view, without a gate
	receiver *receiver

	slots    []*slot
	lives    atomic.Int64 // of all processes
	sessions []*number
	people   []*person
	clients  []*client

	gates     []*gate // of slots that have ended
	stormEnds time.Time
	undo      sync.WaitGroup // faults that end by themselves
	busy      sync.WaitGroup // clients and people

	mu       sync.Mutex
	problems []string
	fired    map[string]int // faults that took place
}

// number is a session and its WhatsApp number.
type number struct {
	name string
	id   fleet.SessionID
	pn   string
}

// problem notes a violation.
func (w *world) problem(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

// newWorld makes the parts that no process owns, and starts nothing of the gateway.
func newWorld(t *testing.T, p plan, url string, log *slog.Logger, progress *atomic.Int64) *world {
	t.Helper()
	w := &world{
		t: t, plan: p, url: url, log: log, lookup: seal.NewLookup(seal.NewKey()),
		whatsapp: memnet.New(), hooks: memnet.New(), bus: &flakyBus{Local: bus.NewLocal()}, fired: map[string]int{},
	}
	var err error
	if w.sim, err = wasim.New(wasim.Options{FewKeys: true}); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- w.sim.Serve(w.whatsapp) }()
	quit, ticked := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ticked)
		moves := time.NewTicker(time.Second) // fake time that moves is progress
		defer moves.Stop()
		for {
			select {
			case <-moves.C:
				progress.Add(1)
			case <-quit:
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
	w.st = storetest.Open(t, url)
	w.ledger = ledger.NewMemory(ledger.Options{Rebuild: router.Rebuild(w.st, 20, 5)}) // like a Redis that no process takes down with it
	t.Cleanup(w.ledger.Close)
	w.receiver = newReceiver(w)
	w.seed()
	return w
}

// seed writes the organization, its key and its endpoints, and makes the database note every change of a message's status and session.
func (w *world) seed() {
	ctx := w.t.Context()
	w.must(w.exec(`CREATE TABLE sim_moves (n INTEGER PRIMARY KEY, id TEXT, was TEXT, became TEXT, at BIGINT)`))
	w.must(w.exec(`CREATE TRIGGER sim_moves AFTER UPDATE OF status ON messages WHEN old.status<>new.status
		BEGIN INSERT INTO sim_moves (id, was, became) VALUES (new.id, old.status, new.status); END`))
	w.must(w.exec(`CREATE TABLE sim_reroutes (n INTEGER PRIMARY KEY, id TEXT, behind BIGINT)`))
	w.must(w.exec(`CREATE TRIGGER sim_reroutes AFTER UPDATE OF session_id ON messages WHEN old.session_id<>new.session_id
		BEGIN INSERT INTO sim_reroutes (id, behind) SELECT new.id, max(seq) FROM messages; END`))
	_, err := w.st.CreateOrganization(ctx, fleet.Organization{ID: org, Label: "Organization A", Strategy: fleet.StrategyWeighted})
	w.must(err)
	project, err := w.st.DefaultProject(ctx, org)
	w.must(err)
	secret := auth.Mint(false)
	w.secret = secret.Reveal()
	hash, err := argon2id.CreateHash(w.secret, &argon2id.Params{Memory: 64, Iterations: 1, Parallelism: 1, SaltLength: 8, KeyLength: 16})
	w.must(err)
	_, err = w.st.InsertKey(ctx, fleet.APIKey{
		ID: fleet.NewKeyID(), OrgID: org, ProjectID: project, Prefix: secret.Shown(), LookupHash: w.lookup.Hashes(w.secret)[0], VerifyHash: hash,
	})
	w.must(err)
	for host, e := range map[string]fleet.Endpoint{
		hostOrganization: {OrgID: org, Scope: fleet.ScopeOrganization},
		hostOperator:     {Scope: fleet.ScopeOperator, Events: aboutTheFleet()},
	} {
		e.URL = "http://" + host + "/hook"
		e, err = w.st.CreateEndpoint(ctx, e)
		w.must(err)
		w.receiver.expect(host, e)
	}
}

// aboutTheFleet are the kinds of events that only operators hear.
func aboutTheFleet() []fleet.EventKind {
	return slices.DeleteFunc(fleet.EventKinds(fleet.ScopeOperator), func(k fleet.EventKind) bool {
		return slices.Contains(fleet.EventKinds(fleet.ScopeOrganization), k)
	})
}

func (w *world) exec(q string) error {
	_, err := w.st.DB().Exec(w.t.Context(), q)
	return err
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// start brings the gateway up and links the sessions.
func (w *world) start() {
	w.up()
	for i, name := range personNames {
		w.people = append(w.people, newPerson(w, i, name))
	}
	for i, name := range sessionNames {
		w.link(name, fmt.Sprintf("55119000000%02d", i+1))
	}
	pause(5 * time.Second) // the phones' first sync is through
}

func (w *world) up() {
	w.slots = nil
	for _, name := range workerNames {
		w.slots = append(w.slots, newSlot(w, name, startWorker))
	}
	for _, name := range apiNames {
		w.slots = append(w.slots, newSlot(w, name, startAPI))
	}
	w.slots = append(w.slots, newSlot(w, "webhooks", startWebhooks), newSlot(w, "scheduler", startScheduler))
}

// link makes a session and pairs it by QR.
func (w *world) link(name, pn string) {
	w.t.Helper()
	s, err := w.st.CreateSession(w.t.Context(), store.NewSession{Org: org, Warmed: true})
	w.must(err)
	much := fleet.MaxBudget
	_, err = w.st.UpdateSession(w.t.Context(), s.Slug, store.SessionChange{
		Budget: &fleet.Budget{PerMinute: much, PerHour: much, PerDay: much}, NewChatsPerDay: &much,
	})
	w.must(err)
	w.command(s.ID, fleet.CommandPair, `{"method":"qr"}`)
	var row fleet.Session
	w.await("a QR code", func() bool { row = w.row(s.ID); return row.Pairing.QR != "" })
	w.must(w.sim.Phone(pn).ScanQR(w.t.Context(), row.Pairing.QR))
	w.await("a complete pairing", func() bool { row = w.row(s.ID); return row.Observed == fleet.ObservedConnected && row.Ever() })
	w.sessions = append(w.sessions, &number{name: name, id: s.ID, pn: pn})
}

func (w *world) command(id fleet.SessionID, kind, payload string) {
	w.t.Helper()
	_, err := w.st.InsertCommand(w.t.Context(), fleet.Command{
		SessionID: id, Class: fleet.ClassControl, Kind: kind, Payload: payload, ExpiresAt: time.Now().Add(5 * time.Minute),
	})
	w.must(err)
	_ = w.bus.Local.Publish(w.t.Context(), bus.TopicUnassigned, string(id))
}

func (w *world) row(id fleet.SessionID) fleet.Session {
	w.t.Helper()
	s, err := w.st.SessionByID(w.t.Context(), id)
	w.must(err)
	return s
}

// await looks every 200 fake milliseconds, for at most two fake minutes.
func (w *world) await(what string, ok func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); pause(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("after two minutes: no %s", what)
		}
	}
}

// slot finds a place for a process by its name.
func (w *world) slot(name string) *slot {
	for _, s := range w.slots {
		if s.name == name {
			return s
		}
	}
	return nil
}

// close ends everything, so that the bubble may exit.
func (w *world) close() {
	for _, s := range w.slots {
		s.end()
	}
	w.undo.Wait()
	w.sim.Close()
	_ = w.whatsapp.Close()
	w.receiver.close()
	for _, c := range w.clients {
		c.http.CloseIdleConnections()
	}
	_ = w.bus.Close()
	pause(10 * time.Minute) // close timers and handshakes of whatsmeow run out
	settle()
}

// flakyBus loses nudges on demand.
type flakyBus struct {
	*bus.Local
	down atomic.Bool
}

// Publish implements bus.Bus.
func (b *flakyBus) Publish(ctx context.Context, topic, payload string) error {
	if b.down.Load() {
		return errLost
	}
	return b.Local.Publish(ctx, topic, payload)
}

// outcome is what a run found.
type outcome struct {
	problems []string
	fired    map[string]int
	seen     map[string]int // statements by kind, of processes with a gate
	messages int            // accepted
	inbound  int            // written by people
}

// run lets a plan happen in a bubble of its own.
func run(t *testing.T, p plan, progress *atomic.Int64) (out outcome) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	if *showLog {
		log = slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	url := storetest.SQLiteURL(t) // migrated on real time
	defer func() {
		if r := recover(); r != nil { // synctest says so of goroutines that are left, on the goroutine that called it
			out.problems = append(out.problems, fmt.Sprintf("the bubble ended badly: %v", r))
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, p, url, log, progress)
		defer func() {
			w.close()
			out.problems, out.fired = w.problems, w.fired
		}()
		w.start()
		before, _ := w.goroutines()
		w.storm()
		w.calm()
		after, stacks := w.goroutines()
		if w.undecided() > 0 {
			w.dayOff()
		}
		if after > before+goroutineSlack {
			w.problem("%d goroutines before the storm, %d after the calm\n%s", before, after, stacks)
		}
		w.check()
		out.messages, out.inbound, out.seen = w.accepted(), w.written(), w.statements()
	})
	return out
}

// httpServer serves h on n until the returned function ends it and waits for its handlers.
func serveHTTP(n *memnet.Net, h http.Handler) (shutdown func(context.Context), abort func()) {
	var running sync.WaitGroup
	srv := &http.Server{
		ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			running.Add(1)
			defer running.Done()
			h.ServeHTTP(w, r)
		}),
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(n)
	}()
	abort = func() {
		_ = srv.Close()
		_ = n.Close()
		<-served
		running.Wait()
	}
	shutdown = func(ctx context.Context) {
		_ = srv.Shutdown(ctx)
		abort()
	}
	return shutdown, abort
}
