package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

func TestErrorsBecomeProblemsByOneTable(t *testing.T) {
	secret := errors.New("connect to postgres://admin:hunter2@10.0.0.5")
	coded := func(code string, retry time.Duration, sentinel error) error {
		return &fleet.CodedError{Code: code, Detail: "why", RetryAfter: retry, Err: sentinel}
	}
	for name, tc := range map[string]struct {
		err    error
		status int
		code   string
		retry  int
	}{
		"a bad input":                     {&fleet.InvalidError{Code: "INVALID_RECIPIENT", Field: "to", Detail: "is empty"}, 422, "INVALID_RECIPIENT", 0},
		"no key":                          {auth.ErrUnauthorized, 401, "UNAUTHORIZED", 0},
		"no such row":                     {fleet.ErrNotFound, 404, "NOT_FOUND", 0},
		"a row that exists":               {fleet.ErrConflict, 409, "CONFLICT", 0},
		"a taken number":                  {fleet.ErrNumberInUse, 409, "NUMBER_IN_USE", 0},
		"an incomplete order":             {store.ErrOrder, 422, "ORDER_INCOMPLETE", 0},
		"an input without more":           {fleet.ErrInvalid, 422, "VALIDATION", 0},
		"a database that is away":         {fmt.Errorf("%w: %w", fleet.ErrUnavailable, secret), 503, "DATABASE_UNAVAILABLE", 2},
		"a deadline":                      {context.DeadlineExceeded, 503, "TIMEOUT", 2},
		"a client that left":              {context.Canceled, 503, "TIMEOUT", 2},
		"anything else":                   {secret, 500, "INTERNAL", 0},
		"no sessions":                     {coded("NO_SESSIONS", 0, fleet.ErrConflict), 409, "NO_SESSIONS", 0},
		"none eligible":                   {coded("NONE_ELIGIBLE", 1500*time.Millisecond, fleet.ErrUnavailable), 503, "NONE_ELIGIBLE", 2},
		"every number exhausted":          {coded("RATE_LIMITED", time.Minute, fleet.ErrUnavailable), 429, "RATE_LIMITED", 60},
		"opted out":                       {coded("RECIPIENT_OPTED_OUT", 0, fleet.ErrConflict), 403, "RECIPIENT_OPTED_OUT", 0},
		"a coded missing row":             {coded("EVENT_GONE", 0, fleet.ErrNotFound), 404, "EVENT_GONE", 0},
		"a coded bad input":               {coded("X", 0, fleet.ErrInvalid), 422, "X", 0},
		"a code with no sentinel":         {coded("X", 0, nil), 409, "X", 0},
		"a coded error wrapped elsewhere": {coded("OWN", 0, fmt.Errorf("row: %w", fleet.ErrNotFound)), 404, "OWN", 0},
	} {
		wrapped := fmt.Errorf("do something with session 1: %w", tc.err)
		p := problemFor(wrapped)
		if p.Status != tc.status || p.Code != tc.code || p.RetryAfterSeconds != tc.retry || p.Detail == "" || p.Title == "" {
			t.Errorf("%s: problem = %+v, want %d %s, retry %d", name, p, tc.status, tc.code, tc.retry)
		}
		raw, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(raw, []byte("hunter2")) || bytes.Contains(raw, []byte("session 1")) {
			t.Errorf("%s: internals reach the client: %s", name, raw)
		}
		if !errors.Is(p.cause, tc.err) {
			t.Errorf("%s: the log would not say what happened", name)
		}
	}
}

func testDeps(log *bytes.Buffer) *deps {
	return &deps{log: slog.New(slog.NewTextHandler(log, nil)), metrics: newMetrics(nil)}
}

func TestAPanicIsAProblemAndALogLineWithTheSameRequestID(t *testing.T) {
	var log bytes.Buffer
	d := testDeps(&log)
	h := d.observe(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("kaboom") }))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
	var p Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	if w.Code != http.StatusInternalServerError || p.Code != "INTERNAL" || p.RequestID == "" || strings.Contains(w.Body.String(), "kaboom") {
		t.Errorf("answer = %d %s", w.Code, w.Body.String())
	}
	if !strings.Contains(log.String(), "kaboom") || strings.Count(log.String(), "request_id="+p.RequestID) != 2 {
		t.Errorf("log = %s, want the panic and the request under %s", log.String(), p.RequestID)
	}
}

func TestARequestIDFromOutsideCannotBreakTheLog(t *testing.T) {
	for in, kept := range map[string]bool{
		"abc-DEF_1.2": true, "": false, "a b": false, "a\nb": false, "ä": false, `a"b`: false,
		strings.Repeat("a", 64): true, strings.Repeat("a", 65): false,
	} {
		var log bytes.Buffer
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
		r.Header[requestIDHeader] = []string{in}
		w := httptest.NewRecorder()
		testDeps(&log).observe(http.NotFoundHandler()).ServeHTTP(w, r)
		got := w.Header().Get(requestIDHeader)
		if (got == in) != kept || !validRequestID(got) {
			t.Errorf("request id %q became %q, want kept: %v", in, got, kept)
		}
	}
}

