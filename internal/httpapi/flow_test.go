package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/httpapi"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

// operations are the method and path of everything in the OpenAPI document that needs a key.
func (f *fixture) operations() [][2]string {
	f.t.Helper()
	var doc struct {
		Paths map[string]map[string]struct {
			Security []map[string][]string `json:"security"`
		} `json:"paths"`
	}
	if err := json.Unmarshal([]byte(f.do("", "GET", "/openapi.json", nil).body), &doc); err != nil {
		f.t.Fatal(err)
	}
	var out [][2]string
	for path, methods := range doc.Paths {
		for method, op := range methods {
			if len(op.Security) != 1 {
				f.t.Errorf("%s %s names no key", method, path)
			}
			out = append(out, [2]string{strings.ToUpper(method), path})
		}
	}
	if len(out) < 35 {
		f.t.Fatalf("only %d operations in the document", len(out))
	}
	return out
}

// fill puts ids of the fixture into a path; an id that the fixture has none of becomes one that is
// well formed.
func fill(path, org string) string {
	return strings.NewReplacer("{orgId}", org, "{sessionId}", org+"-01").Replace(path)
}

func TestEveryOperationNeedsAKeyOfItsKind(t *testing.T) {
	f := sqliteFixture(t)
	unknown := auth.Mint(false).Reveal()
	revoked := f.mint("revoked", auth.NewKey{Org: "org-a"})
	if _, err := f.auth.Revoke(t.Context(), revoked.ID); err != nil {
		t.Fatal(err)
	}
	f.keys["unknown"] = unknown
	f.keys["garbage"] = "Bearer Bearer"
	var cases []refusal
	for _, op := range f.operations() {
		method, path := op[0], fill(op[1], "org-a")
		for _, as := range []string{"", "unknown", "revoked", "garbage"} {
			cases = append(cases, refusal{"key " + as, as, method, path, nil, 401, "UNAUTHORIZED", nil})
		}
		if strings.HasPrefix(path, "/api/admin/") {
			cases = append(cases, refusal{"an organization's key", "org-a", method, path, nil, 403, "ADMIN_KEY_REQUIRED", nil})
		} else {
			cases = append(cases, refusal{"an admin's key", "admin", method, path, nil, 403, "ORGANIZATION_KEY_REQUIRED", nil})
		}
	}
	f.refuse(cases)
	if got := f.do("", "GET", "/api/v1/organization", nil).header.Get("WWW-Authenticate"); !strings.HasPrefix(got, "Bearer") {
		t.Errorf("WWW-Authenticate = %q, want Bearer", got)
	}
	for _, edit := range []func(*http.Request){
		header("X-Api-Key", f.keys["org-a"]),
		header("Authorization", "bearer "+f.keys["org-a"]),
	} {
		if a := f.do("", "GET", "/api/v1/organization", nil, edit); a.status != http.StatusOK {
			t.Errorf("a good key in another accepted form = %d %s", a.status, a.body)
		}
	}
}

func TestKeyInTheQueryStringIsRefusedEvenIfValid(t *testing.T) {
	f := sqliteFixture(t)
	var cases []refusal
	for _, name := range []string{"token", "apikey", "api_key", "api-key", "apiKey", "key", "X-Api-Key", "access_token", "authorization", "whatever"} {
		for _, as := range []string{"", "org-a"} { // also beside a good header: it is in the proxies' logs already
			cases = append(cases, refusal{"?" + name, as, "GET", "/api/v1/organization?" + name + "=" + f.keys["org-a"], nil, 401, "KEY_IN_URL", nil})
		}
	}
	cases = append(cases, refusal{"an admin's", "", "DELETE", "/api/admin/sessions/org-a-01?token=" + f.keys["admin"], nil, 401, "KEY_IN_URL", nil})
	f.refuse(cases)
}

