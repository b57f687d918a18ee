package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
)

// sender is a fixture whose organizations can send.
type sender struct {
	*fixture
	terms map[fleet.OrgID]fleet.Term
}

func newSender(t *testing.T, s *store.Store) *sender {
	t.Helper()
	f := &sender{terms: map[fleet.OrgID]fleet.Term{}}
	f.fixture = newFixture(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = f.api.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	terms, _, err := s.ClaimLeases(t.Context(), store.ClaimQuery{Owner: "worker-1/boot", Limit: 10, TTL: time.Hour})
	if err != nil || len(terms) != 2 {
		t.Fatalf("ClaimLeases = %v, %v", terms, err)
	}
	for i, term := range terms {
		session, err := s.SessionByID(t.Context(), term.SessionID)
		if err != nil {
			t.Fatal(err)
		}
		f.terms[session.OrgID] = term
		phone := fmt.Sprintf("55119000010%02d", i)
		if err := s.RecordLogin(t.Context(), term, store.Login{DeviceJID: phone + ":1@s.whatsapp.net", Phone: phone}); err != nil {
			t.Fatal(err)
		}
		f.connect(session.OrgID, fleet.ObservedConnected)
	}
	return f
}

func (f *sender) connect(org fleet.OrgID, state fleet.Observed) {
	f.t.Helper()
	if _, err := f.store.RecordObserved(f.t.Context(), f.terms[org], store.Observation{State: state, Generation: 1}); err != nil {
		f.t.Fatal(err)
	}
}

// frame does what the lane of org-a does: claims the message and records the outcome of its frame.
func (f *sender) frame(id fleet.MessageID, r store.Result) {
	f.t.Helper()
	term := f.terms["org-a"]
	ok, err := f.store.ClaimMessage(f.t.Context(), term, store.Claim{ID: id, Payload: []byte("x"), Kind: fleet.AttemptSend, LockFor: time.Minute})
	if !ok || err != nil {
		f.t.Fatalf("ClaimMessage(%s) = %v, %v", id, ok, err)
	}
	r.ID = id
	if err := f.store.RecordOutcome(f.t.Context(), term, r); err != nil {
		f.t.Fatal(err)
	}
	_ = f.bus.Publish(f.t.Context(), bus.TopicMessage, string(id))
}

func text(s string) map[string]any { return map[string]any{"to": "+55 11 9 0000 0001", "text": s} }

func idOf(v map[string]any) fleet.MessageID {
	id, _ := v["messageId"].(string)
	return fleet.MessageID(id)
}

func TestSendAnswersWithTheStoredMessage(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		f := newSender(t, s)
		nudges := f.heard(bus.TopicSend)
		a := f.do("org-a", "POST", "/api/v1/messages", map[string]any{
			"to": "+55 11 9 0000 0001", "type": "text", "text": "héllo 😀", "ttlSeconds": 60, "clientRef": "order-7",
		})
		v := a.json()
		if a.status != http.StatusAccepted || a.header.Get("Idempotency-Replayed") != "" || a.header.Get("Location") != "/api/v1/messages/"+string(idOf(v)) {
			t.Errorf("answer = %d %v %s", a.status, a.header, a.body)
		}
		for field, want := range map[string]any{
			"status": "queued", "to": "+55 11 9 0000 0001", "type": "text", "text": "héllo 😀", "clientRef": "order-7", "sessionId": "org-a-01",
		} {
			if v[field] != want {
				t.Errorf("%s = %v, want %v", field, v[field], want)
			}
		}
		for _, absent := range []string{"outcome", "error", "sentAt", "deliveredAt", "readAt", "playedAt"} {
			if got, ok := v[absent]; ok {
				t.Errorf("%s = %v in a queued message, want it absent", absent, got)
			}
		}
		created, err1 := time.Parse(time.RFC3339, v["createdAt"].(string))
		expires, err2 := time.Parse(time.RFC3339, v["expiresAt"].(string))
		if err1 != nil || err2 != nil || expires.Sub(created) != time.Minute || !strings.HasSuffix(v["createdAt"].(string), "Z") {
			t.Errorf("createdAt %v, expiresAt %v, want RFC 3339 in UTC a minute apart", v["createdAt"], v["expiresAt"])
		}
		got := f.do("org-a", "GET", "/api/v1/messages/"+string(idOf(v)), nil)
		if got.status != http.StatusOK || got.body != a.body {
			t.Errorf("GET = %d %s, want what POST answered: %s", got.status, got.body, a.body)
		}
		testkit.Eventually(t, 5*time.Second, func() error {
			if got := nudges(); !slices.Equal(got, []string{bus.TopicSend + " " + string(f.terms["org-a"].SessionID)}) {
				return fmt.Errorf("nudges = %v", got)
			}
			return nil
		})
		// The sender's identity stays inside: no number, no JID, no WhatsApp id, no session's UUID.
		for _, secret := range []string{"5511900001000", "5511900001001", "s.whatsapp.net", "3EB0", string(f.terms["org-a"].SessionID), "worker-1"} {
			if strings.Contains(a.body, secret) {
				t.Errorf("answer shows %q: %s", secret, a.body)
			}
		}
	})
}

