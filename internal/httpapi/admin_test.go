package httpapi_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/httpapi"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

func publicURL(o *httpapi.Options) { o.PublicURL = "https://wa.example.com/" }

func TestPairingLinkIsShownOnceAndItsTokenIsStoredNowhere(t *testing.T) {
	f := newFixture(t, storetest.SQLite(t), publicURL)
	made := f.must("admin", "POST", "/api/admin/pairing-invites", `{"orgId":"org-a"}`)
	url := made["url"].(string)
	token, ok := strings.CutPrefix(url, "https://wa.example.com/pair/")
	if !ok || !strings.HasPrefix(token, "wfp_") || len(token) < 50 {
		t.Fatalf("url = %q, want PUBLIC_URL/pair/wfp_…", url)
	}
	if made["maxSessions"] != 5.0 || made["used"] != 0.0 || made["state"] != "live" {
		t.Errorf("defaults = %v, want 5 numbers, none used, live", made)
	}
	if got := f.do("admin", "GET", "/api/admin/sessions?orgId=org-a", nil).json()["items"].([]any); len(got) != 1 {
		t.Errorf("minting a link made sessions: %v", got)
	}
	list := f.do("admin", "GET", "/api/admin/pairing-invites?orgId=org-a", nil)
	if items := list.json()["items"].([]any); len(items) != 1 || items[0].(map[string]any)["inviteId"] != made["inviteId"] {
		t.Errorf("list = %s, want the link", list.body)
	}
	if got := f.must("admin", "GET", "/api/admin/pairing-invites?orgId=org-b", nil)["items"].([]any); len(got) != 0 {
		t.Errorf("links of org-b = %v, want none", got)
	}
	revoked := f.must("admin", "POST", "/api/admin/pairing-invites/"+made["inviteId"].(string)+"/revoke", nil)
	if revoked["state"] != "revoked" || revoked["revokedAt"] == nil {
		t.Errorf("revoked link = %v", revoked)
	}
	var seen strings.Builder
	for _, table := range []string{"pairing_invites", "audit_log"} {
		rows, err := f.store.DB().Query(t.Context(), "SELECT * FROM "+table)
		if err != nil {
			t.Fatal(err)
		}
		columns, _ := rows.Columns()
		for rows.Next() {
			values := make([]any, len(columns))
			targets := make([]any, len(columns))
			for i := range values {
				targets[i] = &values[i]
			}
			if err := rows.Scan(targets...); err != nil {
				t.Fatal(err)
			}
			for _, v := range values {
				if b, ok := v.([]byte); ok {
					v = string(b)
				}
				fmt.Fprintln(&seen, v)
			}
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		_ = rows.Close()
	}
	for where, text := range map[string]string{"database": seen.String(), "log": f.log.String(), "list": list.body} {
		if strings.Contains(text, token[4:40]) {
			t.Errorf("the token is in the %s", where)
		}
	}
	if !strings.Contains(seen.String(), "$argon2id$") {
		t.Error("no argon2id hash is stored")
	}
}

func TestPairingLinkRefusals(t *testing.T) {
	f := sqliteFixture(t)
	f.refuse([]refusal{
		{"an unknown organization", "admin", "POST", "/api/admin/pairing-invites", `{"orgId":"org-z"}`, 404, "NOT_FOUND", nil},
		{"no numbers", "admin", "POST", "/api/admin/pairing-invites", `{"orgId":"org-a","maxSessions":0}`, 422, "VALIDATION", nil},
		{"too long", "admin", "POST", "/api/admin/pairing-invites", `{"orgId":"org-a","ttlHours":9000}`, 422, "VALIDATION", nil},
		{"an unknown link", "admin", "POST", "/api/admin/pairing-invites/inv_x/revoke", nil, 404, "NOT_FOUND", nil},
		{"a blank link", "admin", "POST", "/api/admin/pairing-invites//revoke", nil, 404, "NOT_FOUND", nil},
		{"a wildcard", "admin", "POST", "/api/admin/pairing-invites/%25/revoke", nil, 404, "NOT_FOUND", nil},
		{"a time zone of this machine", "admin", "PATCH", "/api/admin/organizations/org-a", `{"timeZone":"Local"}`, 422, "TIME_ZONE_INVALID", nil},
		{"a project without a name", "admin", "POST", "/api/admin/organizations/org-a/projects", `{"name":" "}`, 422, "PROJECT_NAME_INVALID", nil},
		{"an admin key of a project", "admin", "POST", "/api/admin/keys", `{"admin":true,"projectId":"prj_x"}`, 422, "VALIDATION", nil},
		{"a key of another organization's project", "admin", "POST", "/api/admin/keys", `{"orgId":"org-b","projectId":"prj_x"}`, 404, "NOT_FOUND", nil},
		{"a foreign cursor", "admin", "GET", "/api/admin/audit?cursor=x", nil, 422, "CURSOR_INVALID", nil},
		{"usage of a day that is none", "admin", "GET", "/api/admin/usage?from=2026-02-30&to=2026-03-01", nil, 422, "VALIDATION", nil},
		{"usage backwards", "admin", "GET", "/api/admin/usage?from=2026-03-02&to=2026-03-01", nil, 422, "VALIDATION", nil},
		{"moving a session to nobody", "admin", "POST", "/api/admin/sessions/org-a-01/move", `{"orgId":"org-z"}`, 404, "NOT_FOUND", nil},
		{"moving a session that runs", "admin", "POST", "/api/admin/sessions/org-a-01/move", `{"orgId":"org-b"}`, 409, "SESSION_BUSY", nil},
		{"moving a session to where it is", "admin", "POST", "/api/admin/sessions/org-a-01/move", `{"orgId":"org-a"}`, 409, "SAME_ORGANIZATION", nil},
		{"an organization in use", "admin", "DELETE", "/api/admin/organizations/org-a", nil, 409, "ORGANIZATION_IN_USE", nil},
	})
}

// TestEveryAdminChangeIsInTheAuditLog does each changing operation of the OpenAPI document once.
func TestEveryAdminChangeIsInTheAuditLog(t *testing.T) {
	f := sqliteFixture(t)
	id := func(v map[string]any, field string) string { return v[field].(string) }
	key := id(f.must("admin", "POST", "/api/admin/keys", `{"orgId":"org-a"}`), "keyId")
	ep := id(f.must("admin", "POST", "/api/admin/endpoints", `{"url":"http://127.0.0.1:9/"}`), "endpointId")
	project := id(f.must("admin", "POST", "/api/admin/organizations/org-a/projects", `{"name":"crm","monthlyQuota":10}`), "projectId")
	invite := id(f.must("admin", "POST", "/api/admin/pairing-invites", `{"orgId":"org-a"}`), "inviteId")
	if _, err := f.store.AppendEvent(t.Context(), fleet.Event{OrgID: "org-a", Kind: fleet.EventSessionStatus, SessionID: f.session("org-a-01").ID}); err != nil {
		t.Fatal(err)
	}
	deliveries := f.must("admin", "GET", "/api/admin/deliveries", nil)["items"].([]any)
	delivery := id(deliveries[0].(map[string]any), "deliveryId")
	done := map[string]bool{}
	did := func(method, path, pattern string, body any, action string) {
		t.Helper()
		before := f.audited()
		f.must("admin", method, path, body)
		entries := f.audited()
		if len(entries) != len(before)+1 || entries[0]["action"] != action || !strings.HasPrefix(entries[0]["actor"].(string), "key_") {
			t.Errorf("%s %s: new entries %v, want one %s by the key", method, path, entries[:len(entries)-len(before)], action)
		}
		done[method+" "+pattern] = true
	}
	const orgs, sessions = "/api/admin/organizations", "/api/admin/sessions"
	did("POST", orgs, orgs, `{"orgId":"org-c"}`, "organization.create")
	did("PATCH", orgs+"/org-c", orgs+"/{orgId}", `{"label":"C"}`, "organization.update")
	did("DELETE", orgs+"/org-c", orgs+"/{orgId}", nil, "organization.delete")
	did("POST", orgs+"/org-a/projects", orgs+"/{orgId}/projects", `{"name":"two"}`, "project.create")
	did("PATCH", orgs+"/org-a/projects/"+project, orgs+"/{orgId}/projects/{projectId}", `{"maxBacklog":3}`, "project.update")
	did("DELETE", orgs+"/org-a/projects/"+project, orgs+"/{orgId}/projects/{projectId}", nil, "project.delete")
	did("POST", sessions, sessions, `{"orgId":"org-a"}`, "session.create")
	did("PATCH", sessions+"/org-a-02", sessions+"/{sessionId}", `{"paused":true}`, "session.update")
	did("POST", sessions+"/org-a-02/stop", sessions+"/{sessionId}/stop", nil, "session.update")
	did("POST", sessions+"/org-a-02/start", sessions+"/{sessionId}/start", nil, "session.update")
	did("POST", sessions+"/org-a-02/pair", sessions+"/{sessionId}/pair", `{}`, "session.pair")
	f.sql(`UPDATE sessions SET device_jid = 'x', paired_at = 1 WHERE slug = 'org-a-02'`)
	did("POST", sessions+"/org-a-02/connect", sessions+"/{sessionId}/connect", nil, "session.connect")
	did("POST", sessions+"/org-a-02/logout", sessions+"/{sessionId}/logout", nil, "session.logout")
	f.must("admin", "POST", orgs, `{"orgId":"org-d"}`)
	f.must("admin", "POST", sessions+"/org-a-02/stop", nil)
	f.do("admin", "POST", sessions+"/org-a-02/move", `{"orgId":"org-d"}`).wantProblem("moving a session for which commands wait", 409, "SESSION_BUSY")
	f.sql(`UPDATE commands SET status = 'done'`)
	f.sql(`UPDATE sessions SET observed_since = 1`)
	did("POST", sessions+"/org-a-02/move", sessions+"/{sessionId}/move", `{"orgId":"org-d"}`, "session.move")
	did("DELETE", sessions+"/org-a-02", sessions+"/{sessionId}", nil, "session.delete")
	did("POST", "/api/admin/keys", "/api/admin/keys", `{"orgId":"org-a"}`, "key.create")
	did("PATCH", "/api/admin/keys/"+key, "/api/admin/keys/{keyId}", `{"label":"crm"}`, "key.update")
	did("DELETE", "/api/admin/keys/"+key, "/api/admin/keys/{keyId}", nil, "key.revoke")
	did("POST", "/api/admin/pairing-invites", "/api/admin/pairing-invites", `{"orgId":"org-a"}`, "invite.create")
	did("POST", "/api/admin/pairing-invites/"+invite+"/revoke", "/api/admin/pairing-invites/{inviteId}/revoke", nil, "invite.revoke")
	did("POST", "/api/admin/endpoints", "/api/admin/endpoints", `{"url":"http://127.0.0.1:9/"}`, "endpoint.create")
	did("PATCH", "/api/admin/endpoints/"+ep, "/api/admin/endpoints/{endpointId}", `{"description":"x"}`, "endpoint.update")
	did("POST", "/api/admin/endpoints/"+ep+"/rotate-secret", "/api/admin/endpoints/{endpointId}/rotate-secret", nil, "endpoint.rotate_secret")
	did("POST", "/api/admin/deliveries/"+delivery+"/replay", "/api/admin/deliveries/{deliveryId}/replay", nil, "delivery.replay")
	did("DELETE", "/api/admin/endpoints/"+ep, "/api/admin/endpoints/{endpointId}", nil, "endpoint.delete")
	for _, op := range f.operations() {
		if op[0] != http.MethodGet && strings.HasPrefix(op[1], "/api/admin/") && !done[op[0]+" "+op[1]] {
			t.Errorf("%s %s changes something, and no case here shows that it is in the audit log", op[0], op[1])
		}
	}
	// A consumer's own changes are its own business, and no secret is in any entry.
	before := len(f.audited())
	f.must("org-a", "POST", "/api/v1/endpoints", `{"url":"http://127.0.0.1:9/"}`)
	if got := len(f.audited()); got != before {
		t.Errorf("a consumer's change made %d entries", got-before)
	}
	if text := fmt.Sprint(f.audited()); strings.Contains(text, "whsec_") || strings.Contains(text, "argon2") {
		t.Errorf("a secret is in the audit log: %s", text)
	}
}

func TestRatesAreSetOnSessionsOrganizationsAndProjectsPartByPart(t *testing.T) {
	f := sqliteFixture(t)
	project, err := f.store.DefaultProject(t.Context(), "org-a")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"/api/admin/sessions/org-a-01", "/api/admin/organizations/org-a", "/api/admin/organizations/org-a/projects/" + string(project),
	} {
		rate := func(view map[string]any) [2]any { return [2]any{view["ratePerMinute"], view["rateBurst"]} }
		if got := rate(f.must("admin", "GET", path, nil)); got != [2]any{0.0, 0.0} {
			t.Errorf("%s: rate %v at first, want no limit", path, got)
		}
		f.must("admin", "PATCH", path, `{"ratePerMinute":60,"rateBurst":5}`)
		f.must("admin", "PATCH", path, `{"ratePerMinute":90}`)
		if got := rate(f.must("admin", "GET", path, nil)); got != [2]any{90.0, 5.0} {
			t.Errorf("%s: rate %v, want 90 a minute and 5 at once", path, got)
		}
		for _, bad := range []string{`{"ratePerMinute":-1}`, `{"rateBurst":1.5}`, `{"ratePerMinute":10000001}`} {
			if a := f.do("admin", "PATCH", path, bad); a.status != http.StatusUnprocessableEntity {
				t.Errorf("PATCH %s %s = %d, want 422", path, bad, a.status)
			}
		}
	}
}

