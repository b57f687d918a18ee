package cli

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/testkit"
	"github.com/wafleet/wafleet/internal/wasim"
	"github.com/wafleet/wafleet/trials/cluster"
)

const (
	clusterTTL  = 10 * time.Second
	clusterBeat = 2 * time.Second
)

// fleetOfProcesses is wafleet as separate processes on one PostgreSQL database and one Redis.
type fleetOfProcesses struct {
	*testing.T
	*cluster.Cluster
}

func startFleet(t *testing.T, change ...func(*cluster.Options)) *fleetOfProcesses {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	addr, prefix := testkit.Redis(t)
	o := cluster.Options{
		Binary: self, Dir: t.TempDir(), Database: testkit.Postgres(t), Redis: "redis://" + addr,
		Settings: []string{
			asProcess + "=1", "REDIS_PREFIX=" + prefix, "LEASE_TTL=" + clusterTTL.String(), "LEASE_BEAT=" + clusterBeat.String(), "DATABASE_POOL_MAX=5",
		},
	}
	for _, c := range change {
		c(&o)
	}
	c, err := cluster.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range c.Names() {
				fmt.Fprintf(t.Output(), "--- log of %s:\n%s", name, c.Process(name).Log())
			}
		}
		c.Close()
	})
	return &fleetOfProcesses{t, c}
}

// must ends the test at an error.
func (f *fleetOfProcesses) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fleetOfProcesses) settle() {
	f.Helper()
	f.must(f.Settle(f.Context(), time.Minute)) // an outcome that stays unknown is repeated after 15 s
}

// talk lets everybody write in the background. The function waits until the last was accepted.
func (f *fleetOfProcesses) talk(topic string, texts int) (join func()) {
	done := make(chan error, 1)
	go func() { done <- f.Talk(f.Context(), topic, texts) }()
	return func() {
		f.Helper()
		f.must(<-done)
	}
}

func (f *fleetOfProcesses) owners(within time.Duration, workers ...string) map[string]cluster.Session {
	f.Helper()
	found, err := f.AwaitConnected(f.Context(), within, workers...)
	f.must(err)
	return found
}

// ended waits for the end of a process and returns its exit code, -1 if a signal ended it.
func (f *fleetOfProcesses) ended(name string) int {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), stopLimit)
	defer cancel()
	code, err := f.Process(name).Wait(ctx)
	f.must(err)
	return code
}

func TestTwoWorkersHandSessionsOverAtAStopAndTakeThemAfterAKillAndLoseAndDoubleNothing(t *testing.T) {
	f := startFleet(t)
	f.must(f.Pair(t.Context(), 10))
	owners := f.owners(20*time.Second, "w1", "w2")
	f.talk("at first", 2)()
	f.settle()

	leaving, staying := f.stopOne(owners)
	f.killOther(leaving, staying)

	f.talk("at last", 2)()
	f.settle()
	f.checkConnections(f.owners(5*time.Second, "w3"))
	report, err := f.Audit(t.Context())
	f.must(err)
	if report.Count() > 0 {
		t.Errorf("the audit found: %s", report)
	}
	t.Log(report)

	begun := time.Now()
	if err := f.Stop(); err != nil {
		t.Errorf("stop of everything: %v", err)
	}
	t.Logf("all processes ended within %s", time.Since(begun))
	var held int
	f.must(f.DB.QueryRowContext(t.Context(), `SELECT count(*) FROM leases WHERE owner <> ''`).Scan(&held))
	if held > 0 {
		t.Errorf("after a graceful stop %d leases are still held", held)
	}
}