func TestMessageShowsItsLife(t *testing.T) {
	f := newSender(t, storetest.SQLite(t))
	sent := idOf(f.must("org-a", "POST", "/api/v1/messages", text("sent")))
	f.frame(sent, store.Result{Outcome: fleet.OutcomeSent, At: time.UnixMilli(1_700_000_000_123)})
	m, err := f.store.GetMessage(t.Context(), "org-a", sent)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.store.ApplyReceipt(t.Context(), f.terms["org-a"], fleet.Receipt{WAIDs: []string{m.WAID}, Status: fleet.StatusRead, At: time.UnixMilli(1_700_000_001_000)}); err != nil {
		t.Fatal(err)
	}
	v := f.must("org-a", "GET", "/api/v1/messages/"+string(sent), nil)
	for field, want := range map[string]any{
		"status": "read", "outcome": "sent", "sentAt": "2023-11-14T22:13:20.123Z", "deliveredAt": "2023-11-14T22:13:21Z", "readAt": "2023-11-14T22:13:21Z",
	} {
		if v[field] != want {
			t.Errorf("%s = %v, want %v", field, v[field], want)
		}
	}
	refused := idOf(f.must("org-a", "POST", "/api/v1/messages", text("refused")))
	f.frame(refused, store.Result{Outcome: fleet.OutcomeRefused, Code: 403, ErrorCode: "RECIPIENT_REFUSED", Detail: "no"})
	v = f.must("org-a", "GET", "/api/v1/messages/"+string(refused), nil)
	if diff := cmp.Diff(map[string]any{"code": "RECIPIENT_REFUSED", "detail": "no"}, v["error"]); v["status"] != "failed" || v["outcome"] != "refused" || diff != "" {
		t.Errorf("refused message = %v", v)
	}
	unknown := idOf(f.must("org-a", "POST", "/api/v1/messages", text("unknown")))
	f.frame(unknown, store.Result{Outcome: fleet.OutcomeUnknown})
	if v = f.must("org-a", "GET", "/api/v1/messages/"+string(unknown), nil); v["status"] != "sending" || v["outcome"] != "unknown" {
		t.Errorf("unknown message = %v, want sending with outcome unknown", v)
	}
}

