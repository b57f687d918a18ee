package scheduler

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
	"github.com/wafleet/wafleet/internal/wastore"
)

// fleetWide are the tables whose rows belong to no organization. A new table either is one of them or is purged.
var fleetWide = []string{
	"goose_db_version", "goose_lock", "meta", "whatsmeow_version", "schedules", "singleton", "ledger", "workers", "changes", "sqlite_sequence",
	"number_limits",     // what WhatsApp holds against a number, whoever has it
	"whatsmeow_lid_map", // facts about WhatsApp
}

// keeps are the tables in which an organization's name stays.
var keeps = []string{"organizations", "audit_log", "purges"}

// numbered are the columns that the database fills in.
var numbered = []string{"messages.seq", "inbound_messages.n", "commands.n", "events.n", "deliveries.n", "audit_log.n"}

// columnInfo is a column as the catalogue has it.
type columnInfo struct{ table, name, kind string }

func list[T any](t *testing.T, s *store.Store, scan func(row dbutil.Scannable) (T, error), q string, args ...any) []T {
	t.Helper()
	rows, err := s.DB().Query(t.Context(), q, args...)
	all, err := dbutil.NewRowIterWithError(rows, scan, err).AsList()
	if err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	return all
}

// columns reads the catalogue.
func columns(t *testing.T, s *store.Store) []columnInfo {
	t.Helper()
	q := `SELECT m.name, c.name, lower(c.type) FROM sqlite_master m JOIN pragma_table_info(m.name) c WHERE m.type='table' ORDER BY m.name, c.cid`
	if s.Postgres() {
		q = `SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema=current_schema ORDER BY table_name, ordinal_position`
	}
	return list(t, s, func(row dbutil.Scannable) (c columnInfo, err error) {
		err = row.Scan(&c.table, &c.name, &c.kind)
		return c, err
	}, q)
}

func tablesOf(all []columnInfo) []string {
	var tables []string
	for _, c := range all {
		if !slices.Contains(tables, c.table) && !slices.Contains(fleetWide, c.table) {
			tables = append(tables, c.table)
		}
	}
	return tables
}

// marked counts the rows of a table in which the organization's name stands anywhere.
func marked(t *testing.T, s *store.Store, all []columnInfo, table, org string) int {
	t.Helper()
	q := `SELECT count(*) FROM ` + table + ` t WHERE t::text LIKE '%` + org + `%' OR t::text LIKE '%` + fmt.Sprintf("%x", org) + `%'`
	if !s.Postgres() {
		var text []string
		for _, c := range all {
			if c.table == table {
				text = append(text, `coalesce(CAST("`+c.name+`" AS TEXT), '')`)
			}
		}
		q = `SELECT count(*) FROM ` + table + ` WHERE ` + strings.Join(text, " || '|' || ") + ` LIKE '%` + org + `%'`
	}
	var n int
	if err := s.DB().QueryRow(t.Context(), q).Scan(&n); err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	return n
}