func TestKeysAndSecretsAreInNoLogMetricOrLaterAnswer(t *testing.T) {
	f := sqliteFixture(t)
	secrets := []string{}
	for _, key := range f.keys {
		secrets = append(secrets, key)
		f.do("", "GET", "/api/v1/organization?token="+key, nil)
		f.do("", "GET", "/api/v1/"+key, nil)
		f.do("", "GET", "/"+key, nil)
		f.do("", "POST", "/api/v1/endpoints", `{"url":"`+key+`"}`, header("X-Api-Key", key), header("X-Request-Id", key+"\n"))
		f.do("", "GET", "/api/v1/organization", nil, header("Authorization", "Basic "+key))
	}
	created := f.must("admin", "POST", "/api/admin/keys", `{"orgId":"org-a","label":"crm"}`)
	endpoint := f.must("org-a", "POST", "/api/v1/endpoints", `{"url":"http://127.0.0.1:9/"}`)
	id := endpoint["endpointId"].(string)
	rotated := f.must("org-a", "POST", "/api/v1/endpoints/"+id+"/rotate-secret", nil)
	secrets = append(secrets, created["key"].(string), endpoint["secret"].(string), rotated["secret"].(string))
	if endpoint["secret"] == rotated["secret"] {
		t.Error("rotation gave the same secret")
	}

	var later strings.Builder
	for _, url := range []string{"/api/admin/keys", "/api/admin/endpoints", "/api/admin/endpoints/" + id, "/api/admin/sessions", "/api/admin/workers"} {
		later.WriteString(f.do("admin", "GET", url, nil).body)
	}
	later.WriteString(f.do("org-a", "GET", "/api/v1/endpoints/"+id, nil).body)
	later.WriteString(f.do("org-a", "PATCH", "/api/v1/endpoints/"+id, `{"description":"x"}`).body)
	families, err := f.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for where, text := range map[string]string{"log": f.log.String(), "later answers": later.String(), "metrics": fmt.Sprint(families)} {
		for _, s := range secrets {
			if strings.Contains(text, s[12:]) {
				t.Errorf("a secret beginning with %.8s is in the %s", s, where)
			}
		}
	}
	if !strings.Contains(f.log.String(), created["keyId"].(string)) && !strings.Contains(f.log.String(), "key_id=key_") {
		t.Errorf("the log does not say which key spoke:\n%s", f.log.String())
	}
}

