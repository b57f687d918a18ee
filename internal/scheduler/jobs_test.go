package scheduler

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
	"github.com/wafleet/wafleet/internal/wastore"
)

const day = 24 * time.Hour

// fixture is a database with one organization and two sessions: s-live is owned, s-dead is not.
type fixture struct {
	*testing.T
	s    *store.Store
	now  time.Time
	jobs map[string]Job
	reg  *prometheus.Registry
	told int // nudges to the webhook processes
}

func each(t *testing.T, fn func(f *fixture)) {
	t.Helper()
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		t.Helper()
		f := &fixture{T: t, s: s, now: time.Now(), jobs: map[string]Job{}, reg: prometheus.NewRegistry()}
		f.sql(`INSERT INTO organizations (id, label, strategy, created_at) VALUES ('org-a', 'A', 'weighted', 1)`)
		for i, id := range []string{"s-live", "s-dead"} {
			f.sql(`INSERT INTO sessions (id, shard_key, slug, org_id, position, desired, observed, observed_since, created_at)
				VALUES ($1, 0, $1, 'org-a', $2, 'running', 'connected', 1, 1)`, id, i)
		}
		f.sql(`INSERT INTO leases (session_id, owner, epoch, expires_at) VALUES ('s-live', 'w/1', 1, $1)`, f.ago(-time.Minute))
		f.sql(`INSERT INTO leases (session_id, owner, epoch, expires_at) VALUES ('s-dead', 'w/0', 1, 1)`)
		local := bus.NewLocal()
		t.Cleanup(func() { _ = local.Close() })
		stop, err := local.Subscribe(t.Context(), func(string, string) { f.told++ }, bus.TopicWebhooks)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stop)
		for _, j := range Jobs(JobOptions{
			Store: s, Bus: local, Log: testkit.Logger(t), Registerer: f.reg,
			Retention: Retention{Messages: 90 * day, Events: 30 * day, Attempts: 7 * day, Idempotency: 2 * day, Commands: 7 * day},
			PurgeBuffered: func(ctx context.Context, limit int) (int, error) {
				return wastore.PurgeBufferedHashes(ctx, s, time.Now().Add(-wastore.BufferRetention), limit)
			},
			PurgeDevices: func(ctx context.Context, limit int) (int, error) { return wastore.PurgeDevices(ctx, s, limit) },
		}) {
			f.jobs[j.Name] = j
		}
		fn(f)
	})
}

func (f *fixture) ago(d time.Duration) int64 { return f.now.Add(-d).UnixMilli() }

func (f *fixture) sql(q string, args ...any) {
	f.Helper()
	if _, err := f.s.DB().Exec(f.Context(), q, args...); err != nil {
		f.Fatalf("%s: %v", q, err)
	}
}

// texts reads one column of text, in order.
func (f *fixture) texts(q string) []string {
	f.Helper()
	rows, err := f.s.DB().Query(f.Context(), q)
	if err != nil {
		f.Fatalf("%s: %v", q, err)
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			f.Fatal(err)
		}
		out = append(out, s)
	}
	if err := rows.Err(); err != nil {
		f.Fatal(err)
	}
	return out
}

func (f *fixture) run(job string, wantRows int) {
	f.Helper()
	n, err := f.jobs[job].Run(f.Context())
	if n != wantRows || err != nil {
		f.Errorf("job %s = %d, %v, want %d rows", job, n, err, wantRows)
	}
}

func (f *fixture) want(q string, want ...string) {
	f.Helper()
	if d := cmp.Diff(want, f.texts(q)); d != "" {
		f.Errorf("%s (-want +got):\n%s", q, d)
	}
}

// gauge checks the value of a metric.
func (f *fixture) gauge(name string, want float64) {
	f.Helper()
	families, err := f.reg.Gather()
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range families {
		if m.GetName() == name {
			if got := m.GetMetric()[0].GetGauge().GetValue(); got != want {
				f.Errorf("%s = %v, want %v", name, got, want)
			}
			return
		}
	}
	f.Errorf("there is no metric %s", name)
}

