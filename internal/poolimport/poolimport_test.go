package poolimport_test

import (
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/poolimport"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

const (
	hashHex    = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	hashBase64 = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHiA="
	verify     = "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)

// export is testdata with API keys added.
func export(t *testing.T, keys ...string) *poolimport.Export {
	t.Helper()
	files := fstest.MapFS{"api_keys.jsonl": {Data: []byte(strings.Join(keys, "\n"))}}
	for _, name := range []string{"session_pools.json", "sessions.json"} {
		raw, err := fs.ReadFile(os.DirFS("testdata/export"), name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = &fstest.MapFile{Data: raw}
	}
	e, err := poolimport.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func makePlan(t *testing.T, s *store.Store, e *poolimport.Export) *poolimport.Plan {
	t.Helper()
	p, err := poolimport.MakePlan(t.Context(), s, e)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPoolsBecomeOrganizationsAndDoingItTwiceChangesNothing(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		keys := []string{
			`{"_id":"k1","label":"crm","poolId":"customer-a","prefix":"sk_live_abcd","lookupHash":"` + hashHex + `","verifyHash":"` + verify + `"}`,
			`{"_id":"k2","name":"bot","poolId":"customer_b","lookup_hash":{"$binary":{"base64":"` + hashBase64 + `","subType":"00"}},"hash":"` + verify + `"}`,
			`{"_id":"k3","label":"old","poolId":"customer-a","revokedAt":{"$date":"2026-01-01T00:00:00.000Z"}}`,
			`{"_id":"k4","label":"lone","sessionId":"customer-a-01","lookupHash":"` + hashHex + `"}`,
			`{"_id":"k5","label":"plain","poolId":"customer-a","lookupHash":"short","verifyHash":"` + verify + `"}`,
			`{"_id":"k6","label":"bcrypt","poolId":"customer-a","lookupHash":"` + strings.Repeat("ab", 32) + `","verifyHash":"$2b$10$x"}`,
			`{"_id":"k7","label":"again","poolId":"customer-a","lookupHash":"` + hashHex + `","verifyHash":"` + verify + `"}`,
		}
		before := counts(t, s)
		plan := makePlan(t, s, export(t, keys...))
		if diff := cmp.Diff(before, counts(t, s)); diff != "" {
			t.Fatalf("planning wrote something (-before +after):\n%s", diff)
		}
		want := []string{
			`api_keys.jsonl line 4: key "lone" is bound to one session and to no pool: make a key for the organization and hand it over`,
			`api_keys.jsonl line 5: key "plain" has no lookup hash that can be read`,
			`api_keys.jsonl line 6: key "bcrypt" has no argon2id hash`,
			`api_keys.jsonl line 7: key "again" is in the file twice`,
			`session_pools.json line 2: session "customer-a-01" is in pool "customer-a" already: a number belongs to one organization`,
			`session_pools.json line 2: session "gone" is in the pool and not in sessions.json`,
			`session_pools.json line 3: poolId "~~~" can't be an organization's id: 1 to 56 lower-case letters, digits and single hyphens`,
			`sessions.json line 5: session "stray" is in no pool: an organization is needed for it, so make it by hand if it is still wanted`,
		}
		if diff := cmp.Diff(want, plan.Problems); diff != "" {
			t.Errorf("problems (-want +got):\n%s", diff)
		}
		if err := plan.Apply(store.AsActor(t.Context(), "import"), s, true); err != nil {
			t.Fatal(err)
		}
		a, err := s.OrgSessions(t.Context(), "customer-a")
		if err != nil {
			t.Fatal(err)
		}
		type row struct {
			Slug     fleet.SessionSlug
			Phone    string
			Observed fleet.Observed
			Paused   bool
			Budget   fleet.Budget
			Full     bool // its budget is not ramped
		}
		rows := []row{}
		for _, v := range a {
			if v.Ever() || v.CanLogin() {
				t.Errorf("%s counts as paired", v.Slug)
			}
			age := v.Age(time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC))
			rows = append(rows, row{v.Slug, v.Phone, v.Observed, v.Paused, v.Budget, age > 14*24*time.Hour})
		}
		none := fleet.NoBudget
		set := fleet.Budget{PerMinute: 10, PerHour: 100, PerDay: 500, NewChatsPerDay: -1}
		wantRows := []row{
			{"customer-a-01", "5511900000001", fleet.ObservedNeedsPairing, false, set, true},
			{"customer-a-02", "5511900000002", fleet.ObservedNeedsPairing, true, none, false}, // ten days old: still in its ramp
			{"customer-a-03", "", fleet.ObservedNeedsPairing, false, none, true},              // a number that another has
		}
		if diff := cmp.Diff(wantRows, rows); diff != "" {
			t.Errorf("sessions of customer-a (-want +got):\n%s", diff)
		}
		org, err := s.GetOrganization(t.Context(), "customer-b")
		if err != nil || org.Label != "Customer B" || org.Strategy != fleet.StrategyWeighted {
			t.Errorf("customer_b = %+v, %v, want customer-b, weighted", org, err)
		}
		list, err := s.ListKeys(t.Context(), store.KeyQuery{Limit: 10})
		if err != nil || len(list) != 2 || list[0].Label != "crm" || list[0].Prefix != "sk_live_abcd" || list[1].OrgID != "customer-b" {
			t.Errorf("keys = %+v, %v, want crm and bot", list, err)
		}

		// Again: the same plan finds everything there, and changes nothing, not even the audit log.
		done := counts(t, s)
		again := makePlan(t, s, export(t, keys...))
		for _, o := range again.Organizations {
			for _, v := range o.Sessions {
				if !o.Exists || !v.Exists {
					t.Errorf("%s is new again", v.Slug)
				}
			}
		}
		if err := again.Apply(store.AsActor(t.Context(), "import"), s, true); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(done, counts(t, s)); diff != "" {
			t.Errorf("the second time wrote something (-first +second):\n%s", diff)
		}
	})
}

func TestAnImportedSessionKeepsItsNumberAndIsNotStampedAsNew(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		plan := makePlan(t, s, export(t))
		if err := plan.Apply(t.Context(), s, false); err != nil {
			t.Fatal(err)
		}
		v, err := s.SessionBySlug(t.Context(), "customer-a-01")
		if err != nil {
			t.Fatal(err)
		}
		terms, _, err := s.ClaimLeases(t.Context(), store.ClaimQuery{Owner: "w/1", Limit: 10, TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		for _, term := range terms {
			if term.SessionID != v.ID {
				continue
			}
			if err := s.RecordLogin(t.Context(), term, store.Login{DeviceJID: "x:1@s.whatsapp.net", Phone: "5511900000009"}); err == nil {
				t.Error("another number could be linked to it, and would have its age")
			}
			if err := s.RecordLogin(t.Context(), term, store.Login{DeviceJID: "y:1@s.whatsapp.net", Phone: "5511900000001"}); err != nil {
				t.Fatalf("its own number can't be linked: %v", err)
			}
			if err := s.RecordPaired(t.Context(), term); err != nil {
				t.Fatal(err)
			}
		}
		if v, err = s.SessionByID(t.Context(), v.ID); err != nil || !v.Ever() || v.Age(time.Now()) < 14*24*time.Hour {
			t.Errorf("after linking its age is %v, %v, want that of a number that is warmed up", v.Age(time.Now()), err)
		}
	})
}

func TestWhatCannotBeReadIsSaidWithItsLine(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"nothing there", map[string]string{"other.json": "{}"}, "there is no session_pools.json here"},
		{"a broken line", map[string]string{"session_pools.json": "{\"poolId\":\"a\"}\n\n{\"poolId\":"}, "session_pools.json line 3 is no document"},
		{"a broken list", map[string]string{"session_pools.json": "[{\"poolId\":\"a\"}"}, "session_pools.json is no list"},
	} {
		files := fstest.MapFS{}
		for name, text := range tt.files {
			files[name] = &fstest.MapFile{Data: []byte(text)}
		}
		if _, err := poolimport.Read(files); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Read = %v, want %q", tt.name, err, tt.want)
		}
	}
	e, err := poolimport.Read(fstest.MapFS{"session_pools.json": {Data: []byte("\ufeff [ {\"poolId\":\"a\"},\n{\"poolId\":\"b\"} ] ")}})
	if err != nil {
		t.Fatalf("Read of mongoexport --jsonArray = %v", err)
	}
	if p := makePlan(t, storetest.SQLite(t), e); len(p.Organizations) != 2 || len(p.Problems) != 0 {
		t.Errorf("plan = %+v, want two organizations", p)
	}
}

// counts are the rows of every table that an import may write.
func counts(t *testing.T, s *store.Store) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, table := range []string{"organizations", "projects", "sessions", "leases", "api_keys", "audit_log", "commands", "events"} {
		var n int
		if err := s.DB().QueryRow(t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
			t.Fatal(err)
		}
		out[table] = n
	}
	return out
}
