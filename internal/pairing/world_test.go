package pairing

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/httpapi"
	"github.com/wafleet/wafleet/internal/inbound"
	"github.com/wafleet/wafleet/internal/scheduler"
	"github.com/wafleet/wafleet/internal/seal"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
	"github.com/wafleet/wafleet/internal/wa"
	"github.com/wafleet/wafleet/internal/wasim"
	"github.com/wafleet/wafleet/internal/wasim/memnet"
	"github.com/wafleet/wafleet/internal/worker"
)

// Numbers of the tests.
const (
	number1 = "5511900000001"
	number2 = "5511900000002"
)

// gateway is the page in front of a database, and behind it, if the test wants one, a worker with a
// simulated WhatsApp.
type gateway struct {
	t    *testing.T
	st   *store.Store
	bus  *bus.Local
	auth *auth.Auth
	page *Page
	api  http.Handler // as visitors reach it
	log  *lockedLog
	sim  *wasim.Server
	net  *memnet.Net
	stop []func()
}

type lockedLog struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newGateway opens a gateway with the organization org-a. In a bubble the caller must close it there.
func newGateway(t *testing.T, s *store.Store, publicURL string) *gateway {
	t.Helper()
	g := &gateway{t: t, st: s, bus: bus.NewLocal(), log: &lockedLog{}}
	log := slog.New(slog.NewTextHandler(g.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	g.auth = auth.New(auth.Options{Store: s, Bus: g.bus, Lookup: seal.NewLookup(seal.NewKey()), Log: log})
	g.page = New(Options{Store: s, Auth: g.auth, Bus: g.bus, Log: log, PublicURL: publicURL})
	pages := map[string]http.Handler{}
	for _, prefix := range Paths() {
		pages[prefix] = g.page
	}
	g.api = httpapi.New(httpapi.Options{Store: s, Auth: g.auth, Bus: g.bus, Log: log, Registerer: prometheus.NewRegistry(), PublicURL: publicURL, Pages: pages})
	if _, err := s.CreateOrganization(t.Context(), fleet.Organization{ID: "org-a", Label: "Organization A", Strategy: fleet.StrategyWeighted}); err != nil {
		t.Fatal(err)
	}
	return g
}

// plainGateway has no worker: rows change when the test changes them.
func plainGateway(t *testing.T) *gateway {
	t.Helper()
	g := newGateway(t, storetest.SQLite(t), "http://wa.example.com")
	t.Cleanup(func() { _ = g.bus.Close() })
	return g
}

// background runs fn until the gateway is closed.
func (g *gateway) background(fn func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(g.t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := fn(ctx); err != nil {
			g.t.Errorf("a part of the gateway ended with %v", err)
		}
	}()
	g.stop = append(g.stop, func() { cancel(); <-done })
}

// start runs the simulator, a worker, a scheduler, and what the page runs beside requests.
func (g *gateway) start() {
	g.t.Helper()
	sim, err := wasim.New(wasim.Options{Log: testkit.Logger(g.t), FewKeys: true})
	if err != nil {
		g.t.Fatal(err)
	}
	g.sim, g.net = sim, memnet.New()
	g.background(func(ctx context.Context) error {
		defer context.AfterFunc(ctx, sim.Close)()
		return sim.Serve(g.net)
	})
	network, err := wa.SimulatedNetwork(sim.RootKey(), g.net.Dialer("w1"))
	if err != nil {
		g.t.Fatal(err)
	}
	log := testkit.Logger(g.t)
	g.background(worker.New(worker.Options{
		Store: g.st, Bus: g.bus, Network: network, ID: "w1", Owner: "w1/1", Version: "test", Log: log,
		Inbound: inbound.New(inbound.Options{Store: g.st, Bus: g.bus, Log: log}),
	}).Run)
	jobs := scheduler.Jobs(scheduler.JobOptions{Store: g.st, Bus: g.bus, Log: log})
	g.background(scheduler.New(scheduler.Options{ // of its jobs, the one that is about links
		Store: g.st, Holder: "s1/1", Log: log,
		Jobs: slices.DeleteFunc(jobs, func(j scheduler.Job) bool { return j.Name != "release-invites" }),
	}).Run)
	g.background(g.page.Run)
	g.background(g.auth.Run) // it ends the caches, too
}

func (g *gateway) close() {
	for _, stop := range slices.Backward(g.stop) {
		stop()
	}
	if g.net != nil {
		_ = g.net.Close()
	}
	_ = g.bus.Close()
}

// mint makes a link and returns its path.
func (g *gateway) mint(slots int) (string, fleet.Invite) {
	g.t.Helper()
	secret, i, err := g.auth.CreateInvite(g.t.Context(), auth.NewInvite{Org: "org-a", MaxSessions: slots, TTL: 24 * time.Hour})
	if err != nil {
		g.t.Fatal(err)
	}
	return pathPrefix + secret.Reveal(), i
}

// got is an answer with its body read.
type got struct {
	status int
	header http.Header
	body   string
}

// location is where the answer leads.
func (a got) location() string { return a.header.Get("Location") }

func (g *gateway) do(method, path string, form url.Values, edit ...func(*http.Request)) got {
	g.t.Helper()
	r := httptest.NewRequestWithContext(g.t.Context(), method, path, strings.NewReader(form.Encode()))
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, e := range edit {
		e(r)
	}
	w := httptest.NewRecorder()
	g.api.ServeHTTP(w, r)
	return got{w.Code, w.Result().Header, w.Body.String()}
}

func (g *gateway) get(path string, edit ...func(*http.Request)) got {
	g.t.Helper()
	return g.do(http.MethodGet, path, nil, edit...)
}

// press posts a form and returns where it leads.
func (g *gateway) press(path string, form url.Values) string {
	g.t.Helper()
	a := g.do(http.MethodPost, path, form)
	if a.status != http.StatusSeeOther {
		g.t.Fatalf("POST %s = %d, want a redirect; body:\n%s", path, a.status, a.body)
	}
	return a.location()
}

func (g *gateway) used(id fleet.InviteID) int {
	g.t.Helper()
	list, err := g.st.ListInvites(g.t.Context(), store.InviteQuery{Limit: 100})
	if err != nil {
		g.t.Fatal(err)
	}
	for _, i := range list {
		if i.ID == id {
			return i.Used
		}
	}
	g.t.Fatalf("no invite %s", id)
	return 0
}

func (g *gateway) slugs() []fleet.SessionSlug {
	g.t.Helper()
	list, err := g.st.OrgSessions(g.t.Context(), "org-a")
	if err != nil {
		g.t.Fatal(err)
	}
	out := []fleet.SessionSlug{}
	for _, v := range list {
		out = append(out, v.Slug)
	}
	return out
}

func (g *gateway) sql(q string, args ...any) {
	g.t.Helper()
	if _, err := g.st.DB().Exec(g.t.Context(), q, args...); err != nil {
		g.t.Fatalf("%s: %v", q, err)
	}
}

// viewer is a browser that holds a page's events open. What it shows is the last "live" event.
type viewer struct {
	mu     sync.Mutex
	shows  string
	events int
	done   string // data of the event "done"
	cancel context.CancelFunc
	ended  chan struct{}
}

// watch opens the events of a page and, as browsers do, again whenever they end without "done".
func (g *gateway) watch(path string) *viewer {
	g.t.Helper()
	ctx, cancel := context.WithCancel(g.t.Context())
	v := &viewer{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(v.ended)
		for ctx.Err() == nil && v.over() == "" {
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, path+"/events", nil)
			g.api.ServeHTTP(&streamed{viewer: v, header: http.Header{}}, r)
		}
	}()
	return v
}

func (v *viewer) close() { v.cancel(); <-v.ended }

func (v *viewer) now() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.shows
}

func (v *viewer) over() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.done
}

// streamed reads server-sent events as they are written.
type streamed struct {
	*viewer
	header http.Header
	rest   string
}

func (s *streamed) Header() http.Header { return s.header }
func (s *streamed) WriteHeader(int)     {}
func (s *streamed) Flush()              {}
func (s *streamed) Write(p []byte) (int, error) {
	s.rest += string(p)
	for {
		block, rest, ok := strings.Cut(s.rest, "\n\n")
		if !ok {
			return len(p), nil
		}
		s.rest = rest
		var name string
		var data []string
		for line := range strings.SplitSeq(block, "\n") {
			if v, ok := strings.CutPrefix(line, "event: "); ok {
				name = v
			}
			if v, ok := strings.CutPrefix(line, "data: "); ok {
				data = append(data, v)
			}
		}
		s.mu.Lock()
		switch name {
		case "live":
			s.shows = strings.Join(data, "\n")
			s.events++
		case "done":
			s.done = strings.Join(data, "\n")
		}
		s.mu.Unlock()
	}
}

var _ io.Writer = (*streamed)(nil)
