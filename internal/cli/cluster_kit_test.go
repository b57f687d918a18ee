package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wafleet/wafleet/internal/testkit"
	"github.com/wafleet/wafleet/internal/wasim"
)

const (
	clusterTTL  = 10 * time.Second
	clusterBeat = 2 * time.Second
)

// cluster is wafleet as separate processes on one PostgreSQL database and one Redis, with the simulator
// as one more. Everything is done and seen from outside: over HTTP, by signals, and in the rows.
type cluster struct {
	*testing.T
	settings        []string
	db              *pgx.Conn // used by the test's own goroutine only
	sim, api, admin string
	members         map[string]*member
	numbers         []*number
	hooks           *hooks

	mu   sync.Mutex // guards told, and sent and said of each number
	told []event
}

// member is one process.
type member struct {
	*started
	cmd *exec.Cmd
}

// session is what the API says of one.
type session struct {
	SessionID string `json:"sessionId"`
	State     string `json:"state"`
	Connected bool   `json:"connected"`
	PairedAt  string `json:"pairedAt"`
	Worker    string `json:"worker"`
	Epoch     int64  `json:"epoch"`
}

// startCluster migrates a fresh database and starts the processes.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	dsn := testkit.Postgres(t)
	c := &cluster{T: t, members: map[string]*member{}}
	c.settings = append(sharedSettings(t, dsn), "LEASE_TTL="+clusterTTL.String(), "LEASE_BEAT="+clusterBeat.String(),
		"DATABASE_POOL_MAX=5", "WEBHOOK_ALLOW_PRIVATE=true")
	c.listen()
	c.command("migrate")
	var err error
	if c.db, err = pgx.Connect(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.db.Close(context.WithoutCancel(t.Context())) })
	c.sim = c.run("sim", "sim", "--listen=127.0.0.1:0").find(`simulator on (http://\S+)/sim/`)
	parts := []*member{c.run("api", "api"), c.worker("w1"), c.worker("w2"), c.run("webhooks", "webhooks"), c.run("scheduler", "scheduler")}
	for _, m := range parts {
		m.waitReady()
	}
	c.api = c.members["api"].find(apiURL)
	c.admin = strings.TrimSpace(c.command("keys", "create", "--admin"))
	return c
}

func (c *cluster) worker(id string) *member { return c.run(id, "worker", "--worker-id="+id) }

// run starts a process. Its log is shown when the test fails.
func (c *cluster) run(name string, args ...string) *member {
	c.Helper()
	if c.sim != "" {
		args = append(args, "--simulator="+c.sim)
	}
	m := &member{}
	c.Cleanup(func() {
		if c.Failed() {
			fmt.Fprintf(c.Output(), "--- log of %s:\n%s%s", name, m.out.String(), m.errs.String())
		}
	})
	m.started, m.cmd = spawn(c.T, c.settings, args...)
	c.members[name] = m
	return m
}

// command runs a command that ends by itself, as a process, and returns what it prints.
func (c *cluster) command(args ...string) string {
	c.Helper()
	m := &member{}
	m.started, m.cmd = spawn(c.T, c.settings, args...)
	<-m.done
	if code := m.cmd.ProcessState.ExitCode(); code != exitOK {
		c.Fatalf("%v = %d with %s", args, code, m.errs.String())
	}
	return m.out.String()
}

func (c *cluster) signal(name string, sig syscall.Signal) {
	c.Helper()
	if err := c.members[name].cmd.Process.Signal(sig); err != nil {
		c.Fatalf("signal %s: %v", name, err)
	}
}

// ended waits for the end of a process and returns its exit code, -1 if a signal ended it.
func (c *cluster) ended(name string) int {
	c.Helper()
	m := c.members[name]
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	select {
	case <-m.done:
	case <-limit.C:
		c.Fatalf("%s has not ended within %s", name, stopLimit)
	}
	return m.cmd.ProcessState.ExitCode()
}

// do calls an HTTP API. A refusal is an *apiError.
func (c *cluster) do(method, url, key string, header http.Header, in, out any) error {
	ctx, cancel := context.WithTimeout(c.Context(), 30*time.Second)
	defer cancel()
	raw, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(raw))
	if err != nil {
		return err
	}
	maps.Copy(req.Header, header)
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	if in == nil {
		req.Body, req.ContentLength = http.NoBody, 0
	} else {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(resp.Body); err != nil {
		return err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return &apiError{resp.StatusCode, fmt.Sprintf("%s %s: %s %s", method, url, resp.Status, body.String())}
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(body.Bytes(), out)
}

// sessions asks the API for every session.
func (c *cluster) sessions() ([]session, error) {
	var page struct {
		Items []session `json:"items"`
	}
	err := c.do("GET", c.api+"/api/admin/sessions?limit=100", c.admin, nil, nil, &page)
	return page.Items, err
}

// awaitOwners waits until every session is connected on one of these workers, and returns them.
func (c *cluster) awaitOwners(within time.Duration, workers ...string) map[string]session {
	c.Helper()
	found := map[string]session{}
	testkit.Eventually(c.T, within, func() error {
		all, err := c.sessions()
		if err != nil || len(all) != len(c.numbers) {
			return fmt.Errorf("%d sessions, %w", len(all), err)
		}
		for _, s := range all {
			if id, _, _ := strings.Cut(s.Worker, "/"); !s.Connected || !slices.Contains(workers, id) {
				return fmt.Errorf("%s is %s on %q at epoch %d, want connected on %v", s.SessionID, s.State, s.Worker, s.Epoch, workers)
			}
			found[s.SessionID] = s
		}
		return nil
	})
	return found
}

// log reads the simulator's log.
func (c *cluster) log(query string) []wasim.Entry {
	c.Helper()
	var all []wasim.Entry
	for next := int64(0); ; {
		var page struct {
			Entries []wasim.Entry `json:"entries"`
			Next    int64         `json:"next"`
		}
		if err := c.do("GET", c.sim+"/sim/log?limit=10000&after="+strconv.FormatInt(next, 10)+query, "", nil, nil, &page); err != nil {
			c.Fatal(err)
		}
		if len(page.Entries) == 0 {
			return all
		}
		all, next = append(all, page.Entries...), page.Next
	}
}

// rows reads rows into structs, column by column.
func rows[T any](c *cluster, query string, args ...any) []T {
	c.Helper()
	found, err := c.db.Query(c.Context(), query, args...)
	if err != nil {
		c.Fatal(err)
	}
	all, err := pgx.CollectRows(found, pgx.RowToStructByPos[T])
	if err != nil {
		c.Fatalf("%s: %v", query, err)
	}
	return all
}