func TestBadSendsAreRefusedAndNothingIsWritten(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		f := newSender(t, s)
		foreign := idOf(f.must("org-b", "POST", "/api/v1/messages", text("theirs")))
		const door = "/api/v1/messages"
		good := func(extra string) string { return `{"to":"+5511900000001","text":"hello"` + extra + `}` }
		with := func(field, value string) string {
			fields := map[string]string{"to": `"+5511900000001"`, "text": `"hello"`}
			fields[field] = value
			return `{"to":` + fields["to"] + `,"text":` + fields["text"] + `}`
		}
		cases := []refusal{
			{"no key", "", "POST", door, good(""), 401, "UNAUTHORIZED", nil},
			{"an admin key", "admin", "POST", door, good(""), 403, "ORGANIZATION_KEY_REQUIRED", nil},
			{"no body", "org-a", "POST", door, "", 400, "BAD_JSON", nil},
			{"broken JSON", "org-a", "POST", door, `{"to":`, 400, "BAD_JSON", nil},
			{"an array", "org-a", "POST", door, `[]`, 422, "VALIDATION", nil},
			{"an unknown field", "org-a", "POST", door, good(`,"body":"x"`), 422, "VALIDATION", nil},
			{"a field in other letters", "org-a", "POST", door, good(`,"TEXT":"x"`), 422, "VALIDATION", nil},
			{"an unknown parameter", "org-a", "POST", door + "?wait=10", good(""), 422, "VALIDATION", nil},
			{"no recipient", "org-a", "POST", door, `{"text":"hello"}`, 422, "VALIDATION", nil},
			{"no text", "org-a", "POST", door, `{"to":"+5511900000001"}`, 422, "VALIDATION", nil},
			{"a number for text", "org-a", "POST", door, with("text", "1"), 422, "VALIDATION", nil},
			{"null for text", "org-a", "POST", door, with("text", "null"), 422, "VALIDATION", nil},
			{"text for a number", "org-a", "POST", door, good(`,"ttlSeconds":"60"`), 422, "VALIDATION", nil},
			{"a fraction for a number", "org-a", "POST", door, good(`,"ttlSeconds":1.5`), 422, "VALIDATION", nil},
			{"another type", "org-a", "POST", door, good(`,"type":"video"`), 422, "VALIDATION", nil},
			{"empty text", "org-a", "POST", door, with("text", `""`), 422, "TEXT_EMPTY", nil},
			{"65,537 characters", "org-a", "POST", door, with("text", `"`+strings.Repeat("é", 65_537)+`"`), 422, "TEXT_TOO_LONG", nil},
			{"invalid UTF-8", "org-a", "POST", door, with("text", "\"a\xff\""), 422, "TEXT_INVALID", nil},
			{"NUL", "org-a", "POST", door, with("text", `"a\u0000"`), 422, "TEXT_INVALID", nil},
			{"half a surrogate pair", "org-a", "POST", door, with("text", `"\ud83d"`), 422, "TEXT_INVALID", nil},
			{"no number at all", "org-a", "POST", door, with("to", `"somebody"`), 422, "INVALID_RECIPIENT", nil},
			{"a blank recipient", "org-a", "POST", door, with("to", `" "`), 422, "INVALID_RECIPIENT", nil},
			{"a group", "org-a", "POST", door, with("to", `"120363000000000001@g.us"`), 422, "INVALID_RECIPIENT", nil},
			{"status", "org-a", "POST", door, with("to", `"status@broadcast"`), 422, "INVALID_RECIPIENT", nil},
			{"no time to live", "org-a", "POST", door, good(`,"ttlSeconds":0`), 422, "TTL_INVALID", nil},
			{"more than a day to live", "org-a", "POST", door, good(`,"ttlSeconds":86401`), 422, "TTL_INVALID", nil},
			{"a long reference", "org-a", "POST", door, good(`,"clientRef":"` + strings.Repeat("r", 129) + `"`), 422, "CLIENT_REF_INVALID", nil},
			{"an empty key", "org-a", "POST", door, good(""), 422, "INVALID_IDEMPOTENCY_KEY", header("Idempotency-Key", "")},
			{"a key with a space", "org-a", "POST", door, good(""), 422, "INVALID_IDEMPOTENCY_KEY", header("Idempotency-Key", "a b")},
			{"a key outside ASCII", "org-a", "POST", door, good(""), 422, "INVALID_IDEMPOTENCY_KEY", header("Idempotency-Key", "schlüssel")},
			{"a key of 256 characters", "org-a", "POST", door, good(""), 422, "INVALID_IDEMPOTENCY_KEY", header("Idempotency-Key", strings.Repeat("k", 256))},
			{"two keys", "org-a", "POST", door, good(""), 422, "INVALID_IDEMPOTENCY_KEY", func(r *http.Request) { r.Header["Idempotency-Key"] = []string{"a", "b"} }},

			{"another organization's message", "org-a", "GET", door + "/" + string(foreign), nil, 404, "NOT_FOUND", nil},
			{"cancelling another organization's message", "org-a", "POST", door + "/" + string(foreign) + "/cancel", nil, 404, "NOT_FOUND", nil},
			{"deleting another organization's message", "org-a", "DELETE", door + "/" + string(foreign), nil, 404, "NOT_FOUND", nil},
			{"a message that is none", "org-a", "GET", door + "/msg_nothing", nil, 404, "NOT_FOUND", nil},
			{"a wildcard", "org-a", "DELETE", door + "/*", nil, 404, "NOT_FOUND", nil},
			{"a blank", "org-a", "DELETE", door + "/%20", nil, 404, "NOT_FOUND", nil},
			{"an unknown state", "org-a", "GET", door + "?status=lost", nil, 422, "VALIDATION", nil},
			{"a bad recipient to list", "org-a", "GET", door + "?to=somebody", nil, 422, "INVALID_RECIPIENT", nil},
			{"a bad cursor", "org-a", "GET", door + "?cursor=x", nil, 422, "CURSOR_INVALID", nil},
			{"too many at once", "org-a", "GET", door + "?limit=201", nil, 422, "VALIDATION", nil},
			{"an unknown way to filter", "org-a", "GET", door + "?text=x", nil, 422, "VALIDATION", nil},
		}
		f.refuse(cases)
		if a := f.do("org-a", "POST", door, good("")); a.status != http.StatusAccepted {
			t.Errorf("the good body = %d %s, want 202", a.status, a.body)
		}
		if a := f.do("org-a", "POST", door, with("text", `"`+strings.Repeat(`\ud83d\ude00`, 65_536)+`"`)); a.status != http.StatusAccepted {
			t.Errorf("65,536 characters = %d %.200s, want 202", a.status, a.body)
		}
	})
}