func TestAnOperatorSetsUpAnOrganization(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		f := newFixture(t, s)
		org := f.must("admin", "POST", "/api/admin/organizations", `{"orgId":"acme","label":"Acme","strategy":"priority"}`)
		if org["orgId"] != "acme" || org["label"] != "Acme" || org["strategy"] != "priority" || org["createdAt"] == nil {
			t.Errorf("organization = %v", org)
		}
		one := f.must("admin", "POST", "/api/admin/sessions", `{"orgId":"acme","label":"desk"}`)
		two := f.must("admin", "POST", "/api/admin/sessions", `{"orgId":"acme","sessionId":"acme-hotline"}`)
		if one["sessionId"] != "acme-01" || one["state"] != "unowned" || one["observed"] != "needs_pairing" || one["connected"] != false || one["desired"] != "running" || two["sessionId"] != "acme-hotline" {
			t.Errorf("sessions = %v, %v", one, two)
		}
		if _, leaks := one["id"]; leaks {
			t.Errorf("the session's internal id is in %v", one)
		}
		detail := f.must("admin", "PATCH", "/api/admin/organizations/acme", `{"op":"reorder","sessions":["acme-hotline","acme-01"]}`)
		if diff := cmp.Diff([]any{"acme-hotline", "acme-01"}, detail["sessions"]); diff != "" || detail["headSessionId"] != "acme-01" {
			t.Errorf("organization after ordering = %v", detail)
		}
		if got := f.must("admin", "GET", "/api/admin/organizations/acme", nil); cmp.Diff(detail, got) != "" {
			t.Errorf("GET = %v, want %v", got, detail)
		}

		key := f.must("admin", "POST", "/api/admin/keys", `{"orgId":"acme","label":"crm"}`)
		f.keys["acme"] = key["key"].(string)
		own := f.must("acme", "GET", "/api/v1/organization", nil)
		want := map[string]any{"orgId": "acme", "label": "Acme", "sessionId": "acme-01", "sessions": map[string]any{"total": 2.0, "connected": 0.0}}
		if diff := cmp.Diff(want, own); diff != "" {
			t.Errorf("own view (-want +got):\n%s", diff)
		}

		paused := f.must("admin", "PATCH", "/api/admin/sessions/acme-01", `{"paused":true,"label":"quiet"}`)
		if paused["paused"] != true || paused["label"] != "quiet" || paused["desired"] != "running" {
			t.Errorf("after PATCH = %v", paused)
		}
		if got := f.must("admin", "POST", "/api/admin/sessions/acme-01/stop", nil); got["desired"] != "stopped" || got["paused"] != true {
			t.Errorf("after stop = %v", got)
		}
		f.do("admin", "POST", "/api/admin/sessions/acme-01/pair", `{}`).wantProblem("pairing a stopped session", 409, "SESSION_STOPPED")
		if got := f.must("admin", "POST", "/api/admin/sessions/acme-01/start", nil); got["desired"] != "running" {
			t.Errorf("after start = %v", got)
		}
		if a := f.do("admin", "DELETE", "/api/admin/sessions/acme-01", nil); a.status != http.StatusNoContent || a.body != "" {
			t.Errorf("DELETE = %d %q, want 204", a.status, a.body)
		}
		f.do("admin", "GET", "/api/admin/sessions/acme-01", nil).wantProblem("a deleted session", 404, "NOT_FOUND")
		f.do("admin", "DELETE", "/api/admin/sessions/acme-01", nil).wantProblem("deleting it again", 404, "NOT_FOUND")

		revoked := f.must("admin", "DELETE", "/api/admin/keys/"+key["keyId"].(string), nil)
		if revoked["revokedAt"] == nil {
			t.Errorf("revoked key = %v", revoked)
		}
		f.do("acme", "GET", "/api/v1/organization", nil).wantProblem("a revoked key", 401, "UNAUTHORIZED")
	})
}

func TestAKeyCannotRevokeItself(t *testing.T) {
	f := sqliteFixture(t)
	admin := f.mint("admin-2", auth.NewKey{Admin: true})
	f.do("admin-2", "DELETE", "/api/admin/keys/"+string(admin.ID), nil).wantProblem("own key", 409, "OWN_KEY")
	f.must("admin", "DELETE", "/api/admin/keys/"+string(admin.ID), nil)
	f.do("admin-2", "GET", "/api/admin/keys", nil).wantProblem("after another revoked it", 401, "UNAUTHORIZED")
}

func TestListsPageThroughEverythingOnce(t *testing.T) {
	f := sqliteFixture(t)
	for i := range 5 {
		f.must("admin", "POST", "/api/admin/sessions", `{"orgId":"org-a"}`)
		f.must("admin", "POST", "/api/admin/organizations", fmt.Sprintf(`{"orgId":"more-%d"}`, i))
	}
	for url, c := range map[string]struct {
		id   string
		want int
	}{
		"/api/admin/sessions?limit=2":              {"sessionId", 7},
		"/api/admin/sessions?limit=3&orgId=org-a":  {"sessionId", 6},
		"/api/admin/sessions?limit=3&orgId=org-zz": {"sessionId", 0},
		"/api/admin/organizations?limit=2":         {"orgId", 7},
		"/api/admin/keys?limit=1":                  {"keyId", 3},
	} {
		seen := map[string]bool{}
		cursor := ""
		for range 20 {
			page := f.must("admin", "GET", url+"&cursor="+cursor, nil)
			for _, item := range page["items"].([]any) {
				id := item.(map[string]any)[c.id].(string)
				if seen[id] {
					t.Errorf("%s: %s came twice", url, id)
				}
				seen[id] = true
			}
			next, more := page["nextCursor"].(string)
			if !more {
				break
			}
			cursor = next
		}
		if len(seen) != c.want {
			t.Errorf("%s: %d items, want %d", url, len(seen), c.want)
		}
	}
}

