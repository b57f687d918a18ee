package store_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
)

var planRows = flag.Int("plan-rows", 5_000, "rows of each large table when plans are looked at")

// What is done for every message, every person and every minute reads rows by their keys, however large the tables
// have become, and also while PostgreSQL doesn't know yet that they are not small any more.
func TestHotStatementsReadNoLargeTableWhole(t *testing.T) {
	for _, small := range []bool{true, false} {
		t.Run(map[bool]string{true: "by statistics of small tables", false: "by statistics of large tables"}[small], func(t *testing.T) {
			// One connection, so that its plans are kept, and what it read can be asked for.
			s := storetest.Open(t, storetest.PostgresURL(t), func(o *store.Options) { o.PoolMax = 1 })
			exec := func(q string, args ...any) {
				t.Helper()
				if _, err := s.DB().Exec(t.Context(), q, args...); err != nil {
					t.Fatalf("%s: %v", q, err)
				}
			}
			large := []string{"messages", "attempts", "inbound_messages", "contacts", "contact_aliases", "opt_outs", "chats", "events"}
			for _, table := range large {
				exec(`ALTER TABLE ` + table + ` SET (autovacuum_enabled=false)`)
			}
			l := newLane(t, s, "org-a")
			hot := hotOperations(t, s, l)
			all := func() {
				for range 6 { // the sixth time, a plan is kept
					for _, op := range hot {
						op.do()
					}
				}
			}
			exec(`SET synchronous_commit=off`)
			exec(`ANALYZE`)
			fillTables(t, s, l, exec)
			if !small {
				exec(`ANALYZE`)
			}
			all()
			read := func() map[string][2]int64 {
				t.Helper()
				exec(`SELECT pg_stat_force_next_flush()`)
				exec(`SELECT pg_stat_clear_snapshot()`)
				got := map[string][2]int64{}
				rows, err := s.DB().Query(t.Context(), `SELECT relname, seq_tup_read, coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables`)
				err = dbutil.NewRowIterWithError(rows, func(row dbutil.Scannable) (none struct{}, err error) {
					var table string
					var n [2]int64
					err = row.Scan(&table, &n[0], &n[1])
					got[table] = n
					return none, err
				}, err).Iter(func(struct{}) (bool, error) { return true, nil })
				if err != nil {
					t.Fatal(err)
				}
				return got
			}
			for _, op := range hot {
				if small && op.planned && testkit.Through() != "" {
					continue // no plan is kept through a pooler: it follows the statistics as soon as they are there
				}
				before := read()
				op.do()
				after := read()
				for _, table := range large {
					whole, rows := after[table][0]-before[table][0], after[table][1]-before[table][1]
					if most := int64(*planRows / 10); whole > most || rows > most {
						t.Errorf("%s reads %d rows of %s whole and %d by an index, of %d", op.name, whole, table, rows, *planRows)
					}
				}
			}
		})
	}
}

type hotOperation struct {
	name    string
	do      func()
	planned bool // reads more where each execution is planned by statistics that are old, and no more when they are not
}