// message inserts a message made an age ago.
func (f *fixture) message(id, session, status string, age time.Duration) {
	f.Helper()
	f.sql(`INSERT INTO messages (id, org_id, project_id, session_id, conversation_id, contact_key, to_input, to_jid, kind, wa_id,
			status, due_at, expires_at, created_at)
		VALUES ($1, 'org-a', 'p', $2, 'cnv-a', '5511900000001', '5511900000001', '5511900000001@s.whatsapp.net', 'text', $3, $4, $5, $6, $5)`,
		id, session, "3EB0"+id, status, f.ago(age), f.ago(age-10*time.Minute))
	f.sql(`INSERT INTO payloads (message, sealed) SELECT seq, $2 FROM messages WHERE id=$1`, id, []byte{1})
}

func TestQueuedMessagesPastTheirTimeExpireAndAreTold(t *testing.T) {
	each(t, func(f *fixture) {
		f.message("m-old", "s-live", "queued", 11*time.Minute)
		f.message("m-new", "s-live", "queued", time.Minute)
		f.message("m-out", "s-live", "sending", 11*time.Minute)
		f.run("expire-messages", 1)
		f.want(`SELECT id || ' ' || status FROM messages ORDER BY id`, "m-new queued", "m-old expired", "m-out sending")
		f.want(`SELECT kind FROM events`, "message.status")
		if f.told != 1 {
			f.Errorf("%d nudges to the webhook processes, want 1", f.told)
		}
		f.run("expire-messages", 0)
		if f.told != 1 {
			f.Errorf("%d nudges after a run without work, want none more", f.told)
		}
	})
}

func TestUnknownSendsAreToldAndClosedOnlyWithoutALiveOwner(t *testing.T) {
	each(t, func(f *fixture) {
		for _, session := range []string{"s-live", "s-dead"} {
			for _, age := range []time.Duration{30 * time.Second, 2 * time.Minute, 25 * time.Hour} {
				id := fmt.Sprintf("%s-%s", session, age)
				f.message(id, session, "sending", 26*time.Hour)
				f.sql(`UPDATE messages SET outcome='unknown', unknown_since=$2, claim_epoch=1 WHERE id=$1`, id, f.ago(age))
			}
		}
		f.run("tell-unknown", 2)
		f.want(`SELECT id FROM messages WHERE unknown_told ORDER BY id`, "s-dead-25h0m0s", "s-dead-2m0s")
		f.run("close-unconfirmed", 1)
		f.want(`SELECT id FROM messages WHERE status='unconfirmed'`, "s-dead-25h0m0s")
		if f.told != 2 {
			f.Errorf("%d nudges to the webhook processes, want 2", f.told)
		}
	})
}

func TestExpiredCommandsEndAndUnknownOnesAreCounted(t *testing.T) {
	each(t, func(f *fixture) {
		insert := func(id, kind string, expires int64) {
			f.sql(`INSERT INTO commands (id, session_id, class, kind, payload, status, created_at, expires_at)
				VALUES ($1, 's-dead', 'control', $2, '{}', 'pending', 1, $3)`, id, kind, expires)
		}
		insert("late", "connect", f.ago(time.Second))
		insert("fresh", "connect", f.ago(-time.Hour))
		insert("odd", "kind-of-tomorrow", f.ago(-time.Hour))
		f.run("expire-commands", 1)
		f.want(`SELECT id || ' ' || status FROM commands ORDER BY id`, "fresh pending", "late expired", "odd pending")
		f.gauge("wafleet_scheduler_unknown_commands", 1)
	})
}