// fill gives an organization that was deleted, with its session, a row in every table of the catalogue.
func fill(t *testing.T, s *store.Store, all []columnInfo, org string) {
	t.Helper()
	exec := func(q string, args ...any) {
		t.Helper()
		if _, err := s.DB().Exec(t.Context(), q, args...); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	long := map[string]int{"adv_account_sig": 64, "adv_device_sig": 64, "signed_pre_key_sig": 64, "hash": 128}
	value := func(c columnInfo) any {
		switch c.table + "." + c.name {
		case "organizations.id":
			return org
		case "organizations.deleted_at", "sessions.paired_at":
			return 1
		case "sessions.desired":
			return "deleted"
		case "leases.owner":
			return ""
		case "leases.expires_at":
			return 0
		case "former_devices.jid":
			return "old-jid-" + org
		case "payloads.message":
			var seq int64
			if err := s.DB().QueryRow(t.Context(), `SELECT seq FROM messages WHERE org_id=$1`, org).Scan(&seq); err != nil {
				t.Fatal(err)
			}
			return seq
		case "streams.id", "events.stream", "deliveries.stream":
			return "conversation-" + org
		case "attempts.message_id", "local_times.message_id":
			return "messages-id-" + org
		}
		switch c.name {
		case "org_id":
			return org
		case "session_id", "head_session_id":
			return "sessions-id-" + org
		case "project_id":
			return "projects-id-" + org
		case "endpoint_id":
			return "endpoints-id-" + org
		case "conversation_id":
			return "conversation-" + org
		case "our_jid", "device_jid", "jid":
			return "jid-" + org
		case "name": // of an app state
			return "name-" + org
		}
		switch c.kind {
		case "text":
			return c.table + "-" + c.name + "-" + org
		case "boolean":
			return false
		case "bigint", "integer":
			return 1
		default:
			n := 32
			if long[c.name] > 0 {
				n = long[c.name]
			}
			return bytes.Repeat([]byte(org+"-------"), n)[:n]
		}
	}
	insert := func(table string) {
		t.Helper()
		var names, places []string
		var args []any
		for _, c := range all {
			if c.table == table && !slices.Contains(numbered, table+"."+c.name) && c.kind != "uuid" {
				args = append(args, value(c))
				names, places = append(names, `"`+c.name+`"`), append(places, fmt.Sprintf("$%d", len(args)))
			}
		}
		exec(`INSERT INTO `+table+` (`+strings.Join(names, ", ")+`) VALUES (`+strings.Join(places, ", ")+`)`, args...)
	}
	first := []string{"organizations", "projects", "sessions", "endpoints", "messages", "whatsmeow_device", "whatsmeow_app_state_version"}
	for _, table := range first {
		insert(table)
	}
	for _, table := range tablesOf(all) {
		if !slices.Contains(first, table) && table != "purges" {
			insert(table)
		}
	}
	exec(`INSERT INTO streams (id, seq) VALUES ($1, 1), ($2, 1)`, "sessions-id-"+org, org)
	// More than one batch of what there is most of.
	for i := range 3 {
		exec(`INSERT INTO chats (contact_key, session_id) VALUES ($1, $2)`, fmt.Sprint("5511900000", i), "sessions-id-"+org)
		exec(`INSERT INTO whatsmeow_privacy_tokens (our_jid, their_jid, token, timestamp) VALUES ($1, $2, $3, 1)`, "jid-"+org, fmt.Sprint("5511900000", i), []byte("x"))
	}
}

// ended says that the organization was deleted, long enough ago.
func ended(t *testing.T, s *store.Store, org string) {
	t.Helper()
	_, err := s.DB().Exec(t.Context(), `INSERT INTO purges (kind, subject, org_id, created_at) SELECT 'session', id, org_id, 1 FROM sessions WHERE org_id=$1
		UNION ALL SELECT 'organization', id, id, 1 FROM organizations WHERE id=$1`, org)
	if err != nil {
		t.Fatal(err)
	}
}

func purgeJob(t *testing.T, s *store.Store) Job {
	t.Helper()
	local := bus.NewLocal()
	t.Cleanup(func() { _ = local.Close() })
	for _, j := range Jobs(JobOptions{
		Store: s, Bus: local, Log: testkit.Logger(t),
		PurgeDevices: func(ctx context.Context, limit int) (int, error) { return wastore.PurgeDevices(ctx, s, limit) },
	}) {
		if j.Name == "purge" {
			return j
		}
	}
	t.Fatal("there is no job purge")
	return Job{}
}

func wantPurged(t *testing.T, s *store.Store, all []columnInfo, org string) {
	t.Helper()
	for _, table := range tablesOf(all) {
		if n := marked(t, s, all, table, org); n != 0 && !slices.Contains(keeps, table) {
			t.Errorf("%d rows of %s still name %s", n, table, org)
		}
	}
	left := list(t, s, func(row dbutil.Scannable) (v string, err error) {
		err = row.Scan(&v)
		return v, err
	}, `SELECT label || head_session_id || people_rules FROM organizations WHERE id=$1`, org)
	if len(left) != 1 || left[0] != "" {
		t.Errorf("organizations has %q of %s, want an empty row", left, org)
	}
}

func TestAPurgedOrganizationLeavesNothingInAnyTable(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		all := columns(t, s)
		for _, org := range []string{"org-a", "org-b"} {
			fill(t, s, all, org)
		}
		before := map[string]int{}
		for _, table := range tablesOf(all) {
			if marked(t, s, all, table, "org-a") == 0 && table != "purges" {
				t.Errorf("%s has no row of org-a: what would the test see?", table)
			}
			before[table] = marked(t, s, all, table, "org-b")
		}
		// A session that was org-b's before.
		for _, q := range []string{
			`INSERT INTO sessions (id, shard_key, slug, org_id, position, desired, observed, observed_since, created_at) VALUES ('moved', 0, 'moved', 'org-a', 9, 'deleted', 'x', 1, 1)`,
			`INSERT INTO leases (session_id, owner, epoch, expires_at) VALUES ('moved', '', 1, 0)`,
			`UPDATE messages SET session_id='moved' WHERE org_id='org-b'`,
		} {
			if _, err := s.DB().Exec(t.Context(), q); err != nil {
				t.Fatal(err)
			}
		}
		before["former_devices"] = 0 // keys of devices that nobody has go, whose ever they were
		before["sessions"]++         // it names org-b from then on
		ended(t, s, "org-a")
		if _, err := purgeJob(t, s).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := purgeJob(t, s).Run(t.Context()); err != nil { // what waited for another purge
			t.Fatal(err)
		}
		wantPurged(t, s, all, "org-a")
		for _, table := range tablesOf(all) {
			if n := marked(t, s, all, table, "org-b"); n != before[table] {
				t.Errorf("%s has %d rows of org-b, want %d as before", table, n, before[table])
			}
		}
		open, err := s.OpenPurges(t.Context(), 10)
		if err != nil || len(open) != 0 {
			t.Errorf("OpenPurges = %v, %v, want none", open, err)
		}
	})
}