func hotOperations(t *testing.T, s *store.Store, l *lane) []hotOperation {
	t.Helper()
	ctx := t.Context()
	other := l.more(1)[0]
	n := 0
	fresh := func() string { n++; return fmt.Sprint(5511800000000 + n) }
	const somebody = "5511910000007"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	recipient := func(to string) fleet.Recipient {
		r, err := fleet.ParseRecipient(to)
		must(err)
		return r
	}
	inbound := func(p fleet.Person, text string) {
		n++
		must(s.Fenced(ctx, l.term, func(ctx context.Context) error {
			met, err := s.Meet(ctx, "org-a", store.Sighting{Person: p, Present: true})
			if err != nil {
				return err
			}
			_, m, err := s.InsertInbound(ctx, fleet.Inbound{
				OrgID: "org-a", SessionID: l.sess.ID, ConversationID: met.ConversationID, Chat: met.JID, Sender: met.JID, WAID: fmt.Sprint("IN", n),
				Kind: fleet.KindText, Text: text, SentAt: time.Now(),
			})
			if err != nil {
				return err
			}
			if _, err = s.WriteIn(ctx, l.sess.ID, met.Key, time.Now()); err != nil {
				return err
			}
			_, err = s.Decide(ctx, met.Known, store.Decision{Stop: text == "STOP", Source: fleet.OptOutKeyword})
			if err != nil {
				return err
			}
			_, err = s.AppendEvent(ctx, fleet.Event{OrgID: "org-a", Kind: fleet.EventMessage, SessionID: l.sess.ID, ConversationID: m.ConversationID, Data: fleet.EventData{InboundID: m.ID}})
			return err
		}))
	}
	return []hotOperation{
		{"who a recipient is", func() {
			for _, to := range []string{somebody, fresh()} {
				_, err := s.Recipient(ctx, "org-a", recipient(to))
				must(err)
			}
		}, false},
		{"who wrote to whom", func() {
			_, err := s.Chats(ctx, somebody)
			must(err)
		}, false},
		{"who may send", func() {
			_, err := s.Senders(ctx, "org-a")
			must(err)
			_, err = s.Asker(ctx, "org-a")
			if err != nil && !strings.Contains(err.Error(), "not found") {
				must(err)
			}
		}, false},
		{"a message to somebody", func() { cancel(t, s, l.accept(somebody, "hello")) }, false},
		{"a message to somebody who heard from another number", func() {
			cancel(t, s, other.routed(somebody, "hello"))
			m, waiting := l.accept(somebody, "waits there"), other.routed(somebody, "waits here")
			_, err := s.NextInLane(ctx, other.sess.ID)
			must(err)
			if ok, err := other.tryClaim(other.term, waiting.ID, fleet.AttemptSend); ok || err != nil {
				t.Fatalf("ClaimMessage = %v, %v, want false", ok, err)
			}
			cancel(t, s, m)
			cancel(t, s, waiting)
		}, false},
		{"a message to somebody new", func() { cancel(t, s, l.accept(fresh(), "hello")) }, false},
		{"a message that is resolved, claimed and sent", func() {
			to := fresh()
			m := l.accept(to, "hello")
			_, err := s.Unresolved(ctx, l.sess.ID, "", 32)
			must(err)
			_, err = s.Resolved(ctx, l.term, "org-a", []store.Sighting{{Person: fleet.Person{Phone: to, LID: "2" + to}, Asked: to, Present: true}})
			must(err)
			_, err = s.NextInLane(ctx, l.sess.ID)
			must(err)
			ok, err := s.ClaimMessage(ctx, l.term, store.Claim{ID: m.ID, Payload: []byte("x"), Kind: fleet.AttemptSend, LockFor: time.Minute})
			must(err)
			if !ok {
				t.Fatal("the message was not claimed")
			}
			must(s.Commit(ctx, &store.Step{Term: l.term, Result: &store.Result{ID: m.ID, Outcome: fleet.OutcomeSent, At: time.Now()}, Look: true}))
			_, err = s.ApplyReceipt(ctx, l.term, fleet.Receipt{
				SessionID: l.sess.ID, WAIDs: []string{l.get(m.ID).WAID}, Status: fleet.StatusDelivered, Chat: m.ToJID, From: m.ToJID, At: time.Now(),
			})
			must(err)
		}, false},
		{"a message that comes in", func() { inbound(fleet.Person{Phone: somebody, LID: "25511910000007"}, "hi") }, false},
		{"a message from somebody new", func() { inbound(fleet.Person{LID: fresh()}, "hi") }, false},
		{"STOP and START", func() {
			p := fleet.Person{Phone: "5511910000009"}
			inbound(p, "STOP")
			m := l.accept("5511910000009", "hello")
			_, err := s.Suppress(ctx, l.term, m.ID)
			must(err)
			inbound(p, "START")
		}, false},
		{"a token", func() {
			must(s.KeepTokens(ctx, l.sess.ID, []store.Token{{Person: fleet.Person{LID: fresh()}, At: time.Now()}, {Person: fleet.Person{LID: "25511910000011"}, At: time.Now()}}))
		}, false},
		{"two contacts that become one", func() {
			p := fleet.Person{Phone: fresh(), LID: fresh()}
			for _, known := range []fleet.Person{{LID: p.LID}, {Phone: p.Phone}} {
				_, err := s.Meet(ctx, "org-a", store.Sighting{Person: known})
				must(err)
			}
			met, err := s.Learn(ctx, []fleet.Person{p, {Phone: fresh(), LID: fresh()}})
			must(err)
			if len(met) != 1 {
				t.Fatalf("Learn = %+v, want one merge", met)
			}
		}, false},
		{"a refused stranger", func() {
			_, err := s.StrangersRefused(ctx, l.sess.ID, 463, somebody)
			must(err)
		}, false},
		{"looking for strays", func() {
			_, err := s.Strays(ctx, 100)
			must(err)
			_, err = s.StrayMessages(ctx, store.Stray{SessionID: l.sess.ID, ContactKey: somebody})
			must(err)
			_, err = s.SuppressParked(ctx, 500)
			must(err)
		}, false},
		{"what is owed, waits and expires", func() {
			_, err := s.TakeOwed(ctx, "", 500)
			must(err)
			_, err = s.Backlogs(ctx)
			must(err)
			_, err = s.ExpireQueued(ctx, 500)
			must(err)
		}, false},
		{"a page of opt-outs", func() {
			_, _, err := s.ListOptOuts(ctx, "org-a", "", 50)
			must(err)
		}, true},
		{"retention of what is not old", func() {
			before := time.Now().Add(-1000 * 24 * time.Hour)
			for _, purge := range []func(context.Context, time.Time, int) (int, error){s.PurgeChats, s.PurgeMessages, s.PurgeInbound, s.PurgeAttempts, s.PurgePayloads, s.PurgeEvents, s.PurgeDeliveries} {
				_, err := purge(ctx, before, 500)
				must(err)
			}
		}, true},
	}
}