// A crash leaves rows that say "sending". None of them stays so: whoever takes a session over repeats its
// own, and where nobody does, they are told and in the end closed.
func TestNoSendStaysOpenForEverAfterACrash(t *testing.T) {
	each(t, func(f *fixture) {
		const n = 120
		f.message("m-0", "s-dead", "sending", time.Hour)
		f.sql(`UPDATE messages SET claim_epoch=1, locked_until=$1`, f.ago(30*time.Second))
		f.sql(`WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM k WHERE i < $1)
			INSERT INTO messages (id, org_id, project_id, session_id, conversation_id, contact_key, to_input, to_jid, kind, wa_id,
				status, claim_epoch, locked_until, due_at, expires_at, created_at)
			SELECT 'm-' || i, org_id, project_id, session_id, conversation_id, contact_key, to_input, to_jid, kind, 'w-' || i,
				status, claim_epoch, locked_until, due_at, expires_at, created_at FROM messages, k WHERE id = 'm-0'`, n-1)
		f.run("tell-unknown", 0) // a frame is not unknown for a minute yet
		f.run("close-unconfirmed", 0)
		f.gauge("wafleet_scheduler_open_sends", 0)
		f.sql(`UPDATE messages SET locked_until=locked_until-360000`)
		f.run("close-unconfirmed", 0)
		f.gauge("wafleet_scheduler_open_sends", n)
		f.run("tell-unknown", n)
		f.gauge("wafleet_scheduler_open_sends", n)
		f.sql(`UPDATE messages SET unknown_since=unknown_since-86400000`)
		f.run("close-unconfirmed", n)
		f.want(`SELECT DISTINCT status FROM messages`, "unconfirmed")
		f.gauge("wafleet_scheduler_open_sends", 0)
	})
}

func TestDeadWorkersAreForgotten(t *testing.T) {
	each(t, func(f *fixture) {
		for owner, beat := range map[string]int64{"w/0": f.ago(11 * time.Minute), "w/1": f.ago(11 * time.Minute), "w/2": f.ago(time.Minute)} {
			f.sql(`INSERT INTO workers (owner, id, version, sessions, max_sessions, draining, started_at, beat_at)
				VALUES ($1, 'w', 'v', 0, 1, FALSE, 1, $2)`, owner, beat)
		}
		f.run("dead-workers", 1)
		f.want(`SELECT owner FROM workers ORDER BY owner`, "w/1", "w/2") // w/1 still owns a session
	})
}