// own makes org-a-01 owned by a registered worker with a live lease.
func (f *fixture) own() fleet.Term {
	f.t.Helper()
	s, err := f.store.SessionBySlug(f.t.Context(), "org-a-01")
	if err != nil {
		f.t.Fatal(err)
	}
	if err := f.store.RegisterWorker(f.t.Context(), fleet.WorkerInfo{ID: "worker-1", Owner: "worker-1/boot", MaxSessions: 5}); err != nil {
		f.t.Fatal(err)
	}
	term := fleet.Term{SessionID: s.ID, Owner: "worker-1/boot", Epoch: 7}
	_, err = f.store.DB().Exec(f.t.Context(), `UPDATE leases SET owner = $2, epoch = $3, expires_at = $4 WHERE session_id = $1`,
		s.ID, term.Owner, term.Epoch, time.Now().Add(time.Hour).UnixMilli())
	if err != nil {
		f.t.Fatal(err)
	}
	return term
}

func TestPairingBecomesACommandAndNudgesWhoeverCanDoIt(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		f := newFixture(t, s)
		session, err := s.SessionBySlug(t.Context(), "org-a-01")
		if err != nil {
			t.Fatal(err)
		}
		heard := f.heard(bus.TopicUnassigned, bus.TopicControl("worker-1"))
		a := f.do("admin", "POST", "/api/admin/sessions/org-a-01/pair", `{"method":"code","phone":"+55 11 9 0000 0001"}`)
		if a.status != http.StatusAccepted {
			t.Fatalf("pair = %d %s", a.status, a.body)
		}
		got := a.json()
		if got["kind"] != "pair" || got["status"] != "pending" || got["sessionId"] != "org-a-01" || got["expiresAt"] == nil {
			t.Errorf("command = %v", got)
		}
		c, err := s.GetCommand(t.Context(), fleet.CommandID(got["commandId"].(string)))
		if err != nil {
			t.Fatal(err)
		}
		var payload fleet.PairPayload
		if err := json.Unmarshal([]byte(c.Payload), &payload); err != nil || payload != (fleet.PairPayload{Method: "code", Phone: "5511900000001"}) || c.SessionID != session.ID {
			t.Errorf("stored command = %+v, %v", c, err)
		}
		if again := f.must("admin", "GET", "/api/admin/commands/"+string(c.ID), nil); cmp.Diff(got, again) != "" {
			t.Errorf("GET command = %v, want %v", again, got)
		}
		if want := []string{bus.TopicUnassigned + " " + string(session.ID)}; !slices.Equal(heard(), want) {
			t.Errorf("nudges for an unowned session = %v, want %v", heard(), want)
		}
		f.own()
		f.must("admin", "POST", "/api/admin/sessions/org-a-01/pair", `{}`)
		f.must("admin", "POST", "/api/admin/sessions/org-a-01/stop", nil)
		want := []string{
			bus.TopicUnassigned + " " + string(session.ID),
			bus.TopicControl("worker-1") + " " + string(session.ID), bus.TopicControl("worker-1") + " " + string(session.ID),
		}
		if !slices.Equal(heard(), want) {
			t.Errorf("nudges = %v, want %v", heard(), want)
		}
	})
}