func TestAuditLogPagesFromTheNewest(t *testing.T) {
	f := sqliteFixture(t)
	for i := range 5 {
		f.must("admin", "PATCH", "/api/admin/organizations/org-a", fmt.Sprintf(`{"label":"L%d"}`, i))
	}
	var labels []string
	for cursor := ""; ; {
		page := f.must("admin", "GET", "/api/admin/audit?orgId=org-a&action=organization.update&limit=2&cursor="+cursor, nil)
		for _, e := range page["items"].([]any) {
			labels = append(labels, e.(map[string]any)["after"].(map[string]any)["label"].(string))
		}
		next, _ := page["nextCursor"].(string)
		if next == "" {
			break
		}
		cursor = next
	}
	if diff := cmp.Diff([]string{"L4", "L3", "L2", "L1", "L0"}, labels); diff != "" {
		t.Errorf("labels, newest first (-want +got):\n%s", diff)
	}
}

func TestAPageIsServedBehindTheLogAndNeverByItsURL(t *testing.T) {
	page := http.NewServeMux()
	page.HandleFunc("GET /pair/{token}", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) })
	f := newFixture(t, storetest.SQLite(t), func(o *httpapi.Options) { o.Pages = map[string]http.Handler{"/pair/": page} })
	a := f.do("", "GET", "/pair/wfp_secret", nil)
	if a.status != http.StatusOK || a.body != "hello" || a.header.Get("Referrer-Policy") != "no-referrer" || a.header.Get("X-Request-Id") == "" {
		t.Errorf("page = %d %q with %v", a.status, a.body, a.header)
	}
	if log := f.log.String(); strings.Contains(log, "secret") || !strings.Contains(log, "route=/pair/{token}") {
		t.Errorf("the log line is not by the pattern:\n%s", log)
	}
}