func TestEverySeparateProcessRefusesToStartWithoutPostgresOrRedis(t *testing.T) {
	key := strings.Repeat("ab", 32)
	settings := map[string]string{
		"DATABASE_URL": "postgres://nobody@127.0.0.1:1/x", "REDIS_URL": "redis://127.0.0.1:1", "DATA_KEY": key, "LOOKUP_KEY": key,
	}
	for _, command := range []string{"api", "worker", "webhooks", "scheduler"} {
		for missing, want := range map[string]string{"DATABASE_URL": "must be postgres://…", "REDIS_URL": "must be redis://…"} {
			t.Run(command+" without "+missing, func(t *testing.T) {
				var environ []string
				for name, value := range settings {
					if name != missing {
						environ = append(environ, name+"="+value)
					}
				}
				code, stdout, stderr := run(t, environ, command)
				if want = fmt.Sprintf("%s %s for %q", missing, want, command); code != exitUsage || !strings.Contains(stderr, want) || stdout != "" {
					t.Errorf("%s = %d with %q, want %d with %q", command, code, stderr, exitUsage, want)
				}
			})
		}
	}
}

// stopOne ends the worker with the most sessions gracefully, while everybody writes. It returns who went and who owns
// everything now.
func (f *fleetOfProcesses) stopOne(before map[string]cluster.Session) (leaving, staying string) {
	f.Helper()
	held := map[string]int{}
	for _, s := range before {
		held[s.WorkerID()]++
	}
	leaving, staying = "w1", "w2"
	if held["w2"] > held["w1"] {
		leaving, staying = staying, leaving
	}
	across := f.talk("across the stop", 4)
	f.awaitText("across the stop", 1)
	asked := time.Now()
	f.must(f.Process(leaving).Signal(syscall.SIGTERM))
	during := f.talk("during the stop", 3)
	if code := f.ended(leaving); code != exitOK {
		f.Errorf("%s ended with %d after SIGTERM, want %d", leaving, code, exitOK)
	}
	ended := time.Since(asked)
	after := f.owners(clusterTTL, staying)
	took := time.Since(asked)
	f.Logf("%s held %d of %d sessions, ended %s after SIGTERM; all were connected on %s after %s", leaving, held[leaving], len(before), ended, staying, took)
	// The last beat before the signal was less than a beat earlier, so no lease ran out before this.
	if limit := clusterTTL - clusterBeat; took >= limit {
		f.Errorf("the hand-over took %s, want less than %s: it must not wait for the TTL", took, limit)
	}
	across()
	during()
	f.settle()

	for slug, was := range before {
		want := was.Epoch
		if was.WorkerID() == leaving {
			want++
		}
		if got := after[slug].Epoch; got != want {
			f.Errorf("%s was on %s at epoch %d and is on %s at epoch %d, want %d", slug, was.Worker, was.Epoch, after[slug].Worker, got, want)
		}
	}
	return leaving, staying
}

