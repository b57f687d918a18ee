package httpapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/httpapi"
	"github.com/wafleet/wafleet/internal/ledger"
	"github.com/wafleet/wafleet/internal/outbound"
	"github.com/wafleet/wafleet/internal/router"
	"github.com/wafleet/wafleet/internal/seal"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// fixture is the API over a database with two organizations, one session each, and keys.
type fixture struct {
	t       *testing.T
	store   *store.Store
	auth    *auth.Auth
	bus     *bus.Local
	api     *httpapi.API
	log     *lockedBuffer
	metrics *prometheus.Registry
	keys    map[string]string // "admin", "org-a", "org-b" → key
}

func newFixture(t *testing.T, s *store.Store, edit ...func(*httpapi.Options)) *fixture {
	t.Helper()
	f := &fixture{t: t, store: s, bus: bus.NewLocal(), log: &lockedBuffer{}, metrics: prometheus.NewRegistry(), keys: map[string]string{}}
	t.Cleanup(func() {
		_ = f.bus.Close()
		if t.Failed() {
			t.Logf("log:\n%s", f.log.String())
		}
	})
	log := slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	f.auth = auth.New(auth.Options{Store: s, Bus: f.bus, Lookup: seal.NewLookup(lookupKey), Log: log})
	o := httpapi.Options{Store: s, Auth: f.auth, Bus: f.bus, Log: log, Registerer: f.metrics, AllowPrivateWebhooks: true}
	l := ledger.NewMemory(ledger.Options{Rebuild: router.Rebuild(s, 20, 5)})
	t.Cleanup(l.Close)
	o.Outbound = outbound.New(outbound.Options{
		Store: s, Router: router.New(router.Options{Store: s, Ledger: l, Keep: -1}), Ledger: l, Bus: o.Bus, Log: o.Log, Registerer: o.Registerer,
	})
	for _, e := range edit {
		e(&o)
	}
	f.api = httpapi.New(o)
	for _, org := range []fleet.OrgID{"org-a", "org-b"} {
		if _, err := s.CreateOrganization(t.Context(), fleet.Organization{ID: org, Label: string(org), Strategy: fleet.StrategyWeighted}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.CreateSession(t.Context(), store.NewSession{Org: org}); err != nil {
			t.Fatal(err)
		}
		f.share(string(org), auth.NewKey{Org: org})
	}
	f.share("admin", auth.NewKey{Admin: true})
	return f
}

func sqliteFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixture(t, storetest.SQLite(t))
}

// lookupKey is one for the process, so that a key made for one fixture works in the next.
var lookupKey = seal.NewKey()

// minted are the keys that every fixture has, by name. Making one costs an argon2id, which is most of
// a fixture's time; a copy of its row costs nothing.
var minted sync.Map

type mintedKey struct {
	secret string
	row    fleet.APIKey
}

// share gives the fixture the same key that others of this name have.
func (f *fixture) share(name string, n auth.NewKey) {
	f.t.Helper()
	v, ok := minted.Load(name)
	if !ok {
		row := f.mint(name, n)
		minted.Store(name, mintedKey{f.keys[name], row})
		return
	}
	key := v.(mintedKey)
	key.row.ID = fleet.NewKeyID()
	if !n.Admin {
		var err error
		if key.row.ProjectID, err = f.store.DefaultProject(f.t.Context(), n.Org); err != nil {
			f.t.Fatal(err)
		}
	}
	if _, err := f.store.InsertKey(f.t.Context(), key.row); err != nil {
		f.t.Fatal(err)
	}
	f.keys[name] = key.secret
}

// mint makes a key of its own for the fixture.
func (f *fixture) mint(name string, n auth.NewKey) fleet.APIKey {
	f.t.Helper()
	secret, key, err := f.auth.Create(f.t.Context(), n)
	if err != nil {
		f.t.Fatal(err)
	}
	f.keys[name] = secret.Reveal()
	return key
}

// answer is a response with its body read.
type answer struct {
	t      *testing.T
	status int
	header http.Header
	body   string
}

