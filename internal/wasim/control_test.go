package wasim

import (
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.mau.fi/whatsmeow/types/events"
)

// call sends a request to the control API and returns status and body.
func call(t *testing.T, h http.Handler, method, path, body string, headers ...string) (int, map[string]any) {
	t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	var out map[string]any
	if err := json.Unmarshal(rec.Body.Bytes(), &out); err != nil {
		t.Fatalf("%s %s answered %d %q, which is not JSON: %v", method, path, rec.Code, rec.Body, err)
	}
	return rec.Code, out
}

func TestBadInputToTheControlAPIIsRefusedClearlyAndChangesNothing(t *testing.T) {
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.Phone("5511900000001")
	before := s.Stats()
	for name, tc := range map[string]struct {
		method, path, body string
		status             int
		code               string
	}{
		"unknown path":                     {"GET", "/sim/nothing", "", 404, "not_found"},
		"wrong method":                     {"DELETE", "/sim/phones", "", 405, "method_not_allowed"},
		"get where post is due":            {"GET", "/sim/log/lease", "", 405, "method_not_allowed"},
		"no body":                          {"POST", "/sim/phones", "", 415, "unsupported_media_type"},
		"bad json":                         {"POST", "/sim/phones", "{", 400, "bad_input"},
		"two values":                       {"POST", "/sim/phones", `{"pn":"5511900000002"}{}`, 400, "bad_input"},
		"unknown field":                    {"POST", "/sim/phones", `{"pn":"5511900000002","x":1}`, 400, "bad_input"},
		"wrong type":                       {"POST", "/sim/phones", `{"pn":5511900000002}`, 400, "bad_input"},
		"an array":                         {"POST", "/sim/phones", `[]`, 400, "bad_input"},
		"number with plus":                 {"POST", "/sim/phones", `{"pn":"+5511900000002"}`, 400, "bad_input"},
		"number with letters":              {"POST", "/sim/phones", `{"pn":"55119x"}`, 400, "bad_input"},
		"number too long":                  {"POST", "/sim/phones", `{"pn":"5511900000002000"}`, 400, "bad_input"},
		"bad number in path":               {"POST", "/sim/phones/abc/scan", `{"qr":"x"}`, 400, "bad_input"},
		"unknown phone":                    {"GET", "/sim/phones/5511900000003", "", 404, "not_found"},
		"messages of an unknown phone":     {"GET", "/sim/phones/5511900000003/messages", "", 404, "not_found"},
		"messages after nonsense":          {"GET", "/sim/phones/5511900000001/messages?after=x", "", 400, "bad_input"},
		"unknown action":                   {"POST", "/sim/phones/5511900000001/dance", `{}`, 404, "not_found"},
		"scan without a code":              {"POST", "/sim/phones/5511900000001/scan", `{}`, 400, "bad_input"},
		"scan of nonsense":                 {"POST", "/sim/phones/5511900000001/scan", `{"qr":"hello"}`, 400, "bad_qr"},
		"scan of an expired code":          {"POST", "/sim/phones/5511900000001/scan", `{"qr":"2@x,` + strings.Repeat("A", 43) + `=,` + strings.Repeat("A", 43) + `=,` + strings.Repeat("A", 43) + `="}`, 404, "qr_expired"},
		"code without one":                 {"POST", "/sim/phones/5511900000001/code", `{}`, 400, "bad_input"},
		"code that nobody waits for":       {"POST", "/sim/phones/5511900000001/code", `{"code":"ABCD-EFGH"}`, 404, "no_code_pending"},
		"send to nonsense":                 {"POST", "/sim/phones/5511900000001/send", `{"to":"you@there","text":"x"}`, 400, "bad_address"},
		"send nothing":                     {"POST", "/sim/phones/5511900000001/send", `{"to":"5511900000001","text":""}`, 400, "bad_input"},
		"send to nobody":                   {"POST", "/sim/phones/5511900000001/send", `{"to":"5511900000003","text":"x"}`, 404, "no_such_user"},
		"read what never came":             {"POST", "/sim/phones/5511900000001/read", `{"id":"x"}`, 404, "no_such_message"},
		"retry of nothing":                 {"POST", "/sim/phones/5511900000001/retry", `{}`, 400, "bad_input"},
		"block nonsense":                   {"POST", "/sim/phones/5511900000001/block", `{"pn":"x"}`, 400, "bad_input"},
		"unlink the phone itself":          {"POST", "/sim/phones/5511900000001/unlink", `{"device":0}`, 400, "bad_input"},
		"unlink what is not there":         {"POST", "/sim/phones/5511900000001/unlink", `{"device":9}`, 404, "no_such_device"},
		"fault with a bad number":          {"PUT", "/sim/faults", `{"session":"x","fault":{}}`, 400, "bad_input"},
		"fault with an unknown field":      {"PUT", "/sim/faults", `{"fault":{"ackErr":463}}`, 400, "bad_input"},
		"fault with a bad code":            {"PUT", "/sim/faults", `{"fault":{"ackError":12}}`, 400, "bad_input"},
		"fault that counts nothing":        {"PUT", "/sim/faults", `{"fault":{"ackErrorNext":2}}`, 400, "bad_input"},
		"fault with a negative count":      {"PUT", "/sim/faults", `{"fault":{"dropNextAcks":-1}}`, 400, "bad_input"},
		"fault with a negative latency":    {"PUT", "/sim/faults", `{"fault":{"latencyMs":-1}}`, 400, "bad_input"},
		"fault with a bad key fetch":       {"PUT", "/sim/faults", `{"fault":{"keyFetch":-2}}`, 400, "bad_input"},
		"fault with a bad connect failure": {"PUT", "/sim/faults", `{"fault":{"connectFailure":200}}`, 400, "bad_input"},
		"enforcement of an unknown phone":  {"PUT", "/sim/phones/5511900000003/enforcement", `{}`, 404, "not_found"},
		"enforcement with a bad code":      {"PUT", "/sim/phones/5511900000001/enforcement", `{"throttle":{"accepts":1,"code":1}}`, 400, "bad_input"},
		"enforcement with a bad quota":     {"PUT", "/sim/phones/5511900000001/enforcement", `{"newChats":{"quota":-1}}`, 400, "bad_input"},
		"enforcement with a bad end":       {"PUT", "/sim/phones/5511900000001/enforcement", `{"timeLock":{"endsMs":-1}}`, 400, "bad_input"},
		"session of an unknown phone":      {"POST", "/sim/sessions/5511900000003/1/drop", "", 404, "not_found"},
		"session of no device":             {"POST", "/sim/sessions/5511900000001/1/drop", "", 404, "no_such_device"},
		"session with a bad device":        {"POST", "/sim/sessions/5511900000001/x/drop", "", 400, "bad_input"},
		"session with an unknown action":   {"POST", "/sim/sessions/5511900000001/1/dance", "", 404, "not_found"},
		"log with an unknown parameter":    {"GET", "/sim/log?sesion=1", "", 400, "bad_input"},
		"log after nonsense":               {"GET", "/sim/log?after=x", "", 400, "bad_input"},
		"log with too much":                {"GET", "/sim/log?limit=10001", "", 400, "bad_input"},
		"lease of another kind":            {"POST", "/sim/log/lease", `{"kind":"message"}`, 400, "bad_input"},
		"page file outside":                {"GET", "/sim/page/secret.txt", "", 404, "not_found"},
	} {
		status, out := call(t, s.Handler(), tc.method, tc.path, tc.body)
		if status != tc.status || out["code"] != tc.code || out["error"] == "" {
			t.Errorf("%s: %s %s = %d %v, want %d %s", name, tc.method, tc.path, status, out, tc.status, tc.code)
		}
	}
	if after := s.Stats(); after != before || len(s.Faults()) != 0 || len(s.Log(Query{})) != 0 {
		t.Errorf("bad input changed something: %+v, faults %v", after, s.Faults())
	}
}