// killOther kills the owner of everything in the middle of sends, while a fresh worker stands by.
func (f *fleetOfProcesses) killOther(gone, owner string) {
	f.Helper()
	f.must(f.Worker(f.Context(), "w3"))
	before := f.owners(5*time.Second, owner)
	f.talk("before the kill", 1)() // so that the next send is one frame and asks WhatsApp for nothing
	f.settle()

	// WhatsApp's acks and receipts to these are on the way when their owner dies, and their phones show the message. One whose
	// phone had to ask for it again is not of them: while answers are held back it gets none.
	var hanging []*cluster.Number
	for _, n := range f.Numbers {
		if len(hanging) == 3 {
			break
		}
		f.must(f.Fault(f.Context(), n.Own, map[string]any{"latencyMs": 30_000})) // cleared when the owner is dead
		_, _, err := f.Send(f.Context(), n, "in flight to "+n.Person)
		f.must(err)
		if f.shown("in flight to "+n.Person, 1, 4*time.Second) == nil {
			hanging = append(hanging, n)
		} else {
			f.must(f.Fault(f.Context(), n.Own, nil))
		}
	}
	if len(hanging) < 3 {
		f.Fatalf("the messages of %d sessions are in flight and shown, want 3", len(hanging))
	}
	f.must(f.Process(owner).Signal(syscall.SIGKILL))
	if code := f.ended(owner); code != -1 {
		f.Errorf("%s ended with %d, want the signal", owner, code)
	}
	killed := time.Now()
	for _, n := range hanging {
		f.must(f.Fault(f.Context(), n.Own, nil))
	}
	expires := map[string]int64{}
	for slug := range before {
		var at int64
		f.must(f.DB.QueryRowContext(f.Context(), `SELECT l.expires_at FROM leases l JOIN sessions s ON s.id = l.session_id WHERE s.slug = $1`, slug).Scan(&at))
		expires[slug] = at
	}
	for _, n := range hanging {
		if err := f.InFlight(f.Context(), n); err != nil {
			f.Errorf("when the owner is dead: %v", err)
		}
	}
	join := f.talk("after the kill", 3)
	after := f.owners(clusterTTL+20*time.Second, "w3")
	f.Logf("all sessions of the killed %s were connected on w3 after %s, and %s is gone for good", owner, time.Since(killed), gone)
	join()
	f.settle()
	f.Logf("everything had arrived %s after the kill", time.Since(killed))

	// What people wrote while nobody was connected came through WhatsApp's queue.
	var queued int
	f.must(f.DB.QueryRowContext(f.Context(), `SELECT count(*) FROM inbound_messages WHERE offline`).Scan(&queued))
	f.Logf("%d messages came in through WhatsApp's queue", queued)
	if want := 3 * len(f.Numbers); queued < want {
		f.Errorf("%d messages came in through WhatsApp's queue, want the %d that were written after the kill", queued, want)
	}
	for slug, was := range before {
		is := after[slug]
		if is.Epoch != was.Epoch+1 {
			f.Errorf("%s went from %s at epoch %d to %s at epoch %d, want the next epoch", slug, was.Worker, was.Epoch, is.Worker, is.Epoch)
		}
		var claimed int64
		f.must(f.DB.QueryRowContext(f.Context(), `SELECT c.at FROM lease_log c JOIN sessions s ON s.id = c.session_id WHERE s.slug = $1 AND c.epoch = $2`, slug, is.Epoch).Scan(&claimed))
		if claimed < expires[slug] {
			f.Errorf("%s was claimed %d ms before the killed owner's lease ended", slug, expires[slug]-claimed)
		}
	}
}

// awaitText waits until so many people's phones have decrypted a text that begins like this.
func (f *fleetOfProcesses) awaitText(prefix string, phones int) {
	f.Helper()
	f.must(f.shown(prefix, phones, 20*time.Second))
}

// shown is nil as soon as so many people's phones have decrypted a text that begins like this.
func (f *fleetOfProcesses) shown(prefix string, phones int, limit time.Duration) error {
	return cluster.Until(f.Context(), limit, func() error {
		log, err := f.Log(f.Context(), 0, "&kind="+wasim.KindDecrypted)
		if err != nil {
			return err
		}
		got := map[string]bool{}
		for _, e := range log {
			if strings.HasPrefix(e.Text, prefix) && e.Session == e.Recipient { // not the sender's own copy
				got[e.Session] = true
			}
		}
		if len(got) < phones {
			return fmt.Errorf("%d phones have %q, want %d", len(got), prefix, phones)
		}
		return nil
	})
}

// checkConnections: every session has one logged-in connection, of its one owner.
func (f *fleetOfProcesses) checkConnections(owners map[string]cluster.Session) {
	f.Helper()
	log, err := f.Log(f.Context(), 0, "")
	f.must(err)
	open := map[string][]wasim.Entry{}
	for _, e := range log {
		switch e.Kind {
		case wasim.KindLogin:
			open[e.Session] = append(open[e.Session], e)
		case wasim.KindClose:
			open[e.Session] = slices.DeleteFunc(open[e.Session], func(l wasim.Entry) bool { return l.Conn == e.Conn })
		}
	}
	for _, n := range f.Numbers {
		owner := owners[n.Slug]
		if len(open[n.Own]) != 1 {
			f.Errorf("%s has %d connections: %v, want 1", n.Slug, len(open[n.Own]), open[n.Own])
		}
		for _, e := range open[n.Own] {
			if e.Worker != owner.Worker || e.Epoch != owner.Epoch {
				f.Errorf("%s is connected by %s at epoch %d, want its owner %s at epoch %d", n.Slug, e.Worker, e.Epoch, owner.Worker, owner.Epoch)
			}
		}
	}
}
