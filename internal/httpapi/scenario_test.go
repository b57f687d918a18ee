package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

// refusal is a request that must be refused with a code and write nothing.
type refusal struct {
	name   string
	as     string
	method string
	url    string
	body   any
	status int
	code   string
	edit   func(*http.Request)
}

func (f *fixture) refuse(cases []refusal) {
	f.t.Helper()
	before := f.rows()
	for _, c := range cases {
		edits := []func(*http.Request){}
		if c.edit != nil {
			edits = append(edits, c.edit)
		}
		f.do(c.as, c.method, c.url, c.body, edits...).wantProblem(c.name+" ("+c.method+" "+c.url+")", c.status, c.code)
	}
	f.unchanged("all of these", before)
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// bodyDoors are all operations with a body, and a body that each would accept.
var bodyDoors = []struct {
	as, method, url, good, field string
}{
	{"admin", "POST", "/api/admin/organizations", `{"orgId":"org-c"}`, "label"},
	{"admin", "PATCH", "/api/admin/organizations/org-a", `{"label":"new"}`, "label"},
	{"admin", "POST", "/api/admin/sessions", `{"orgId":"org-a"}`, "label"},
	{"admin", "PATCH", "/api/admin/sessions/org-a-01", `{"label":"new"}`, "label"},
	{"admin", "POST", "/api/admin/sessions/org-a-01/pair", `{"method":"qr"}`, "phone"},
	{"admin", "POST", "/api/admin/keys", `{"orgId":"org-a"}`, "label"},
	{"admin", "POST", "/api/admin/endpoints", `{"url":"http://127.0.0.1:9/hook"}`, "description"},
	{"org-a", "POST", "/api/v1/endpoints", `{"url":"http://127.0.0.1:9/hook"}`, "description"},
}

func TestBadBodiesAreRefusedAtEveryDoorAndNothingIsWritten(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		f := newFixture(t, s)
		var cases []refusal
		for _, d := range bodyDoors {
			open := strings.TrimSuffix(d.good, "}")
			for _, c := range []struct {
				name, body string
				status     int
				code       string
			}{
				{"no body", "", 400, "BAD_JSON"},
				{"broken JSON", `{"label":`, 400, "BAD_JSON"},
				{"text that is no JSON", `label=new`, 400, "BAD_JSON"},
				{"two values", d.good + d.good, 400, "BAD_JSON"},
				{"an array", `[]`, 422, "VALIDATION"},
				{"null", `null`, 422, "VALIDATION"},
				{"a string", `"text"`, 422, "VALIDATION"},
				{"a number", `1`, 422, "VALIDATION"},
				{"an unknown field", open + `,"nonsense":1}`, 422, "VALIDATION"},
				{"a field in other letters", open + `,"` + strings.ToUpper(d.field) + `":"x"}`, 422, "VALIDATION"},
				{"a number where text is due", open + `,"` + d.field + `":7}`, 422, "VALIDATION"},
				{"an object where text is due", open + `,"` + d.field + `":{}}`, 422, "VALIDATION"},
				{"invalid UTF-8", open + ",\"" + d.field + "\":\"a\xff\xfeb\"}", 422, "TEXT_INVALID"},
				{"a NUL by escape", open + `,"` + d.field + `":"a\u0000b"}`, 422, "TEXT_INVALID"},
				{"a NUL as such", open + ",\"" + d.field + "\":\"a\x00b\"}", 422, "TEXT_INVALID"},
				{"half a surrogate pair", open + `,"` + d.field + `":"a\ud800b"}`, 422, "TEXT_INVALID"},
				{"the other half", open + `,"` + d.field + `":"a\udc00"}`, 422, "TEXT_INVALID"},
				{"a NUL in a field's name", open + `,"a\u0000":1}`, 422, "TEXT_INVALID"},
				{"more than 1 MiB", open + `,"` + d.field + `":"` + strings.Repeat("a", 1<<20) + `"}`, 413, "BODY_TOO_LARGE"},
			} {
				cases = append(cases, refusal{c.name, d.as, d.method, d.url, c.body, c.status, c.code, nil})
			}
			for _, ct := range []string{"text/plain", "application/x-www-form-urlencoded", "application/xml", "application/json; charset=latin1", "nonsense/"} {
				cases = append(cases, refusal{"content type " + ct, d.as, d.method, d.url, d.good, 415, "UNSUPPORTED_MEDIA_TYPE", header("Content-Type", ct)})
			}
			cases = append(cases, refusal{"a compressed body", d.as, d.method, d.url, d.good, 415, "UNSUPPORTED_MEDIA_TYPE", header("Content-Encoding", "gzip")})
		}
		f.refuse(cases)
		// The good bodies are good: what was refused above was refused for its fault.
		for _, d := range bodyDoors {
			if a := f.do(d.as, d.method, d.url, d.good); a.status/100 != 2 {
				t.Errorf("%s %s with %s = %d %s, want 2xx", d.method, d.url, d.good, a.status, a.body)
			}
		}
	})
}