func TestNoSessionThatCanSendIsSaid(t *testing.T) {
	f := newSender(t, storetest.SQLite(t))
	f.connect("org-a", fleet.ObservedReconnecting)
	before := f.rows()
	a := f.do("org-a", "POST", "/api/v1/messages", text("hello"), header("Idempotency-Key", "order-7"))
	a.wantProblem("none eligible", http.StatusServiceUnavailable, "NONE_ELIGIBLE")
	if a.header.Get("Retry-After") != "5" || a.json()["retryAfterSeconds"] != float64(5) {
		t.Errorf("Retry-After = %q, body %s, want 5 in both", a.header.Get("Retry-After"), a.body)
	}
	f.unchanged("none eligible", before)
	f.must("admin", "POST", "/api/admin/organizations", map[string]any{"orgId": "org-c"})
	key := f.must("admin", "POST", "/api/admin/keys", map[string]any{"orgId": "org-c"})
	f.keys["org-c"], _ = key["key"].(string)
	f.do("org-c", "POST", "/api/v1/messages", text("hello")).wantProblem("no sessions", http.StatusConflict, "NO_SESSIONS")
}

func TestTwentyParallelPostsWithOneKeyMakeOneMessage(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		f := newSender(t, s)
		answers := make([]*answer, 20)
		var wg sync.WaitGroup
		for i := range answers {
			wg.Go(func() {
				answers[i] = f.do("org-a", "POST", "/api/v1/messages", text("once"), header("Idempotency-Key", "order-7"))
			})
		}
		wg.Wait()
		fresh := 0
		for _, a := range answers {
			if a.header.Get("Idempotency-Replayed") != "true" {
				fresh++
			}
			if a.status != http.StatusAccepted || a.body != answers[0].body {
				t.Errorf("answer = %d %s, want %s", a.status, a.body, answers[0].body)
			}
		}
		page := f.must("org-a", "GET", "/api/v1/messages", nil)
		if items, _ := page["items"].([]any); fresh != 1 || len(items) != 1 {
			t.Errorf("%d answers not replayed and %d messages, want one of each", fresh, len(items))
		}
	})
}