func TestQRIsShownInEveryFormatWhilePairingAndNotBeyond(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		f := newFixture(t, s)
		term := f.own()
		const url = "/api/admin/sessions/org-a-01/qr"
		const text = "2@abcdef,ghij,klmn,opqr"
		soon := time.Now().Add(time.Minute).Truncate(time.Millisecond).UTC()
		f.do("admin", "GET", url, nil).wantProblem("before", 409, "NO_PAIRING")
		show := func(p fleet.Pairing) {
			t.Helper()
			if err := s.RecordPairing(t.Context(), term, 1, p); err != nil {
				t.Fatal(err)
			}
		}
		show(fleet.Pairing{Method: "qr", QR: text, ExpiresAt: soon, EndsAt: soon.Add(time.Minute)})

		before := f.rows()
		want := map[string]any{
			"method": "qr", "qr": text,
			"expiresAt": soon.Format(time.RFC3339Nano), "endsAt": soon.Add(time.Minute).Format(time.RFC3339Nano),
		}
		if diff := cmp.Diff(want, f.must("admin", "GET", url, nil)); diff != "" {
			t.Errorf("json (-want +got):\n%s", diff)
		}
		for format, check := range map[string]struct{ contentType, begin, contain string }{
			"text":     {"text/plain; charset=utf-8", text + "\n", ""},
			"terminal": {"text/plain; charset=utf-8", "████", "▀"},
			"png":      {"image/png", "\x89PNG\r\n\x1a\n", "IEND"},
			"svg":      {"image/svg+xml", "<svg ", `fill="#fff"`},
		} {
			a := f.do("admin", "GET", url+"?format="+format, nil)
			if a.status != http.StatusOK || a.header.Get("Content-Type") != check.contentType ||
				!strings.HasPrefix(a.body, check.begin) || !strings.Contains(a.body, check.contain) {
				t.Errorf("%s = %d %s %.40q", format, a.status, a.header.Get("Content-Type"), a.body)
			}
		}
		if v := f.must("admin", "GET", "/api/admin/sessions/org-a-01", nil); v["state"] != "pairing" || v["worker"] != term.Owner ||
			v["epoch"] != 7.0 || v["pairing"] == nil || strings.Contains(fmt.Sprint(v), text) {
			t.Errorf("session while pairing = %v, want the pairing without its QR", v)
		}
		f.unchanged("reading", before)

		show(fleet.Pairing{Method: "qr", QR: text, ExpiresAt: time.Now().Add(-time.Second), EndsAt: soon})
		a := f.do("admin", "GET", url, nil)
		a.wantProblem("an expired QR", 409, "QR_EXPIRED")
		if a.header.Get("Retry-After") != "1" || a.json()["retryAfterSeconds"] != 1.0 {
			t.Errorf("expired QR: Retry-After = %q, body %s", a.header.Get("Retry-After"), a.body)
		}
		show(fleet.Pairing{Method: "qr", QR: text, ExpiresAt: time.Now().Add(-time.Second), EndsAt: time.Now().Add(-time.Second)})
		f.do("admin", "GET", url, nil).wantProblem("an ended attempt", 409, "PAIRING_EXPIRED")

		show(fleet.Pairing{Method: "code", Code: "ABCD-EFGH", ExpiresAt: soon, EndsAt: soon})
		if a := f.do("admin", "GET", url+"?format=text", nil); a.body != "ABCD-EFGH\n" {
			t.Errorf("code as text = %q", a.body)
		}
		f.do("admin", "GET", url+"?format=png", nil).wantProblem("a picture of a code", 409, "NO_QR")

		// An owner that lost its lease shows nothing any more.
		if _, err := s.DB().Exec(t.Context(), `UPDATE leases SET expires_at = 1 WHERE session_id = $1`, term.SessionID); err != nil {
			t.Fatal(err)
		}
		f.do("admin", "GET", url, nil).wantProblem("without an owner", 409, "NO_PAIRING")
	})
}