func TestValuesThatMakeNoSenseAreRefused(t *testing.T) {
	f := sqliteFixture(t)
	long := strings.Repeat("a", 201)
	var cases []refusal
	add := func(name, as, method, url, body string, status int, code string) {
		cases = append(cases, refusal{name, as, method, url, body, status, code, nil})
	}
	for _, id := range []string{"", " ", "*", "%", "Org", "a_b", "-a", "a-", "a--b", "ä", strings.Repeat("a", 56) + "b"} {
		code := "ORG_ID_INVALID"
		if len(id) > 56 {
			code = "VALIDATION"
		}
		add("orgId "+id, "admin", "POST", "/api/admin/organizations", `{"orgId":"`+id+`"}`, 422, code)
	}
	add("a missing orgId", "admin", "POST", "/api/admin/organizations", `{}`, 422, "VALIDATION")
	add("a taken orgId", "admin", "POST", "/api/admin/organizations", `{"orgId":"org-a"}`, 409, "CONFLICT")
	add("an unknown strategy", "admin", "POST", "/api/admin/organizations", `{"orgId":"org-c","strategy":"best"}`, 422, "VALIDATION")
	add("a long label", "admin", "POST", "/api/admin/organizations", `{"orgId":"org-c","label":"`+long+`"}`, 422, "LABEL_INVALID")
	add("a label of two lines", "admin", "POST", "/api/admin/organizations", `{"orgId":"org-c","label":"a\nb"}`, 422, "LABEL_INVALID")
	add("nothing to change", "admin", "PATCH", "/api/admin/organizations/org-a", `{}`, 422, "VALIDATION")
	add("an unknown op", "admin", "PATCH", "/api/admin/organizations/org-a", `{"op":"drop"}`, 422, "VALIDATION")
	add("an order without op", "admin", "PATCH", "/api/admin/organizations/org-a", `{"sessions":["org-a-01"]}`, 422, "VALIDATION")
	add("an incomplete order", "admin", "PATCH", "/api/admin/organizations/org-a", `{"op":"reorder"}`, 422, "ORDER_INCOMPLETE")
	add("an order with a foreign session", "admin", "PATCH", "/api/admin/organizations/org-a", `{"op":"reorder","sessions":["org-b-01"]}`, 422, "ORDER_INCOMPLETE")
	add("a good label with a bad order", "admin", "PATCH", "/api/admin/organizations/org-a", `{"label":"x","op":"reorder","sessions":[]}`, 422, "ORDER_INCOMPLETE")

	add("a session of nobody", "admin", "POST", "/api/admin/sessions", `{"orgId":"org-z"}`, 404, "NOT_FOUND")
	add("a session of a blank organization", "admin", "POST", "/api/admin/sessions", `{"orgId":""}`, 404, "NOT_FOUND")
	add("a bad sessionId", "admin", "POST", "/api/admin/sessions", `{"orgId":"org-a","sessionId":"A B"}`, 422, "SESSION_ID_INVALID")
	add("a taken sessionId", "admin", "POST", "/api/admin/sessions", `{"orgId":"org-a","sessionId":"org-b-01"}`, 409, "CONFLICT")
	add("nothing to change", "admin", "PATCH", "/api/admin/sessions/org-a-01", `{}`, 422, "VALIDATION")
	add("deleting by the wrong way", "admin", "PATCH", "/api/admin/sessions/org-a-01", `{"desired":"deleted"}`, 422, "VALIDATION")
	add("null for a field", "admin", "PATCH", "/api/admin/sessions/org-a-01", `{"paused":null}`, 422, "VALIDATION")
	add("text for a flag", "admin", "PATCH", "/api/admin/sessions/org-a-01", `{"paused":"true"}`, 422, "VALIDATION")

	add("an unknown method", "admin", "POST", "/api/admin/sessions/org-a-01/pair", `{"method":"sms"}`, 422, "VALIDATION")
	add("a code without a phone", "admin", "POST", "/api/admin/sessions/org-a-01/pair", `{"method":"code"}`, 422, "PHONE_INVALID")
	add("a QR with a phone", "admin", "POST", "/api/admin/sessions/org-a-01/pair", `{"phone":"+5511900000001"}`, 422, "PHONE_INVALID")
	for _, phone := range []string{"abc", "0119", "123", "5511900000001@s.whatsapp.net", "100000000000001@lid", strings.Repeat("1", 16)} {
		add("phone "+phone, "admin", "POST", "/api/admin/sessions/org-a-01/pair", `{"method":"code","phone":"`+phone+`"}`, 422, "PHONE_INVALID")
	}
	add("connect without a login", "admin", "POST", "/api/admin/sessions/org-a-01/connect", "", 409, "NOT_PAIRED")
	add("logout without a login", "admin", "POST", "/api/admin/sessions/org-a-01/logout", "", 409, "NOT_PAIRED")
	add("a QR while nothing pairs", "admin", "GET", "/api/admin/sessions/org-a-01/qr", "", 409, "NO_PAIRING")
	add("a QR in an unknown format", "admin", "GET", "/api/admin/sessions/org-a-01/qr?format=gif", "", 422, "VALIDATION")

	add("a key of nobody", "admin", "POST", "/api/admin/keys", `{}`, 422, "VALIDATION")
	add("a key of both", "admin", "POST", "/api/admin/keys", `{"admin":true,"orgId":"org-a"}`, 422, "VALIDATION")
	add("a key of an unknown organization", "admin", "POST", "/api/admin/keys", `{"orgId":"org-z"}`, 404, "NOT_FOUND")

	for _, url := range []string{"", "not a url", "/relative", "ftp://example.com/", "file:///etc/passwd", "gopher://example.com", "http://", "http://user:pass@example.com/", "http://example.com/#x", "javascript:alert(1)"} {
		add("url "+url, "org-a", "POST", "/api/v1/endpoints", `{"url":"`+url+`"}`, 422, "URL_INVALID")
	}
	add("an unknown event", "org-a", "POST", "/api/v1/endpoints", `{"url":"http://127.0.0.1:9/","events":["nonsense"]}`, 422, "EVENT_UNKNOWN")
	add("an operator's event", "org-a", "POST", "/api/v1/endpoints", `{"url":"http://127.0.0.1:9/","events":["session.status"]}`, 422, "EVENT_UNKNOWN")
	add("an organization in the body", "org-a", "POST", "/api/v1/endpoints", `{"url":"http://127.0.0.1:9/","orgId":"org-b"}`, 422, "VALIDATION")
	add("no deliveries at once", "org-a", "POST", "/api/v1/endpoints", `{"url":"http://127.0.0.1:9/","maxConcurrency":0}`, 422, "VALIDATION")
	add("too many at once", "org-a", "POST", "/api/v1/endpoints", `{"url":"http://127.0.0.1:9/","maxConcurrency":65}`, 422, "VALIDATION")
	add("half a delivery at once", "org-a", "POST", "/api/v1/endpoints", `{"url":"http://127.0.0.1:9/","maxConcurrency":1.5}`, 422, "VALIDATION")
	add("an endpoint for an unknown organization", "admin", "POST", "/api/admin/endpoints", `{"url":"http://127.0.0.1:9/","orgId":"org-z"}`, 404, "NOT_FOUND")
	add("an unknown status", "org-a", "GET", "/api/v1/deliveries?status=lost", "", 422, "VALIDATION")
	add("a cursor of another list", "org-a", "GET", "/api/v1/deliveries?cursor=abc", "", 422, "CURSOR_INVALID")
	add("a negative cursor", "org-a", "GET", "/api/v1/deliveries?cursor=-1", "", 422, "CURSOR_INVALID")
	f.refuse(cases)
}