func (f *fixture) audited() []map[string]any {
	f.t.Helper()
	var out []map[string]any
	for _, e := range f.must("admin", "GET", "/api/admin/audit?limit=200", nil)["items"].([]any) {
		out = append(out, e.(map[string]any))
	}
	return slices.Clip(out)
}

func (f *fixture) session(slug fleet.SessionSlug) fleet.Session {
	f.t.Helper()
	v, err := f.store.SessionBySlug(f.t.Context(), slug)
	if err != nil {
		f.t.Fatal(err)
	}
	return v
}

func (f *fixture) sql(q string, args ...any) {
	f.t.Helper()
	if _, err := f.store.DB().Exec(f.t.Context(), q, args...); err != nil {
		f.t.Fatal(err)
	}
}

func TestUsageAndPurgesAreShownToOperators(t *testing.T) {
	f := sqliteFixture(t)
	f.sql(`INSERT INTO usage_days (org_id, project_id, day, accepted, sent) VALUES ('org-a', 'prj_1', '2026-11-30', 7, 5), ('org-b', 'prj_2', '2026-11-30', 1, 1)`)
	items := f.must("admin", "GET", "/api/admin/usage?from=2026-11-30&to=2026-11-30&orgId=org-a", nil)["items"].([]any)
	if len(items) != 1 || items[0].(map[string]any)["sent"] != 5.0 {
		t.Errorf("usage = %v, want org-a's 5", items)
	}
	f.must("admin", "DELETE", "/api/admin/sessions/org-a-01", nil)
	items = f.must("admin", "GET", "/api/admin/purges?orgId=org-a", nil)["items"].([]any)
	if len(items) != 1 || items[0].(map[string]any)["sessionId"] != "org-a-01" || items[0].(map[string]any)["finishedAt"] != nil {
		t.Errorf("purges = %v, want one of org-a-01 that goes on", items)
	}
}