func TestALoginIsNotPairedOverAndKeepsItsNumber(t *testing.T) {
	f := sqliteFixture(t)
	term := f.own()
	if err := f.store.RecordLogin(t.Context(), term, store.Login{DeviceJID: "5511900000001:1@s.whatsapp.net", Phone: "5511900000001"}); err != nil {
		t.Fatal(err)
	}
	if err := f.store.RecordPaired(t.Context(), term); err != nil {
		t.Fatal(err)
	}
	f.refuse([]refusal{
		{"a session with a login", "admin", "POST", "/api/admin/sessions/org-a-01/pair", `{}`, 409, "ALREADY_PAIRED", nil},
		{"another session with that number", "admin", "POST", "/api/admin/sessions/org-b-01/pair", `{"method":"code","phone":"+5511900000001"}`, 409, "NUMBER_IN_USE", nil},
	})
	for _, verb := range []string{"connect", "logout"} {
		if got := f.must("admin", "POST", "/api/admin/sessions/org-a-01/"+verb, nil); got["kind"] != verb {
			t.Errorf("%s = %v", verb, got)
		}
	}
	v := f.must("admin", "GET", "/api/admin/sessions/org-a-01", nil)
	if v["phone"] != "+5511900000001" || v["paired"] != true || v["pairedAt"] == nil {
		t.Errorf("session = %v", v)
	}
	if _, err := f.store.DB().Exec(t.Context(), `UPDATE sessions SET revoked_at = 5 WHERE id = $1`, term.SessionID); err != nil {
		t.Fatal(err)
	}
	f.do("admin", "POST", "/api/admin/sessions/org-a-01/pair", `{"method":"code","phone":"+5511900000002"}`).wantProblem("another number", 409, "NUMBER_MISMATCH")
	f.must("admin", "POST", "/api/admin/sessions/org-a-01/pair", `{"method":"code","phone":"+5511900000001"}`)
}

func TestReadingNeverChangesAnything(t *testing.T) {
	f := sqliteFixture(t)
	f.own()
	f.must("org-a", "POST", "/api/v1/endpoints", `{"url":"http://127.0.0.1:9/"}`)
	before := f.rows()
	for _, op := range f.operations() {
		if op[0] != http.MethodGet {
			continue
		}
		as := "org-a"
		if strings.HasPrefix(op[1], "/api/admin/") {
			as = "admin"
		}
		for _, method := range []string{"GET", "HEAD"} {
			f.do(as, method, fill(op[1], "org-a"), nil)
		}
	}
	f.unchanged("all GETs", before)
}