func TestKeyGivesTheFirstAnswerAgain(t *testing.T) {
	f := newSender(t, storetest.SQLite(t))
	key := header("Idempotency-Key", "order-7")
	first := f.do("org-a", "POST", "/api/v1/messages", text("hello"), key)
	f.do("org-a", "DELETE", "/api/v1/messages/"+string(idOf(first.json())), nil)
	// Other white space and the defaults said: the same request.
	again := f.do("org-a", "POST", "/api/v1/messages", `{ "text": "hello", "type": "text", "ttlSeconds": 600, "to": "+55 11 9 0000 0001" }`, key)
	if again.status != http.StatusAccepted || again.body != first.body || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("again = %d %v %s, want %s replayed", again.status, again.header, again.body, first.body)
	}
	f.do("org-a", "POST", "/api/v1/messages", text("other"), key).wantProblem("another text", http.StatusConflict, "IDEMPOTENCY_MISMATCH")
	if a := f.do("org-b", "POST", "/api/v1/messages", text("other"), key); a.status != http.StatusAccepted || a.header.Get("Idempotency-Replayed") != "" {
		t.Errorf("another organization's key = %d %s, want it accepted", a.status, a.body)
	}

	bad := map[string]any{"to": "somebody", "text": "hello"}
	key = header("Idempotency-Key", "order-8")
	refused := f.do("org-a", "POST", "/api/v1/messages", bad, key)
	refused.wantProblem("first", http.StatusUnprocessableEntity, "INVALID_RECIPIENT")
	replayed := f.do("org-a", "POST", "/api/v1/messages", bad, key)
	replayed.wantProblem("again", http.StatusUnprocessableEntity, "INVALID_RECIPIENT")
	if refused.header.Get("Idempotency-Replayed") != "" || replayed.header.Get("Idempotency-Replayed") != "true" ||
		refused.json()["detail"] != replayed.json()["detail"] {
		t.Errorf("refused %v %s, then %v %s, want the same replayed", refused.header, refused.body, replayed.header, replayed.body)
	}
}

func TestPreferWaitAnswersWhenTheMessageIsSettled(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		f := newSender(t, s)
		stop, err := f.bus.Subscribe(t.Context(), func(_, session string) {
			go func() { // the lane
				item, err := s.NextInLane(t.Context(), fleet.SessionID(session))
				if err == nil && item != nil {
					f.frame(item.ID, store.Result{Outcome: fleet.OutcomeSent})
				}
			}()
		}, bus.TopicSend)
		if err != nil {
			t.Fatal(err)
		}
		a := f.do("org-a", "POST", "/api/v1/messages", text("hello"), header("Prefer", "wait=25"))
		if v := a.json(); a.status != http.StatusOK || v["status"] != "sent" || v["sessionId"] != "org-a-01" || a.header.Get("Preference-Applied") != "wait=25" {
			t.Errorf("answer = %d %v %s, want 200 and the sent message", a.status, a.header, a.body)
		}
		stop()
		a = f.do("org-a", "POST", "/api/v1/messages", text("hello"), header("Prefer", "wait=1"))
		if v := a.json(); a.status != http.StatusAccepted || v["status"] != "queued" || a.header.Get("Preference-Applied") != "wait=1" {
			t.Errorf("answer = %d %v %s, want 202 when the time is over", a.status, a.header, a.body)
		}
	})
}

// deadlineRecorder is a connection's read deadline.
type deadlineRecorder struct {
	*httptest.ResponseRecorder
	deadline time.Time
}

func (d *deadlineRecorder) SetReadDeadline(t time.Time) error {
	d.deadline = t
	return nil
}