// The scheduler that was at it dies after each number of transactions; another one goes on where it was.
func TestAPurgeGoesOnWhereADeadSchedulerLeftIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, died := range []int{1, 3, 8, 17, 26} {
			url := storetest.SQLiteURL(t)
			s := storetest.Open(t, url)
			all := columns(t, s)
			fill(t, s, all, "org-a")
			ended(t, s, "org-a")
			if err := s.EnsureSchedule(t.Context(), "purge", 10*time.Second); err != nil {
				t.Fatal(err)
			}
			if _, ok, err := s.DueSlot(t.Context(), "purge", "dead", 10*time.Minute); !ok || err != nil {
				t.Fatal(ok, err)
			}
			for left := died; left > 0; {
				open, err := s.OpenPurges(t.Context(), 10)
				if err != nil || len(open) == 0 {
					t.Fatal(open, err)
				}
				progress := false
				for _, k := range open {
					for more := true; more && left > 0; left-- {
						if _, more, err = s.PurgeBatch(t.Context(), k, 1); err != nil {
							t.Fatal(err)
						}
						progress = progress || more
					}
				}
				if !progress && left > 0 {
					n, err := wastore.PurgeDevices(t.Context(), s, 1)
					if err != nil {
						t.Fatal(err)
					}
					_ = n
					left--
				}
			}
			other := storetest.Open(t, url)
			job := purgeJob(t, other)
			stop := start(t, other, "alive", job)
			time.Sleep(11 * time.Minute)
			stop()
			wantPurged(t, s, all, "org-a")
		}
	})
}

func TestADeletedSessionIsPurgedOnceItsOwnerLetGoAndItsHistoryStays(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		all := columns(t, s)
		fill(t, s, all, "org-a")
		sql := func(q string) {
			t.Helper()
			if _, err := s.DB().Exec(t.Context(), q); err != nil {
				t.Fatalf("%s: %v", q, err)
			}
		}
		sql(`UPDATE organizations SET deleted_at=0`)
		sql(`UPDATE sessions SET desired='running', slug='org-a-01'`)
		sql(`UPDATE leases SET owner='w/1', epoch=7, expires_at=9000000000000`)
		if _, err := s.DeleteSession(t.Context(), "org-a-01"); err != nil {
			t.Fatal(err)
		}
		job := purgeJob(t, s)
		if n, err := job.Run(t.Context()); err != nil || marked(t, s, all, "whatsmeow_device", "org-a") != 1 || marked(t, s, all, "chats", "org-a") == 0 {
			t.Errorf("with an owner alive, %d rows were purged, %v", n, err)
		}
		sql(`UPDATE leases SET expires_at=1`)
		for range 2 {
			if _, err := job.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for _, table := range tablesOf(all) {
			ours := strings.HasPrefix(table, "whatsmeow_") || slices.Contains([]string{"chats", "commands", "lease_log", "former_devices"}, table)
			if n := marked(t, s, all, table, "org-a"); (n == 0) != ours {
				t.Errorf("%d rows of %s are left", n, table)
			}
		}
		var epoch int
		if err := s.DB().QueryRow(t.Context(), `SELECT epoch FROM leases`).Scan(&epoch); err != nil || epoch != 8 {
			t.Errorf("epoch = %d, %v, want 8: the earlier owner's writes count no more", epoch, err)
		}
		purges, err := s.ListPurges(t.Context(), "org-a", 10)
		if err != nil || len(purges) != 1 || purges[0].FinishedAt.IsZero() || purges[0].Deleted == 0 || purges[0].Slug != "org-a-01" {
			t.Errorf("ListPurges = %+v, %v, want one that is finished", purges, err)
		}
	})
}