func TestQueriesThatCannotBeReadAreRefused(t *testing.T) {
	f := sqliteFixture(t)
	var cases []refusal
	for _, url := range []string{"/api/admin/sessions", "/api/admin/organizations", "/api/admin/keys", "/api/admin/deliveries"} {
		for _, c := range []struct {
			query  string
			status int
			code   string
		}{
			{"limit=0", 422, "VALIDATION"},
			{"limit=201", 422, "VALIDATION"},
			{"limit=-1", 422, "VALIDATION"},
			{"limit=abc", 422, "VALIDATION"},
			{"limit=99999999999999999999", 422, "VALIDATION"},
			{"nonsense=1", 422, "VALIDATION"},
			{"cursor=" + strings.Repeat("a", 65), 422, "VALIDATION"},
			{"cursor=%00", 422, "TEXT_INVALID"},
			{"cursor=%ff", 422, "TEXT_INVALID"},
			{"%ff=1", 422, "TEXT_INVALID"},
			{"cursor=%zz", 400, "BAD_QUERY"},
			{"a;b", 400, "BAD_QUERY"},
		} {
			cases = append(cases, refusal{c.query, "admin", "GET", url + "?" + c.query, nil, c.status, c.code, nil})
		}
	}
	f.refuse(cases)
}

// idDoors are all paths with an id in them; %s is the id.
var idDoors = []struct{ as, method, path, body string }{
	{"admin", "GET", "/api/admin/organizations/%s", ""},
	{"admin", "PATCH", "/api/admin/organizations/%s", `{"label":"x"}`},
	{"admin", "GET", "/api/admin/sessions/%s", ""},
	{"admin", "PATCH", "/api/admin/sessions/%s", `{"paused":true}`},
	{"admin", "DELETE", "/api/admin/sessions/%s", ""},
	{"admin", "POST", "/api/admin/sessions/%s/pair", `{"method":"qr"}`},
	{"admin", "POST", "/api/admin/sessions/%s/connect", ""},
	{"admin", "POST", "/api/admin/sessions/%s/logout", ""},
	{"admin", "POST", "/api/admin/sessions/%s/stop", ""},
	{"admin", "POST", "/api/admin/sessions/%s/start", ""},
	{"admin", "GET", "/api/admin/sessions/%s/qr", ""},
	{"admin", "GET", "/api/admin/commands/%s", ""},
	{"admin", "DELETE", "/api/admin/keys/%s", ""},
	{"admin", "GET", "/api/admin/endpoints/%s", ""},
	{"admin", "PATCH", "/api/admin/endpoints/%s", `{"disabled":true}`},
	{"admin", "DELETE", "/api/admin/endpoints/%s", ""},
	{"admin", "POST", "/api/admin/endpoints/%s/rotate-secret", ""},
	{"admin", "POST", "/api/admin/deliveries/%s/replay", ""},
	{"admin", "GET", "/api/admin/events/%s", ""},
	{"org-a", "GET", "/api/v1/events/%s", ""},
	{"org-a", "GET", "/api/v1/endpoints/%s", ""},
	{"org-a", "PATCH", "/api/v1/endpoints/%s", `{"disabled":true}`},
	{"org-a", "DELETE", "/api/v1/endpoints/%s", ""},
	{"org-a", "POST", "/api/v1/endpoints/%s/rotate-secret", ""},
	{"org-a", "POST", "/api/v1/deliveries/%s/replay", ""},
}