// The server takes a client for gone when the read deadline passes, and ends the request's context.
func TestNoReadDeadlineIsLeftBehindTheBodyToEndAWait(t *testing.T) {
	f := sqliteFixture(t)
	for name, body := range map[string]string{"a body": `{"orgId":"org-c"}`, "an empty one": ""} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/admin/organizations", strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+f.keys["admin"])
		w := &deadlineRecorder{httptest.NewRecorder(), time.Now().Add(time.Minute)} // as http.Server sets it
		f.api.ServeHTTP(w, r)
		if left := time.Until(w.deadline); !w.deadline.IsZero() && (body != "" || left < 30*time.Second) {
			t.Errorf("%s: the connection's read deadline is in %s, want none", name, left)
		}
	}
}

func TestWaitWithAKeyTellsWhatBecameOfTheMessage(t *testing.T) {
	f := newSender(t, storetest.SQLite(t))
	key := header("Idempotency-Key", "order-7")
	id := idOf(f.do("org-a", "POST", "/api/v1/messages", text("hello"), key).json())
	f.frame(id, store.Result{Outcome: fleet.OutcomeSent})
	a := f.do("org-a", "POST", "/api/v1/messages", text("hello"), key, header("Prefer", "wait=10"))
	if v := a.json(); a.status != http.StatusOK || idOf(v) != id || v["status"] != "sent" || a.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("answer = %d %v %s, want 200 and the same message as it is now", a.status, a.header, a.body)
	}
}