func TestWebhooksAreManagedByTheirOwnerAndEventsShownAsTold(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		f := newFixture(t, s)
		created := f.must("org-a", "POST", "/api/v1/endpoints", `{"url":"http://127.0.0.1:9/hook","description":"crm","events":["message.status","message"],"maxConcurrency":2}`)
		id := created["endpointId"].(string)
		secret, _ := created["secret"].(string)
		if !strings.HasPrefix(secret, "whsec_") || created["scope"] != "organization" || created["maxConcurrency"] != 2.0 || created["disabled"] != false {
			t.Errorf("endpoint = %v", created)
		}
		if diff := cmp.Diff([]any{"message", "message.status"}, created["events"]); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		operator := f.must("admin", "POST", "/api/admin/endpoints", `{"url":"http://127.0.0.1:9/ops"}`)
		if operator["scope"] != "operator" || len(operator["events"].([]any)) != 0 {
			t.Errorf("operator's endpoint = %v", operator)
		}

		session, err := s.SessionBySlug(t.Context(), "org-a-01")
		if err != nil {
			t.Fatal(err)
		}
		var ev fleet.Event
		err = s.InTx(t.Context(), func(ctx context.Context) (err error) {
			ev, err = s.AppendEvent(ctx, fleet.Event{
				OrgID: "org-a", Kind: fleet.EventMessageStatus, SessionID: session.ID,
				Data: fleet.EventData{MessageID: "msg_1", Status: fleet.StatusSent, At: 1_700_000_000_000},
			})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		told := f.must("org-a", "GET", "/api/v1/events/"+string(ev.ID), nil)
		if told["id"] != string(ev.ID) || told["event"] != "message.status" || told["sessionId"] != "org-a-01" ||
			told["payload"].(map[string]any)["status"] != "sent" || strings.Contains(fmt.Sprint(told), string(session.ID)) {
			t.Errorf("event = %v", told)
		}
		f.do("org-b", "GET", "/api/v1/events/"+string(ev.ID), nil).wantProblem("another organization's event", 404, "NOT_FOUND")
		if truth := f.must("admin", "GET", "/api/admin/events/"+string(ev.ID), nil); !strings.Contains(fmt.Sprint(truth), string(session.ID)) {
			t.Errorf("operator's view = %v, want true ids", truth)
		}

		items := f.must("org-a", "GET", "/api/v1/deliveries?status=pending&endpointId="+id, nil)["items"].([]any)
		if len(items) != 1 || items[0].(map[string]any)["eventId"] != string(ev.ID) {
			t.Fatalf("deliveries = %v, want the one", items)
		}
		delivery := items[0].(map[string]any)["deliveryId"].(string)
		heard := f.heard(bus.TopicWebhooks)
		replay := f.must("org-a", "POST", "/api/v1/deliveries/"+delivery+"/replay", nil)
		if replay["eventId"] != string(ev.ID) || replay["replay"] != true || replay["ordered"] != false || replay["deliveryId"] == delivery || len(heard()) != 1 {
			t.Errorf("replay = %v, nudges %v", replay, heard())
		}
		f.do("org-b", "POST", "/api/v1/deliveries/"+delivery+"/replay", nil).wantProblem("another organization's delivery", 404, "NOT_FOUND")
		page := f.must("org-a", "GET", "/api/v1/deliveries?limit=1", nil)
		rest := f.must("org-a", "GET", "/api/v1/deliveries?limit=1&cursor="+page["nextCursor"].(string), nil)
		if page["items"].([]any)[0].(map[string]any)["deliveryId"] != replay["deliveryId"] || rest["items"].([]any)[0].(map[string]any)["deliveryId"] != delivery || rest["nextCursor"] != nil {
			t.Errorf("pages = %v, %v, want newest first", page, rest)
		}

		rotated := f.must("org-a", "POST", "/api/v1/endpoints/"+id+"/rotate-secret", `{"keepHours":1}`)
		if rotated["secret"] == secret || rotated["previousSecretEnds"] == nil {
			t.Errorf("rotation = %v", rotated)
		}
		if now := f.must("org-a", "POST", "/api/v1/endpoints/"+id+"/rotate-secret", `{"keepHours":0}`); now["previousSecretEnds"] != nil {
			t.Errorf("rotation without overlap = %v", now)
		}
		changed := f.must("org-a", "PATCH", "/api/v1/endpoints/"+id, `{"disabled":true,"events":[]}`)
		if changed["disabled"] != true || changed["disabledWhy"] != "by_hand" || len(changed["events"].([]any)) != 0 {
			t.Errorf("after PATCH = %v", changed)
		}
		f.do("org-a", "POST", "/api/v1/deliveries/"+delivery+"/replay", nil).wantProblem("replay to a disabled endpoint", 409, "ENDPOINT_DISABLED")
		if a := f.do("org-a", "DELETE", "/api/v1/endpoints/"+id, nil); a.status != http.StatusNoContent {
			t.Errorf("DELETE = %d %s", a.status, a.body)
		}
		f.do("org-a", "GET", "/api/v1/endpoints/"+id, nil).wantProblem("a deleted endpoint", 404, "NOT_FOUND")
	})
}

func TestPrivateWebhookURLsNeedAnOption(t *testing.T) {
	f := newFixture(t, storetest.SQLite(t), func(o *httpapi.Options) { o.AllowPrivateWebhooks = false })
	var cases []refusal
	for _, url := range []string{"http://127.0.0.1/", "http://localhost/", "http://[::1]/", "http://169.254.169.254/latest", "http://10.0.0.1/", "http://100.64.0.1/", "http://[::ffff:127.0.0.1]/"} {
		cases = append(cases,
			refusal{url, "org-a", "POST", "/api/v1/endpoints", map[string]string{"url": url}, 422, "URL_FORBIDDEN", nil},
			refusal{url, "admin", "POST", "/api/admin/endpoints", map[string]string{"url": url}, 422, "URL_FORBIDDEN", nil})
	}
	f.refuse(cases)
}