func TestBlankWildcardAndUnknownIdsAreNotFoundAndNothingIsWritten(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		f := newFixture(t, s)
		f.must("org-a", "POST", "/api/v1/endpoints", `{"url":"http://127.0.0.1:9/"}`)
		f.must("admin", "POST", "/api/admin/endpoints", `{"url":"http://127.0.0.1:9/"}`)
		var cases []refusal
		for _, d := range idDoors {
			for _, id := range []string{"%20", "%25", "*", "_", "null", "undefined", "..", ".", "%2e%2e", "%00", "%ff", "org-z-99", "ORG-A-01", "ep_%25", strings.Repeat("a", 300)} {
				cases = append(cases, refusal{"id " + id, d.as, d.method, strings.Replace(d.path, "%s", id, 1), d.body, 404, "NOT_FOUND", nil})
			}
			// A missing id is another path, which may know other methods; what matters is that it hits nothing.
			blank := f.rows()
			a := f.do(d.as, d.method, strings.Replace(d.path, "%s", "", 1), d.body)
			if a.status != http.StatusNotFound && a.status != http.StatusMethodNotAllowed {
				t.Errorf("%s %s without an id = %d %s, want 404 or 405", d.method, d.path, a.status, a.body)
			}
			f.unchanged(d.method+" "+d.path+" without an id", blank)
		}
		f.refuse(cases)
	})
}