func TestRetentionKeepsWhatIsYoungOrOpenAndDropsTheRest(t *testing.T) {
	each(t, func(f *fixture) {
		f.message("old", "s-live", "delivered", 91*day)
		f.message("open", "s-live", "sending", 91*day)
		f.message("paid", "s-live", "read", 4*day) // its payload is past 72 h
		f.message("young", "s-live", "sent", 2*day)
		for i, age := range []time.Duration{91 * day, 8 * day, 6 * day} {
			f.sql(`INSERT INTO attempts (message_id, n, session_id, epoch, kind, at) VALUES ('young', $1, 's-live', 1, 'send', $2)`, i, f.ago(age))
		}
		for id, age := range map[string]time.Duration{"in-old": 91 * day, "in-young": 89 * day} {
			f.sql(`INSERT INTO inbound_messages (id, org_id, session_id, conversation_id, chat, sender, wa_id, kind, offline, sent_at, received_at)
				VALUES ($1, 'org-a', 's-live', 'c', 'x', 'x', $1, 'text', FALSE, $2, $2)`, id, f.ago(age))
		}
		f.sql(`INSERT INTO endpoints (id, org_id, scope, url, secret, max_concurrency, created_at) VALUES ('ep', 'org-a', 'organization', 'https://x', $1, 1, 1)`, []byte{1})
		for i, e := range []struct {
			id, status string
			age        time.Duration
		}{{"done-old", "done", 31 * day}, {"owed-old", "pending", 31 * day}, {"done-young", "done", 29 * day}} {
			f.sql(`INSERT INTO events (id, org_id, kind, stream, seq, data, created_at) VALUES ($1, 'org-a', 'message', 'c', $2, '{}', $3)`, e.id, i, f.ago(e.age))
			f.sql(`INSERT INTO deliveries (id, endpoint_id, event_id, org_id, stream, status, ready, due_at, created_at) VALUES ($1, 'ep', $1, 'org-a', 'c', $2, FALSE, 1, $3)`, e.id, e.status, f.ago(e.age))
		}
		for key, age := range map[string]time.Duration{"k-old": 3 * day, "k-young": day} {
			f.sql(`INSERT INTO idempotency_keys (org_id, key, body_hash, holder, state, locked_until, created_at) VALUES ('org-a', $1, $2, 'h', 'done', 1, $3)`, key, []byte{1}, f.ago(age))
		}
		for id, age := range map[string]time.Duration{"c-old": 8 * day, "c-young": 6 * day} {
			f.sql(`INSERT INTO commands (id, session_id, class, kind, payload, status, created_at, expires_at) VALUES ($1, 's-live', 'control', 'read', '{}', 'done', $2, $2)`, id, f.ago(age))
		}
		f.sql(`INSERT INTO whatsmeow_device (jid, registration_id, noise_key, identity_key, signed_pre_key, signed_pre_key_id, signed_pre_key_sig, adv_key, adv_details, adv_account_sig, adv_account_sig_key, adv_device_sig)
			VALUES ('x', 1, $1, $1, $1, 1, $2, $1, $1, $2, $1, $2)`, make([]byte, 32), make([]byte, 64))
		for i, age := range []time.Duration{15 * day, 13 * day} {
			hash := make([]byte, 32)
			hash[0] = byte(i)
			f.sql(`INSERT INTO whatsmeow_event_buffer (our_jid, ciphertext_hash, server_timestamp, insert_timestamp) VALUES ('x', $1, 1, $2)`, hash, f.ago(age))
		}

		f.sql(`UPDATE leases SET epoch=3 WHERE session_id='s-dead'`)
		for epoch, age := range []time.Duration{0, 9 * day, 6 * day, 8 * day} {
			f.sql(`INSERT INTO lease_log (session_id, epoch, owner, at) VALUES ('s-dead', $1, 'w', $2)`, epoch, f.ago(age))
		}
		for id, age := range map[string]time.Duration{"p-old": 8 * day, "p-young": 6 * day} {
			f.sql(`INSERT INTO purges (kind, subject, org_id, created_at, finished_at) VALUES ('session', $1, 'org-a', 1, $2)`, id, f.ago(age))
		}
		f.sql(`INSERT INTO purges (kind, subject, org_id, created_at) VALUES ('session', 'p-open', 'org-a', 1)`)

		rows, err := f.jobs["retention"].Run(f.Context())
		if err != nil {
			f.Fatal(err)
		}
		f.want(`SELECT id FROM messages ORDER BY id`, "open", "paid", "young")
		f.want(`SELECT id FROM messages JOIN payloads ON message=seq ORDER BY id`, "open", "young")
		f.want(`SELECT CAST(n AS TEXT) FROM attempts`, "2")
		f.want(`SELECT id FROM inbound_messages`, "in-young")
		f.want(`SELECT id FROM deliveries ORDER BY id`, "done-young", "owed-old")
		f.want(`SELECT id FROM events ORDER BY id`, "done-young", "owed-old")
		f.want(`SELECT key FROM idempotency_keys`, "k-young")
		f.want(`SELECT id FROM commands`, "c-young")
		f.want(`SELECT CAST(count(*) AS TEXT) FROM whatsmeow_event_buffer`, "1")
		f.want(`SELECT CAST(epoch AS TEXT) FROM lease_log ORDER BY epoch`, "0", "2", "3") // and the last claim, however old
		f.want(`SELECT subject FROM purges ORDER BY subject`, "p-open", "p-young")
		if rows == 0 {
			f.Error("retention reports no rows")
		}
		f.run("retention", 0)
	})
}