func TestListMessagesFiltersAndPages(t *testing.T) {
	f := newSender(t, storetest.SQLite(t))
	var want []fleet.MessageID
	for i := range 5 {
		want = append(want, idOf(f.must("org-a", "POST", "/api/v1/messages", text(fmt.Sprint(i)))))
	}
	slices.Reverse(want)
	other := idOf(f.must("org-a", "POST", "/api/v1/messages", map[string]any{"to": "5511900000002", "text": "other"}))
	f.must("org-b", "POST", "/api/v1/messages", text("theirs"))
	f.must("org-a", "POST", "/api/v1/messages/"+string(other)+"/cancel", nil)

	list := func(query string) (ids []fleet.MessageID, next string) {
		t.Helper()
		v := f.must("org-a", "GET", "/api/v1/messages?"+query, nil)
		items, ok := v["items"].([]any)
		if !ok {
			t.Fatalf("items = %v, want a list", v["items"])
		}
		for _, item := range items {
			ids = append(ids, idOf(item.(map[string]any)))
		}
		next, _ = v["nextCursor"].(string)
		return ids, next
	}
	var got []fleet.MessageID
	query := "to=%2B5511900000001&limit=2"
	for range 3 {
		ids, next := list(query)
		got = append(got, ids...)
		query = "to=%2B5511900000001&limit=2&cursor=" + next
		if next == "" {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
	if ids, next := list("status=cancelled"); !slices.Equal(ids, []fleet.MessageID{other}) || next != "" {
		t.Errorf("cancelled = %v, %q, want the cancelled one", ids, next)
	}
	if ids, _ := list(""); len(ids) != 6 {
		t.Errorf("all = %d, want the organization's 6", len(ids))
	}
	if ids, _ := list("status=read"); len(ids) != 0 {
		t.Errorf("read = %v, want none", ids)
	}
}

func TestCancelAnswersWithTheCancelledMessage(t *testing.T) {
	f := newSender(t, storetest.SQLite(t))
	for _, way := range []struct{ method, suffix string }{{"POST", "/cancel"}, {"DELETE", ""}} {
		id := string(idOf(f.must("org-a", "POST", "/api/v1/messages", text("hello"))))
		url := "/api/v1/messages/" + id + way.suffix
		if a := f.do("org-a", way.method, url, nil); a.status != http.StatusOK || a.json()["status"] != "cancelled" {
			t.Errorf("%s %s = %d %s, want 200 and the cancelled message", way.method, url, a.status, a.body)
		}
		f.do("org-a", way.method, url, nil).wantProblem("again", http.StatusConflict, "NOT_CANCELLABLE")
		m, err := f.store.GetMessage(t.Context(), "org-a", fleet.MessageID(id))
		if err != nil || m.Status != fleet.StatusCancelled || errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("stored = %s, %v, want cancelled", m.Status, err)
		}
	}
}

func TestRequestsAreLimitedPerProjectAndToldOf(t *testing.T) {
	f := newSender(t, storetest.SQLite(t))
	f.connect("org-a", fleet.ObservedConnected)
	f.sql(`UPDATE sessions SET budget_minute=1`)
	project := f.do("admin", "GET", "/api/admin/organizations/org-a/projects", nil).json()["items"].([]any)[0].(map[string]any)["projectId"].(string)
	change := func(perMinute int) {
		t.Helper()
		if a := f.do("admin", "PATCH", "/api/admin/organizations/org-a/projects/"+project, map[string]any{"requestsPerMinute": perMinute}); a.status != 200 {
			t.Fatalf("PATCH = %d %s", a.status, a.body)
		}
	}
	list := func() *answer { return f.do("org-a", "GET", "/api/v1/messages", nil) }
	change(2)
	for i, want := range []struct {
		status    int
		remaining string
	}{{200, "1"}, {200, "0"}, {429, "0"}} {
		a := list()
		if a.status != want.status || a.header.Get("RateLimit-Limit") != "2" || a.header.Get("RateLimit-Remaining") != want.remaining {
			t.Errorf("request %d = %d %v, want %+v of 2", i+1, a.status, a.header, want)
		}
		if a.status == 429 && (a.json()["code"] != "API_RATE_LIMITED" || a.header.Get("Retry-After") == "" || a.header.Get("RateLimit-Reset") == "") {
			t.Errorf("refusal = %s %v, want a code and a time", a.body, a.header)
		}
	}
	if a := f.do("org-a", "POST", "/api/v1/messages", text("hello")); a.status != 429 || a.json()["code"] != "API_RATE_LIMITED" {
		t.Errorf("a send beyond the limit on requests = %d %s, want 429", a.status, a.body)
	}
	for range 5 {
		if a := f.do("org-b", "GET", "/api/v1/messages", nil); a.status != 200 || a.header.Get("RateLimit-Limit") != "" {
			t.Errorf("another organization = %d, want it not limited", a.status)
		}
		if a := f.do("admin", "GET", "/api/admin/organizations", nil); a.status != 200 {
			t.Errorf("an operator = %d, want never to be limited", a.status)
		}
	}
	change(1_000_000)                          // refills within a millisecond
	f.mint("again", auth.NewKey{Org: "org-a"}) // no process has kept what goes with this one
	for i, want := range []int{202, 429} {
		a := f.do("again", "POST", "/api/v1/messages", text("hello"))
		if got := a.header.Values("RateLimit-Limit"); a.status != want || !slices.Equal(got, []string{"1"}) {
			t.Errorf("send %d = %d with limits %q, want %d and that of the numbers alone", i+1, a.status, got, want)
		}
	}
}

func TestSendsSayWhatIsLeftOverAllNumbers(t *testing.T) {
	f := newSender(t, storetest.SQLite(t))
	f.connect("org-a", fleet.ObservedConnected)
	f.sql(`UPDATE sessions SET budget_minute=2, budget_hour=100, budget_day=100`)
	for i, want := range []struct {
		status           int
		limit, remaining string
		key              string
	}{{202, "2", "1", "a"}, {202, "2", "1", "a"}, {202, "2", "0", "b"}, {429, "2", "0", "c"}} { // the second takes nothing
		a := f.do("org-a", "POST", "/api/v1/messages", text("hello"), header("Idempotency-Key", want.key))
		if a.status != want.status || a.header.Get("RateLimit-Limit") != want.limit || a.header.Get("RateLimit-Remaining") != want.remaining {
			t.Errorf("send %d = %d %v, want %+v", i+1, a.status, a.header, want)
		}
		if (a.header.Get("RateLimit-Reset") != "") != (a.status == 429) {
			t.Errorf("send %d = %d with RateLimit-Reset %q, want it on a refusal alone", i+1, a.status, a.header.Get("RateLimit-Reset"))
		}
	}
}