func TestAnotherOrganizationsIdsAreNotFound(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		f := newFixture(t, s)
		theirs := f.must("org-b", "POST", "/api/v1/endpoints", `{"url":"http://127.0.0.1:9/"}`)["endpointId"].(string)
		operators := f.must("admin", "POST", "/api/admin/endpoints", `{"url":"http://127.0.0.1:9/","orgId":"org-a"}`)["endpointId"].(string)
		var cases []refusal
		for _, id := range []string{theirs, operators} {
			for _, d := range idDoors {
				if d.as == "org-a" && strings.Contains(d.path, "endpoints") {
					cases = append(cases, refusal{"foreign id", "org-a", d.method, strings.Replace(d.path, "%s", id, 1), d.body, 404, "NOT_FOUND", nil})
				}
			}
		}
		f.refuse(cases)
		if list := f.must("org-a", "GET", "/api/v1/endpoints", nil)["items"].([]any); len(list) != 0 {
			t.Errorf("list of org-a = %v, want none", list)
		}
		if list := f.must("org-a", "GET", "/api/v1/deliveries?endpointId="+theirs, nil)["items"].([]any); len(list) != 0 {
			t.Errorf("deliveries of org-b seen by org-a = %v, want none", list)
		}
		if list := f.must("admin", "GET", "/api/admin/endpoints", nil)["items"].([]any); len(list) != 2 {
			t.Errorf("operator's list = %v, want both", list)
		}
	})
}

func TestUnknownPathsAndMethodsAreProblems(t *testing.T) {
	f := sqliteFixture(t)
	f.refuse([]refusal{
		{"an unknown path", "", "GET", "/nonsense", nil, 404, "NOT_FOUND", nil},
		{"an unknown API path", "org-a", "GET", "/api/v1/nonsense", nil, 404, "NOT_FOUND", nil},
		{"an unknown API version", "org-a", "GET", "/api/v2/messages", nil, 404, "NOT_FOUND", nil},
		{"a doubled slash", "org-a", "GET", "/api/v1//endpoints", nil, 404, "NOT_FOUND", nil},
		{"a slash at the end", "org-a", "GET", "/api/v1/endpoints/", nil, 404, "NOT_FOUND", nil},
		{"climbing up", "org-a", "GET", "/api/v1/x/../../admin/keys", nil, 404, "NOT_FOUND", nil},
		{"an encoded climb", "org-a", "GET", "/api/v1/x%2f..%2f..%2fadmin/keys", nil, 404, "NOT_FOUND", nil},
		{"a method that the path does not know", "admin", "PUT", "/api/admin/sessions/org-a-01", nil, 405, "METHOD_NOT_ALLOWED", nil},
		{"an invented method", "admin", "FROB", "/api/admin/sessions", nil, 405, "METHOD_NOT_ALLOWED", nil},
		{"writing the document", "", "POST", "/openapi.json", nil, 405, "METHOD_NOT_ALLOWED", nil},
		{"huma's own pages", "", "GET", "/openapi.yaml", nil, 404, "NOT_FOUND", nil},
		{"huma's schemas", "", "GET", "/schemas/Problem.json", nil, 404, "NOT_FOUND", nil},
	})
	if allow := f.do("admin", "PUT", "/api/admin/sessions/org-a-01", nil).header.Get("Allow"); !strings.Contains(allow, "PATCH") || !strings.Contains(allow, "DELETE") {
		t.Errorf("Allow = %q, want the methods of that path", allow)
	}
}
