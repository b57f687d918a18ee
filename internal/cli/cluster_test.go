package cli

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/testkit"
	"github.com/wafleet/wafleet/internal/wasim"
)

func TestTwoWorkersHandSessionsOverAtAStopAndTakeThemAfterAKillAndLoseAndDoubleNothing(t *testing.T) {
	c := startCluster(t)
	c.hear()
	c.pairAll(10)
	owners := c.awaitOwners(20*time.Second, "w1", "w2")
	c.talk("at first", 2)()
	c.awaitSettled()

	leaving, staying := c.stop(owners)
	c.kill(leaving, staying)

	c.talk("at last", 2)()
	c.awaitSettled()
	owners = c.awaitOwners(5*time.Second, "w3")
	log := c.log("")
	c.checkConnections(log, owners)
	c.checkFrames(log)
	c.checkMessages(log)
	c.checkWebhooks()

	begun := time.Now()
	running := []string{"api", "w3", "webhooks", "scheduler", "sim"}
	for _, name := range running {
		c.signal(name, syscall.SIGTERM)
	}
	for _, name := range running {
		if code := c.ended(name); code != exitOK {
			t.Errorf("%s ended with %d after SIGTERM, want %d", name, code, exitOK)
		}
	}
	t.Logf("all processes ended within %s", time.Since(begun))
	if left := rows[struct{ Owner string }](c, `SELECT owner FROM leases WHERE owner <> ''`); len(left) > 0 {
		t.Errorf("after a graceful stop leases are still held: %v", left)
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

// stop ends the worker with the most sessions gracefully, while everybody writes. It returns who went
// and who owns everything now.
func (c *cluster) stop(before map[string]session) (leaving, staying string) {
	c.Helper()
	held := map[string]int{}
	for _, s := range before {
		id, _, _ := strings.Cut(s.Worker, "/")
		held[id]++
	}
	leaving, staying = "w1", "w2"
	if held["w2"] > held["w1"] {
		leaving, staying = staying, leaving
	}
	across := c.talk("across the stop", 4)
	c.awaitText("across the stop", 1)
	asked := time.Now()
	c.signal(leaving, syscall.SIGTERM)
	during := c.talk("during the stop", 3)
	if code := c.ended(leaving); code != exitOK {
		c.Errorf("%s ended with %d after SIGTERM, want %d", leaving, code, exitOK)
	}
	ended := time.Since(asked)
	after := c.awaitOwners(clusterTTL, staying)
	took := time.Since(asked)
	c.Logf("%s held %d of %d sessions, ended %s after SIGTERM; all were connected on %s after %s", leaving, held[leaving], len(before), ended, staying, took)
	// The last beat before the signal was less than a beat earlier, so no lease ran out before this.
	if limit := clusterTTL - clusterBeat; took >= limit {
		c.Errorf("the hand-over took %s, want less than %s: it must not wait for the TTL", took, limit)
	}
	across()
	during()
	c.awaitSettled()

	for slug, was := range before {
		want := was.Epoch
		if strings.HasPrefix(was.Worker, leaving+"/") {
			want++
		}
		if got := after[slug].Epoch; got != want {
			c.Errorf("%s was on %s at epoch %d and is on %s at epoch %d, want %d", slug, was.Worker, was.Epoch, after[slug].Worker, got, want)
		}
	}
	return leaving, staying
}

// kill kills the owner of everything in the middle of sends, while a fresh worker stands by.
func (c *cluster) kill(gone, owner string) {
	c.Helper()
	c.worker("w3").waitReady()
	before := c.awaitOwners(5*time.Second, owner)
	c.talk("before the kill", 1)() // so that the next send is one frame and asks WhatsApp for nothing
	c.awaitSettled()

	// WhatsApp's acks and receipts to these are on the way when their owner dies.
	hanging := c.numbers[:3]
	for _, n := range hanging {
		c.fault(n, 30*time.Second) // cleared when the owner is dead
		if err := c.send(n, "in flight to "+n.person); err != nil {
			c.Fatal(err)
		}
	}
	c.awaitText("in flight", len(hanging))
	c.signal(owner, syscall.SIGKILL)
	if code := c.ended(owner); code != -1 {
		c.Errorf("%s ended with %d, want the signal", owner, code)
	}
	killed := time.Now()
	for _, n := range hanging {
		c.fault(n, 0)
	}
	type lease struct {
		Slug, ID  string
		ExpiresAt int64
	}
	leases := rows[lease](c, `SELECT s.slug, s.id, l.expires_at FROM leases l JOIN sessions s ON s.id = l.session_id`)
	type state struct{ Status, Outcome string }
	for _, n := range hanging {
		for _, m := range rows[state](c, `SELECT m.status, m.outcome FROM messages m JOIN sessions s ON s.id = m.session_id WHERE s.slug = $1 ORDER BY m.seq DESC LIMIT 1`, n.slug) {
			if m.Status != "sending" {
				c.Errorf("message in flight of %s is %+v when its owner is dead, want sending", n.slug, m)
			}
		}
	}
	join := c.talk("after the kill", 3)
	after := c.awaitOwners(clusterTTL+20*time.Second, "w3")
	c.Logf("all sessions of the killed %s were connected on w3 after %s, and %s is gone for good", owner, time.Since(killed), gone)
	join()
	c.awaitSettled()
	c.Logf("everything had arrived %s after the kill", time.Since(killed))

	// What people wrote while nobody was connected came through WhatsApp's queue.
	type count struct{ N int }
	for _, queued := range rows[count](c, `SELECT count(*) FROM inbound_messages WHERE offline`) {
		c.Logf("%d messages came in through WhatsApp's queue", queued.N)
		if want := 3 * len(c.numbers); queued.N < want {
			c.Errorf("%d messages came in through WhatsApp's queue, want the %d that were written after the kill", queued.N, want)
		}
	}
	type claim struct{ At int64 }
	for _, l := range leases {
		was, is := before[l.Slug], after[l.Slug]
		if is.Epoch != was.Epoch+1 {
			c.Errorf("%s went from %s at epoch %d to %s at epoch %d, want the next epoch", l.Slug, was.Worker, was.Epoch, is.Worker, is.Epoch)
		}
		for _, claimed := range rows[claim](c, `SELECT at FROM lease_log WHERE session_id = $1 AND epoch = $2`, l.ID, is.Epoch) {
			if claimed.At < l.ExpiresAt {
				c.Errorf("%s was claimed %d ms before the killed owner's lease ended", l.Slug, l.ExpiresAt-claimed.At)
			}
		}
	}
}

// awaitText waits until so many people's phones have decrypted a text that begins like this.
func (c *cluster) awaitText(prefix string, phones int) {
	c.Helper()
	testkit.Eventually(c.T, 20*time.Second, func() error {
		got := map[string]bool{}
		for _, e := range c.log("&kind=" + wasim.KindDecrypted) {
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

// fault makes WhatsApp slow towards a number.
func (c *cluster) fault(n *number, latency time.Duration) {
	c.Helper()
	fault := map[string]any{"session": n.own, "fault": map[string]any{"latencyMs": latency.Milliseconds()}}
	if err := c.do("PUT", c.sim+"/sim/faults", "", nil, fault, nil); err != nil {
		c.Fatal(err)
	}
}

// checkConnections: every session has one logged-in connection, of its one owner.
func (c *cluster) checkConnections(log []wasim.Entry, owners map[string]session) {
	c.Helper()
	open := map[string]map[int64]wasim.Entry{}
	for _, e := range log {
		switch e.Kind {
		case wasim.KindLogin:
			if open[e.Session] == nil {
				open[e.Session] = map[int64]wasim.Entry{}
			}
			open[e.Session][e.Conn] = e
		case wasim.KindClose:
			delete(open[e.Session], e.Conn)
		}
	}
	for _, n := range c.numbers {
		owner := owners[n.slug]
		if len(open[n.own]) != 1 {
			c.Errorf("%s has %d connections: %v, want 1", n.slug, len(open[n.own]), open[n.own])
		}
		for _, e := range open[n.own] {
			if e.Worker != owner.Worker || e.Epoch != owner.Epoch {
				c.Errorf("%s is connected by %s at epoch %d, want its owner %s at epoch %d", n.slug, e.Worker, e.Epoch, owner.Worker, owner.Epoch)
			}
		}
	}
}

// checkFrames joins what reached WhatsApp with the log of leases: every frame comes from whom the lease
// named, and none under an epoch that a later login superseded.
func (c *cluster) checkFrames(log []wasim.Entry) {
	c.Helper()
	type key struct {
		Session string
		Epoch   int64
	}
	owner := map[key]string{}
	for _, l := range rows[struct {
		Session string
		Epoch   int64
		Owner   string
	}](c, `SELECT session_id, epoch, owner FROM lease_log`) {
		owner[key{l.Session, l.Epoch}] = l.Owner
	}
	newest, frames := map[string]int64{}, 0
	for _, e := range log {
		fromClient := e.Dir == wasim.DirIn || e.Kind == wasim.KindDial || e.Kind == wasim.KindLogin || e.Kind == wasim.KindPair
		switch {
		case e.Kind == wasim.KindIgnored, e.Kind == wasim.KindFailure, e.Kind == wasim.KindStream && e.Type == "replaced":
			c.Errorf("two connections met: %+v", e)
		case !fromClient:
			continue
		}
		frames++
		if want := owner[key{e.SessionID, e.Epoch}]; e.SessionID == "" || e.Worker != want {
			c.Errorf("%s of session %q at epoch %d is from %q, want %q: %+v", e.Kind, e.SessionID, e.Epoch, e.Worker, want, e)
		}
		if e.Epoch < newest[e.SessionID] {
			c.Errorf("%s under epoch %d after a login under epoch %d: %+v", e.Kind, e.Epoch, newest[e.SessionID], e)
		}
		if e.Kind == wasim.KindLogin {
			newest[e.SessionID] = e.Epoch
		}
	}
	c.Logf("%d entries of %d in the log are from clients of %d sessions", frames, len(log), len(newest))
	if len(newest) != len(c.numbers) {
		c.Errorf("%d sessions logged in, want %d", len(newest), len(c.numbers))
	}
}

// checkMessages joins rows, frames and phones: every accepted message is there once, and seen once.
func (c *cluster) checkMessages(log []wasim.Entry) {
	c.Helper()
	frames, seen := map[string]int64{}, map[string][]wasim.Entry{}
	for _, e := range log {
		switch {
		case e.Kind == wasim.KindMessage && e.Dir == wasim.DirIn && e.Type != "peer":
			frames[e.ID]++
		case e.Kind == wasim.KindDecrypted && !e.Duplicate:
			seen[e.Session] = append(seen[e.Session], e)
		}
	}
	type message struct {
		ID, WAID, Status string
		Attempts         int64
	}
	sent, said := 0, 0
	for _, n := range c.numbers {
		out := rows[message](c, `SELECT m.id, m.wa_id, m.status, (SELECT count(*) FROM attempts a WHERE a.message_id = m.id)
			FROM messages m JOIN sessions s ON s.id = m.session_id WHERE s.slug = $1 ORDER BY m.seq`, n.slug)
		if len(out) != len(n.sent) {
			c.Errorf("%s has %d messages, want the %d that were accepted", n.slug, len(out), len(n.sent))
		}
		shown := map[string][]string{}
		for _, e := range seen[n.person] {
			shown[e.ID] = append(shown[e.ID], e.Text)
		}
		for _, m := range out {
			sent++
			if !slices.Equal(shown[m.WAID], []string{n.sent[m.ID]}) {
				c.Errorf("message %+v is shown as %q, want once %q", m, shown[m.WAID], n.sent[m.ID])
			}
			if frames[m.WAID] < 1 || frames[m.WAID] > m.Attempts {
				c.Errorf("message %+v left in %d frames, want one at least and no more than were recorded", m, frames[m.WAID])
			}
			delete(shown, m.WAID)
		}
		if len(shown) > 0 {
			c.Errorf("%s sees what nobody sent: %v", n.person, shown)
		}
		in := rows[message](c, `SELECT i.id, i.wa_id, i.kind, 0::bigint FROM inbound_messages i JOIN sessions s ON s.id = i.session_id WHERE s.slug = $1`, n.slug)
		for _, m := range in {
			said++
			if n.said[m.WAID] == "" {
				c.Errorf("%s received %+v, which nobody wrote", n.slug, m)
			}
		}
		if len(in) != len(n.said) {
			c.Errorf("%s received %d messages, want the %d that were written, once each", n.slug, len(in), len(n.said))
		}
	}
	c.Logf("%d messages out, %d in", sent, said)
}

// checkWebhooks: every message of a person is one event, and each conversation's events came in order and
// without a gap. The same event may come again.
func (c *cluster) checkWebhooks() {
	c.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	known, last, texts := map[string]bool{}, map[string]int64{}, map[string][]string{}
	for _, e := range c.told {
		if known[e.ID] {
			continue
		}
		known[e.ID] = true
		if e.ConversationID != "" {
			if last[e.ConversationID]++; e.Seq != last[e.ConversationID] {
				c.Errorf("event %+v came as number %d of its conversation", e, last[e.ConversationID])
			}
		}
		if e.Event == "message" {
			texts[e.Payload.WAID] = append(texts[e.Payload.WAID], e.Payload.Text)
		}
	}
	for _, n := range c.numbers {
		for id, text := range n.said {
			if !slices.Equal(texts[id], []string{text}) {
				c.Errorf("message %s to %s is told as %q, want once %q", id, n.slug, texts[id], text)
			}
		}
	}
	c.Logf("%d webhooks told of %d events", len(c.told), len(known))
}