// do sends a request as the named key ("" = none). A body that is not a string is written as JSON.
func (f *fixture) do(as, method, url string, body any, edit ...func(*http.Request)) *answer {
	f.t.Helper()
	raw, ok := body.(string)
	if body != nil && !ok {
		b, err := json.Marshal(body)
		if err != nil {
			f.t.Fatal(err)
		}
		raw = string(b)
	}
	r := httptest.NewRequestWithContext(f.t.Context(), method, url, strings.NewReader(raw))
	if raw != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if key := f.keys[as]; key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	} else if as != "" {
		f.t.Fatalf("no key named %q", as)
	}
	for _, e := range edit {
		e(r)
	}
	w := httptest.NewRecorder()
	f.api.ServeHTTP(w, r)
	return &answer{f.t, w.Code, w.Result().Header, w.Body.String()}
}

// must is do for requests that the test only builds on.
func (f *fixture) must(as, method, url string, body any) map[string]any {
	f.t.Helper()
	a := f.do(as, method, url, body)
	if a.status/100 != 2 {
		f.t.Fatalf("%s %s = %d %s", method, url, a.status, a.body)
	}
	if a.body == "" {
		return nil
	}
	return a.json()
}

func (a *answer) json() map[string]any {
	a.t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		a.t.Fatalf("body %q is not a JSON object: %v", a.body, err)
	}
	return v
}

// wantProblem checks everything a problem must have, whatever refused the request.
func (a *answer) wantProblem(name string, status int, code string) {
	a.t.Helper()
	if a.status != status {
		a.t.Errorf("%s: status = %d %s, want %d %s", name, a.status, a.body, status, code)
		return
	}
	if ct := a.header.Get("Content-Type"); ct != "application/problem+json" {
		a.t.Errorf("%s: Content-Type = %q, want application/problem+json", name, ct)
	}
	p := a.json()
	if p["code"] != code || p["status"] != float64(status) || p["title"] != http.StatusText(status) || p["detail"] == "" ||
		p["requestId"] != a.header.Get("X-Request-Id") {
		a.t.Errorf("%s: problem = %s, want code %s with status, title, detail and requestId", name, a.body, code)
	}
}

// tables hold everything that a request could write.
var tables = []string{
	"pairing_invites", "audit_log",
	"organizations", "projects", "api_keys", "sessions", "leases", "commands", "endpoints", "events", "deliveries",
	"messages", "attempts", "contacts", "contact_aliases", "opt_outs", "idempotency_keys", "inbound_messages", "streams",
}

// rows is the whole content of the database, as text per table.
func (f *fixture) rows() map[string]string {
	f.t.Helper()
	out := map[string]string{}
	for _, table := range tables {
		rows, err := f.store.DB().Query(f.t.Context(), "SELECT * FROM "+table+" ORDER BY 1, 2")
		if err != nil {
			f.t.Fatal(err)
		}
		columns, err := rows.Columns()
		if err != nil {
			f.t.Fatal(err)
		}
		var b strings.Builder
		for rows.Next() {
			values := make([]any, len(columns))
			targets := make([]any, len(columns))
			for i := range values {
				targets[i] = &values[i]
			}
			if err := rows.Scan(targets...); err != nil {
				f.t.Fatal(err)
			}
			fmt.Fprintln(&b, values...)
		}
		if err := rows.Err(); err != nil {
			f.t.Fatal(err)
		}
		if err := rows.Close(); err != nil {
			f.t.Fatal(err)
		}
		out[table] = b.String()
	}
	return out
}

// unchanged fails the test if anything was written since before was read.
func (f *fixture) unchanged(name string, before map[string]string) {
	f.t.Helper()
	if diff := cmp.Diff(before, f.rows()); diff != "" {
		f.t.Errorf("%s: something was written (-before +after):\n%s", name, diff)
	}
}

// heard collects nudges.
func (f *fixture) heard(topics ...string) func() []string {
	f.t.Helper()
	var mu sync.Mutex
	var got []string
	stop, err := f.bus.Subscribe(f.t.Context(), func(topic, payload string) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, topic+" "+payload)
	}, topics...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(stop)
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string{}, got...)
	}
}