func TestTheControlAPIRefusesPagesOfOtherOrigins(t *testing.T) {
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r := httptest.NewRequest(http.MethodPost, "/sim/phones", strings.NewReader(`{"pn":"5511900000001"}`))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, r)
	if rec.Code != http.StatusForbidden || len(s.Phones()) != 0 {
		t.Errorf("POST from another origin = %d with %d phones, want 403 and none", rec.Code, len(s.Phones()))
	}
}

func TestAConversationCanBeSteeredOverHTTP(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000601", "5511900000602"
	h := w.srv.Handler()
	must := func(want int, method, path, body string) map[string]any {
		t.Helper()
		status, out := call(t, h, method, path, body)
		if status != want {
			t.Fatalf("%s %s = %d %v, want %d", method, path, status, out, want)
		}
		return out
	}
	root := w.srv.RootKey()
	if out := must(200, "GET", "/sim/root", ""); out["pub"] != hex.EncodeToString(root[:]) {
		t.Errorf("root = %v", out)
	}
	must(201, "POST", "/sim/phones", `{"pn":"`+contact+`","pushName":"Contact"}`)
	c := w.newClient(t, pn)
	if err := c.Connect(); err != nil {
		t.Fatal(err)
	}
	qr, err := json.Marshal(await[*events.QR](c, nil).Codes[0])
	if err != nil {
		t.Fatal(err)
	}
	must(200, "POST", "/sim/phones/"+pn+"/scan", `{"qr":`+string(qr)+`}`)
	await[*events.Connected](c, nil)
	must(200, "POST", "/sim/phones/"+contact+"/autoreply", `{"text":"thanks"}`)
	c.mustText("EE01", pnJID(contact), "over http")
	c.awaitText("thanks")
	must(200, "POST", "/sim/phones/"+contact+"/read", `{"id":"EE01"}`)
	list := must(200, "GET", "/sim/phones/"+contact+"/messages", "")["messages"].([]any)
	if got := list[0].(map[string]any); len(list) != 1 || got["text"] != "over http" || got["read"] != true || got["chat"] != pn {
		t.Errorf("messages = %v", list)
	}
	out := must(200, "POST", "/sim/phones/"+contact+"/send", `{"to":"`+pn+`","text":"and more"}`)
	if m := c.awaitText("and more"); m.Info.ID != out["id"] {
		t.Errorf("sent id %v, received %s", out["id"], m.Info.ID)
	}
	must(200, "POST", "/sim/sessions/"+pn+"/1/repeat", "")
	must(200, "PUT", "/sim/faults", `{"session":"`+pn+`","fault":{"ackError":463,"ackErrorNext":1}}`)
	if err = c.text("EE02", pnJID(contact), "refused"); err == nil {
		t.Error("SendMessage under a fault set over HTTP = nil, want an error")
	}
	if out = must(200, "GET", "/sim/log?kind=message&dir=in&id=EE02&recipient="+contact, ""); len(out["entries"].([]any)) != 1 {
		t.Errorf("log = %v, want one entry", out)
	}
	must(201, "POST", "/sim/log/lease", `{"sessionId":"s","worker":"w","epoch":3}`)
	if got := w.srv.Log(Query{Kind: KindLease, SessionID: "s"}); len(got) != 1 || got[0].Epoch != 3 {
		t.Errorf("lease in the log = %+v", got)
	}
	if out = must(200, "GET", "/sim/stats", ""); out["online"].(float64) < 1 {
		t.Errorf("stats = %v, want somebody online", out)
	}
	must(200, "POST", "/sim/sessions/"+pn+"/1/replace", "")
	await[*events.StreamReplaced](c, nil)
}

func TestThePageIsServedWholeAndLoadsNothingFromElsewhere(t *testing.T) {
	w := newWorld(t)
	for path, want := range map[string]string{"/sim/": "<title>", "/sim/page/page.js": "use strict", "/sim/page/page.css": ":root"} {
		rec := httptest.NewRecorder()
		w.srv.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
		body, err := io.ReadAll(rec.Body)
		if err != nil {
			t.Fatal(err)
		}
		if rec.Code != 200 || !strings.Contains(string(body), want) {
			t.Errorf("GET %s = %d, want 200 with %q in it", path, rec.Code, want)
		}
		if strings.Contains(string(body), "http://") || strings.Contains(string(body), "https://") {
			t.Errorf("%s names another host", path)
		}
	}
	rec := httptest.NewRecorder()
	w.srv.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/mms/image/x", nil))
	if rec.Code != http.StatusNotFound {
		t.Errorf("a media path answers %d, want 404", rec.Code)
	}
}