func TestServerErrorsAreLoggedWithTheirCauseAndOthersWithTheirCode(t *testing.T) {
	for name, tc := range map[string]struct {
		err        error
		want, lack string
	}{
		"ours":   {errors.New("disk on fire"), "err=\"disk on fire\"", "level=INFO"},
		"theirs": {fmt.Errorf("secret text: %w", fleet.ErrNotFound), "code=NOT_FOUND", "secret text"},
	} {
		var log bytes.Buffer
		h := testDeps(&log).observe(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { writeProblem(w, r, problemFor(tc.err)) }))
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "GET", "/x?y=z", nil))
		if got := log.String(); !strings.Contains(got, tc.want) || strings.Contains(got, tc.lack) || strings.Contains(got, "y=z") {
			t.Errorf("%s: log = %s, want %q and not %q", name, got, tc.want, tc.lack)
		}
	}
}

func TestSessionStateIsTheRowOfTheLiveOwner(t *testing.T) {
	for name, tc := range map[string]struct {
		observed       fleet.Observed
		live           bool
		written, lease int64
		want           string
	}{
		"seen by its owner":                    {fleet.ObservedConnected, true, 3, 3, "connected"},
		"seen by an owner that is gone":        {fleet.ObservedConnected, false, 3, 3, "unowned"},
		"a new owner that has not spoken":      {fleet.ObservedConnected, true, 3, 4, "connecting"},
		"reconnecting under a new owner":       {fleet.ObservedReconnecting, true, 3, 4, "connecting"},
		"a pairing whose owner is gone":        {fleet.ObservedPairing, true, 3, 4, "needs_pairing"},
		"banned stays banned under a new one":  {fleet.ObservedBanned, true, 3, 4, "banned"},
		"logged out without an owner":          {fleet.ObservedLoggedOut, false, 3, 3, "unowned"},
		"never owned":                          {fleet.ObservedNeedsPairing, false, 0, 0, "unowned"},
		"needs pairing, owned, nothing to say": {fleet.ObservedNeedsPairing, true, 0, 1, "needs_pairing"},
	} {
		s := fleet.Session{Observed: tc.observed, Epoch: tc.written, LeaseEpoch: tc.lease, LeaseLive: tc.live, CreatedAt: time.Now()}
		v := sessionView(s)
		if v.State != tc.want || v.Observed != tc.observed || v.Connected != (tc.want == "connected") {
			t.Errorf("%s: state = %s, connected %v, observed %s, want %s", name, v.State, v.Connected, v.Observed, tc.want)
		}
	}
}

func TestEscapesForNULAndHalfPairsAreFound(t *testing.T) {
	for in, bad := range map[string]bool{
		`"\u0000"`:             true,
		`"\\u0000"`:            false,
		`"\\\u0000"`:           true,
		`"\u0001"`:             false,
		`"\ud83d\ude00"`:       false,
		`"\ud83d"`:             true,
		`"\ud83dx"`:            true,
		`"\ud83d\n"`:           true,
		`"\ud83d\ud83d\ude00"`: true,
		`"\ude00"`:             true,
		`"\uD83D\uDE00"`:       false,
		`{"a\u0000":"b"}`:      true,
		`"\"\u00e9"`:           false,
	} {
		if got := badEscape([]byte(in)); got != bad {
			t.Errorf("badEscape(%s) = %v, want %v", in, got, bad)
		}
	}
}

func FuzzBodyDoor(f *testing.F) {
	for _, seed := range []string{`{}`, `{"a":"b"}`, `{"a":"\u0000"}`, `"\ud800\udc00"`, "\"\xff\"", `{"a":`, "\x00", `"\ud800`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		p := checkBody(http.Header{}, raw)
		if p != nil {
			if p.Code != "BAD_JSON" && p.Code != "TEXT_INVALID" {
				t.Errorf("checkBody(%q) = %s", raw, p.Code)
			}
			return
		}
		var v any
		if err := json.Unmarshal(raw, &v); err != nil {
			t.Fatalf("the door let %q past: %v", raw, err)
		}
		// What is behind the door is stored as it came: writing and reading it changes nothing.
		again, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(again, []byte(`\u0000`)) && !bytes.Contains(again, []byte(`\\u0000`)) {
			t.Errorf("a NUL came through in %q", raw)
		}
		if bytes.Contains(again, []byte(`\ufffd`)) && !bytes.Contains(raw, []byte("\ufffd")) && !bytes.Contains(bytes.ToLower(raw), []byte(`\ufffd`)) {
			t.Errorf("text was repaired in %q", raw)
		}
		var back any
		if err := json.Unmarshal(again, &back); err != nil || cmp.Diff(v, back) != "" {
			t.Errorf("%q did not survive: %v", raw, err)
		}
	})
}