// cancel takes a message back, and what it opened.
func cancel(t *testing.T, s *store.Store, m fleet.Message) {
	t.Helper()
	if _, err := s.CancelMessage(t.Context(), m.OrgID, m.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.TakeOwed(t.Context(), m.ID, 1); err != nil {
		t.Fatal(err)
	}
}

// fillTables makes an organization of many people who have been written to and wrote, some of whom opted out.
func fillTables(t *testing.T, s *store.Store, l *lane, exec func(q string, args ...any)) {
	t.Helper()
	for _, table := range []string{"messages", "inbound_messages"} {
		// Copies of one row under other names.
		id := string(l.accept("5511910000001", "filler").ID)
		where := `m.id=$2`
		if table == "inbound_messages" {
			where = `$2::text<>'' AND m.n=(SELECT min(n) FROM inbound_messages)`
			exec(`INSERT INTO inbound_messages (id, org_id, session_id, conversation_id, chat, sender, wa_id, kind, offline, sent_at, received_at)
				VALUES ('inb_0', 'org-a', $1, 'cnv_0', 'x', 'x', 'IN0', 'text', FALSE, 0, 0) ON CONFLICT DO NOTHING`, l.sess.ID)
		}
		rows, err := s.DB().Query(t.Context(), `SELECT column_name FROM information_schema.columns WHERE table_schema=current_schema AND table_name=$1
			AND column_name NOT IN ('seq', 'n') ORDER BY ordinal_position`, table)
		var names, values []string
		err = dbutil.NewRowIterWithError(rows, func(row dbutil.Scannable) (name string, err error) {
			err = row.Scan(&name)
			return name, err
		}, err).Iter(func(name string) (bool, error) {
			value := "m." + name
			switch name {
			case "id":
				value = `'fil_'||g`
			case "wa_id":
				value = `'FIL'||g`
			case "contact_key":
				value = `(5511910000000+g)::text`
			case "conversation_id":
				value = `'cnv_'||g`
			case "to_jid", "chat", "sender":
				value = `(5511910000000+g)||'@s.whatsapp.net'`
			case "status":
				value = `'read'`
			case "outcome":
				value = `'sent'`
			case "created_at", "received_at", "sent_at":
				value = `$3::bigint-g::bigint*1000`
			}
			names, values = append(names, name), append(values, value)
			return true, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		exec(`INSERT INTO `+table+` (`+strings.Join(names, ", ")+`) SELECT `+strings.Join(values, ", ")+` FROM `+table+` m, generate_series(1, $1::int) AS g WHERE `+where,
			*planRows, id, time.Now().UnixMilli())
	}
	now := time.Now().UnixMilli()
	exec(`INSERT INTO attempts (message_id, n, session_id, epoch, kind, at, outcome) SELECT 'fil_'||g, 1, $2, 1, 'send', $3::bigint-g::bigint*60000, 'sent'
		FROM generate_series(1, $1::int) AS g`, *planRows, l.sess.ID, now)
	exec(`INSERT INTO contacts (id, org_id, contact_key, phone, lid, jid, conversation_id, created_at) SELECT 'ctc_'||g, 'org-a', (5511910000000+g)::text,
			(5511910000000+g)::text, '2'||(5511910000000+g), (5511910000000+g)||'@s.whatsapp.net', 'cnv_'||g, $2::bigint FROM generate_series(1, $1::int) AS g
		ON CONFLICT DO NOTHING`, *planRows, now)
	exec(`INSERT INTO contact_aliases (org_id, alias, contact_id) SELECT org_id, contact_key, id FROM contacts WHERE id LIKE 'ctc\_%' UNION ALL
		SELECT org_id, 'lid:'||lid, id FROM contacts WHERE lid<>'' ON CONFLICT DO NOTHING`)
	exec(`INSERT INTO opt_outs (org_id, contact_key, contact_id, active, at, source) SELECT org_id, alias, contact_id, length(contact_id)%2=0, $1, 'import'
		FROM contact_aliases WHERE contact_id NOT IN ('ctc_7', 'ctc_9') ON CONFLICT DO NOTHING`, now)
	exec(`INSERT INTO chats (contact_key, session_id, first_out_at, last_out_at, first_in_at, last_in_at) SELECT contact_key, $1, $2::bigint, $2::bigint, $2::bigint, $2::bigint
		FROM contacts ON CONFLICT DO NOTHING`, l.sess.ID, now)
}

// heard keeps what statements are sent to the database.
type heard struct {
	dbutil.DatabaseLogger
	statements map[string][]any
}

func (h *heard) QueryTiming(_ context.Context, _, query string, args []any, _ int, _ time.Duration, _ error) {
	if strings.Contains(query, "FROM") {
		h.statements[query] = args
	}
}

// SQLite has no statistics of what was read, but says beforehand what it would read whole.
func TestRetentionReadsNoTableWholeOnSQLite(t *testing.T) {
	s := storetest.SQLite(t)
	l := newLane(t, s, "org-a")
	l.accept("5511910000001", "hello")
	h := &heard{DatabaseLogger: s.DB().Log, statements: map[string][]any{}}
	s.DB().Log = h
	for _, purge := range []func(context.Context, time.Time, int) (int, error){
		s.PurgeChats, s.PurgeMessages, s.PurgeInbound, s.PurgeAttempts, s.PurgePayloads, s.PurgeEvents, s.PurgeDeliveries, s.PurgeCommands, s.PurgeIdempotency,
	} {
		if _, err := purge(t.Context(), time.Now().Add(-48*time.Hour), 500); err != nil {
			t.Fatal(err)
		}
	}
	s.DB().Log = h.DatabaseLogger
	if len(h.statements) < 12 {
		t.Fatalf("%d statements heard", len(h.statements))
	}
	small := []string{"json_each", "endpoints", "SCAN e", "SCAN s", "SCAN g", "SCAN old", "CONSTANT", "deliveries_event"} // lists, tables with a row per number or endpoint, and an index of what is pending
	for q, args := range h.statements {
		rows, err := s.DB().Query(t.Context(), "EXPLAIN QUERY PLAN "+q, args...)
		err = dbutil.NewRowIterWithError(rows, func(row dbutil.Scannable) (line string, err error) {
			var id, parent, unused int
			err = row.Scan(&id, &parent, &unused, &line)
			return line, err
		}, err).Iter(func(line string) (bool, error) {
			if strings.HasPrefix(line, "SCAN") && !slices.ContainsFunc(small, func(part string) bool { return strings.Contains(line+" ", part+" ") }) {
				t.Errorf("%s\n%s", line, q)
			}
			return true, nil
		})
		if err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}
