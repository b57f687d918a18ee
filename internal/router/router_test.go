package router

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

var now = time.UnixMilli(1_700_000_000_000)

// healthy is a session that may send, changed by edits.
func healthy(slug fleet.SessionSlug, edits ...func(*fleet.Session)) fleet.Session {
	s := fleet.Session{
		ID: "id-" + fleet.SessionID(slug), Slug: slug, OrgID: "org-a", Desired: fleet.DesiredRunning,
		Observed: fleet.ObservedConnected, Epoch: 3, LeaseEpoch: 3, LeaseOwner: "worker-1/boot", LeaseLive: true,
		Phone: "5511900000001", DeviceJID: "5511900000001:1@s.whatsapp.net",
	}
	for _, edit := range edits {
		edit(&s)
	}
	return s
}

func TestEligible(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(*fleet.Session)
		want Reason
	}{
		{"a running, connected and owned session may send", func(*fleet.Session) {}, ""},
		{"a stopped session may not", func(s *fleet.Session) { s.Desired = fleet.DesiredStopped }, ReasonStopped},
		{"a deleted session may not", func(s *fleet.Session) { s.Desired = fleet.DesiredDeleted }, ReasonStopped},
		{"a paused session may not", func(s *fleet.Session) { s.Paused = true }, ReasonPaused},
		{"a session without a number may not", func(s *fleet.Session) { s.Phone = "" }, ReasonUnpaired},
		{"a session whose login WhatsApp ended may not", func(s *fleet.Session) { s.RevokedAt = now }, ReasonUnpaired},
		{"a session whose worker's heartbeat stopped may not", func(s *fleet.Session) { s.LeaseLive = false }, ReasonUnowned},
		{"a reconnecting session may not", func(s *fleet.Session) { s.Observed = fleet.ObservedReconnecting }, ReasonDisconnected},
		{"a session whose client WhatsApp refuses may not", func(s *fleet.Session) { s.Observed = fleet.ObservedClientOutdated }, ReasonOutdated},
		{"a session that only an earlier owner saw connected may not", func(s *fleet.Session) { s.LeaseEpoch = 4 }, ReasonDisconnected},
		{"a session that has been connected for days may, though nothing was written since", func(s *fleet.Session) { s.ObservedSince = now.Add(-72 * time.Hour) }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := healthy("org-a-01", tc.edit)
			if reason := eligible(&s); reason != tc.want {
				t.Errorf("eligible() = %q, want %q", reason, tc.want)
			}
		})
	}
	for _, observed := range []fleet.Observed{
		fleet.ObservedNeedsPairing, fleet.ObservedPairing, fleet.ObservedPairingExpired, fleet.ObservedConnecting, fleet.ObservedReconnecting,
		fleet.ObservedUnavailable, fleet.ObservedConflict, fleet.ObservedLoggedOut, fleet.ObservedLocked, fleet.ObservedTempBanned,
		fleet.ObservedBanned, fleet.ObservedClientOutdated, fleet.ObservedFailed,
	} {
		s := healthy("org-a-01", func(s *fleet.Session) { s.Observed = observed })
		if reason := eligible(&s); reason == "" {
			t.Errorf("eligible() of a session that is %s = %q", observed, reason)
		}
	}
}

func TestFieldAndRefusal(t *testing.T) {
	paused := func(s *fleet.Session) { s.Paused = true }
	away := func(s *fleet.Session) { s.Observed = fleet.ObservedReconnecting }
	old := func(s *fleet.Session) { s.Observed = fleet.ObservedClientOutdated }
	gone := func(s *fleet.Session) { s.Desired = fleet.DesiredDeleted }
	off := func(s *fleet.Session) { s.Detached = true }
	cold := func(s *fleet.Session) { s.ColdUntil = now.Add(time.Hour) }
	capped := func(s *fleet.Session) { s.CappedUntil = now.Add(2 * time.Hour) }
	wrote := []fleet.Chat{{SessionID: "id-a", FirstInAt: now.Add(-time.Hour), LastInAt: now.Add(-time.Hour)}}
	unanswered := []fleet.Chat{{SessionID: "id-a", FirstOutAt: now.Add(-time.Hour), LastOutAt: now.Add(-time.Hour)}}
	for _, tc := range []struct {
		name    string
		list    []fleet.Session
		chats   []fleet.Chat
		send    Send
		want    []fleet.SessionSlug
		skipped []Skip
		code    string
		detail  string
		after   time.Duration
	}{
		{name: "those that may send, in list order", list: []fleet.Session{healthy("b"), healthy("a")}, want: []fleet.SessionSlug{"b", "a"}},
		{
			name: "the others are named with the reason", list: []fleet.Session{healthy("a", paused), healthy("b", away), healthy("c")},
			want: []fleet.SessionSlug{"c"}, skipped: []Skip{{"id-a", "a", ReasonPaused}, {"id-b", "b", ReasonDisconnected}},
		},
		{name: "no session", code: "NO_SESSIONS", detail: "the organization has no session: create one and pair it"},
		{name: "only deleted ones and removed ones", list: []fleet.Session{healthy("a", gone), healthy("b", off)}, code: "NO_SESSIONS", detail: "the organization has no session: create one and pair it"},
		{
			name: "none eligible", list: []fleet.Session{healthy("a", paused), healthy("b", away), healthy("c", away)},
			code: "NONE_ELIGIBLE", detail: "no session can send now: 1 paused, 2 not connected", after: noneRetry,
			skipped: []Skip{{"id-a", "a", ReasonPaused}, {"id-b", "b", ReasonDisconnected}, {"id-c", "c", ReasonDisconnected}},
		},
		{
			name: "all that should send are refused for their version", list: []fleet.Session{healthy("a", paused), healthy("b", old)},
			code: "CLIENT_OUTDATED", detail: "WhatsApp refuses this version of the gateway; its operator has to upgrade it or set WA_WEB_VERSION", after: outdatedRetry,
			skipped: []Skip{{"id-a", "a", ReasonPaused}, {"id-b", "b", ReasonOutdated}},
		},
		{
			name: "one that may come back sooner than a version", list: []fleet.Session{healthy("a", old), healthy("b", away)},
			code: "NONE_ELIGIBLE", detail: "no session can send now: 1 client outdated, 1 not connected", after: noneRetry,
			skipped: []Skip{{"id-a", "a", ReasonOutdated}, {"id-b", "b", ReasonDisconnected}},
		},
		{
			name: "strangers are not written to from restricted numbers", list: []fleet.Session{healthy("a", cold), healthy("b", capped), healthy("c")},
			want: []fleet.SessionSlug{"c"}, skipped: []Skip{{"id-a", "a", ReasonCold}, {"id-b", "b", ReasonCapped}},
		},
		{
			name: "when the first restriction ends is when to try again", list: []fleet.Session{healthy("b", cold, capped), healthy("a", cold)},
			code: "NONE_ELIGIBLE", detail: "no session can send now: 2 reachout restricted", after: time.Hour,
			skipped: []Skip{{"id-b", "b", ReasonCold}, {"id-a", "a", ReasonCold}},
		},
		{name: "a person who wrote there is no stranger", list: []fleet.Session{healthy("a", cold, capped)}, chats: wrote, want: []fleet.SessionSlug{"a"}},
		{
			name: "a person who never answered is", list: []fleet.Session{healthy("a", cold)}, chats: unanswered,
			code: "NONE_ELIGIBLE", detail: "no session can send now: 1 reachout restricted", after: time.Hour, skipped: []Skip{{"id-a", "a", ReasonCold}},
		},
		{
			name: "a message is not sent where WhatsApp refused it", list: []fleet.Session{healthy("a"), healthy("b")}, send: Send{Avoid: "id-a"},
			want: []fleet.SessionSlug{"b"}, skipped: []Skip{{"id-a", "a", ReasonRefused}},
		},
		{name: "bound to one session, the others don't count", list: []fleet.Session{healthy("a"), healthy("b")}, send: Send{Only: "id-b"}, want: []fleet.SessionSlug{"b"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := (&snapshot{Senders: store.Senders{Sessions: tc.list}}).field(now, tc.send, tc.chats, fleet.WarmFor)
			var got []fleet.SessionSlug
			for _, c := range f.candidates {
				got = append(got, c.session.Slug)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("candidates (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.skipped, f.out); diff != "" {
				t.Errorf("skipped (-want +got):\n%s", diff)
			}
			if tc.code == "" {
				return
			}
			coded, _ := errors.AsType[*fleet.CodedError](f.refusal(now))
			if coded == nil || coded.Code != tc.code || coded.Detail != tc.detail || coded.RetryAfter != tc.after {
				t.Errorf("refusal() = %+v, want %s: %s after %s", coded, tc.code, tc.detail, tc.after)
			}
		})
	}
}

func TestAFirstMessageToAStrangerIsANewChatAndAnyOtherIsNot(t *testing.T) {
	for _, tc := range []struct {
		name string
		chat fleet.Chat
		want bool
	}{
		{"nobody wrote", fleet.Chat{}, true},
		{"we wrote", fleet.Chat{FirstOutAt: now.Add(-time.Hour)}, false},
		{"they wrote", fleet.Chat{FirstInAt: now.Add(-time.Hour), LastInAt: now.Add(-time.Hour)}, false},
		{"they wrote before the window, and we never did", fleet.Chat{FirstInAt: now.Add(-900 * time.Hour), LastInAt: now.Add(-900 * time.Hour)}, true},
	} {
		tc.chat.SessionID = "id-a"
		f := (&snapshot{Senders: store.Senders{Sessions: []fleet.Session{healthy("a")}}}).field(now, Send{}, []fleet.Chat{tc.chat}, fleet.WarmFor)
		if got := f.candidates[0]; got.newChat != tc.want || got.ask.NewChat != tc.want {
			t.Errorf("%s: new chat %v, %v, want %v", tc.name, got.newChat, got.ask.NewChat, tc.want)
		}
	}
}

func TestRefusalsNameNoSession(t *testing.T) {
	f := (&snapshot{Senders: store.Senders{Sessions: []fleet.Session{healthy("secret-slug", func(s *fleet.Session) { s.Paused = true })}}}).field(now, Send{}, nil, fleet.WarmFor)
	for _, err := range []error{f.refusal(now), limited(ledger.Answer{Verdict: ledger.Exhausted}, []Skip{{"secret-slug", "secret-slug", ReasonMinute}}, now, "UTC")} {
		if err == nil || strings.Contains(err.Error(), "secret-slug") || strings.Contains(err.Error(), "5511900000001") {
			t.Errorf("refusal = %v, want no session's identity in it", err)
		}
	}
}

// fleetOf is a router over an organization with sessions that can send.
type fleetOf struct {
	t        *testing.T
	s        *store.Store
	r        *Router
	l        *ledger.Memory
	sessions []fleet.Session
	terms    []fleet.Term
}

func newFleet(t *testing.T, s *store.Store, sessions int) *fleetOf {
	t.Helper()
	f := &fleetOf{t: t, s: s}
	if _, err := s.CreateOrganization(t.Context(), fleet.Organization{ID: "org-a", Label: "A", Strategy: fleet.StrategyPriority}); err != nil {
		t.Fatal(err)
	}
	for range sessions {
		v, err := s.CreateSession(t.Context(), store.NewSession{Org: "org-a", Warmed: true})
		if err != nil {
			t.Fatal(err)
		}
		f.sessions = append(f.sessions, v)
	}
	terms, _, err := s.ClaimLeases(t.Context(), store.ClaimQuery{Owner: "worker-1/boot", Limit: 10, TTL: 1000 * time.Hour})
	if err != nil || len(terms) != sessions {
		t.Fatalf("ClaimLeases = %v, %v", terms, err)
	}
	slices.SortFunc(terms, func(a, b fleet.Term) int { return f.place(a.SessionID) - f.place(b.SessionID) })
	f.terms = terms
	for i, term := range terms {
		phone := fmt.Sprintf("551190000000%d", i)
		if err := s.RecordLogin(t.Context(), term, store.Login{DeviceJID: phone + ":1@s.whatsapp.net", Phone: phone}); err != nil {
			t.Fatal(err)
		}
		f.observe(i, fleet.ObservedConnected)
	}
	f.l = ledger.NewMemory(ledger.Options{Rebuild: Rebuild(s, 20, 5)})
	t.Cleanup(f.l.Close)
	f.r = New(Options{Store: s, Ledger: f.l})
	return f
}

func (f *fleetOf) place(id fleet.SessionID) int {
	return slices.IndexFunc(f.sessions, func(s fleet.Session) bool { return s.ID == id })
}

func (f *fleetOf) observe(i int, state fleet.Observed) {
	f.t.Helper()
	if _, err := f.s.RecordObserved(f.t.Context(), f.terms[i], store.Observation{State: state, Generation: 1}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleetOf) change(i int, c store.SessionChange) {
	f.t.Helper()
	if _, err := f.l.Bump(f.t.Context(), "org-a"); err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.s.UpdateSession(f.t.Context(), f.sessions[i].Slug, c); err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.l.Bump(f.t.Context(), "org-a"); err != nil {
		f.t.Fatal(err)
	}
}

// route wants this session, or this code.
func (f *fleetOf) route(key, want string) Choice {
	f.t.Helper()
	c, err := f.r.Route(f.t.Context(), Send{Org: "org-a", Project: "prj_1", Key: key, Wait: time.Minute})
	got := string(c.Session.Slug)
	if coded, ok := errors.AsType[*fleet.CodedError](err); ok {
		got = coded.Code
	} else if err != nil {
		f.t.Fatal(err)
	}
	if got != want {
		f.t.Errorf("Route(%s) = %s, %v, want %s", key, got, err, want)
	}
	return c
}

func TestRouteTellsNoSessionsNoneEligibleAndAllExhaustedApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, storetest.SQLite(t), 1)
		f.change(0, store.SessionChange{Budget: &fleet.Budget{PerMinute: 2, PerHour: 100, PerDay: 100}})
		f.route("5511900000091", "org-a-01")
		f.route("5511900000092", "org-a-01")
		f.route("5511900000093", "RATE_LIMITED")
		f.observe(0, fleet.ObservedReconnecting)
		time.Sleep(2 * time.Second) // liveness is two seconds old at most
		f.route("5511900000093", "NONE_ELIGIBLE")
		f.observe(0, fleet.ObservedConnected)
		f.route("5511900000093", "RATE_LIMITED") // a refusal is never made by rows that are kept
		if c, err := f.r.Route(t.Context(), Send{Org: "org-b", Key: "5511900000091"}); err == nil || c.Session.ID != "" {
			t.Errorf("Route of an organization without sessions = %+v, %v", c, err)
		}
	})
}

func TestAfterTheRetryAfterASendSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, storetest.SQLite(t), 2)
		for i := range 2 {
			f.change(i, store.SessionChange{Budget: &fleet.Budget{PerMinute: 3, PerHour: 5, PerDay: 20}})
		}
		waited, mustSend := 0, false
		for n := 0; n < 36; {
			c, err := f.r.Route(t.Context(), Send{Org: "org-a", Project: "prj_1", Key: fmt.Sprint("55119000000", 10+n), Wait: time.Minute})
			if err == nil {
				mustSend = false
				n++
				if err := f.l.Settle(t.Context(), ledger.Settlement{Reservation: c.Reservation, Frames: 1}); err != nil {
					t.Fatal(err)
				}
				continue
			}
			coded, _ := errors.AsType[*fleet.CodedError](err)
			if coded == nil || coded.Code != "RATE_LIMITED" || coded.RetryAfter <= 0 || mustSend {
				t.Fatalf("Route = %v after waiting as told %v, want RATE_LIMITED with a time, or a session", err, mustSend)
			}
			waited, mustSend = waited+1, true
			time.Sleep(coded.RetryAfter)
		}
		if waited < 6 {
			t.Errorf("the budget was used up %d times only", waited)
		}
	})
}

func TestAChangeCountsOnTheNextSendAndAPersonKeepsTheirNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, storetest.SQLite(t), 2)
		yes, no := true, false
		f.route("5511900000091", "org-a-01")
		f.change(0, store.SessionChange{Paused: &yes})
		f.route("5511900000092", "org-a-02")
		f.change(0, store.SessionChange{Paused: &no})
		if c := f.route("5511900000092", "org-a-02"); !c.Pinned {
			t.Errorf("the person was not kept at their number: %+v", c)
		}
		if c := f.route("5511900000093", "org-a-01"); c.Pinned {
			t.Errorf("a person that nobody wrote to is pinned: %+v", c)
		}
	})
}

func TestRouteOnBothDatabases(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		f := newFleet(t, s, 2)
		c := f.route("5511900000091", "org-a-01")
		if !c.NewChat || c.Head != "org-a-01" || c.Reservation.IsZero() {
			t.Errorf("Route = %+v", c)
		}
		if err := f.r.GiveBack(t.Context(), c.Reservation); err != nil {
			t.Fatal(err)
		}
		if err := s.ReleaseLeases(t.Context(), "worker-1/boot", f.terms[:1]); err != nil {
			t.Fatal(err)
		}
		f.r.keep = -1
		f.route("5511900000091", "org-a-02")
	})
}

func TestAMessageTrailsWhereItsPersonMayHaveBeenWrittenToLast(t *testing.T) {
	now := time.Now()
	chat := func(session string, out time.Duration) fleet.Chat {
		c := fleet.Chat{SessionID: fleet.SessionID(session)}
		if out > 0 {
			c.LastOutAt = now.Add(-out)
		}
		return c
	}
	for _, tc := range []struct {
		name   string
		chats  []fleet.Chat
		pinned bool
		want   bool
	}{
		{"a stranger", nil, false, false},
		{"only the chosen number ever wrote", []fleet.Chat{chat("chosen", time.Minute)}, false, false},
		{"they wrote to another number, which never answered", []fleet.Chat{chat("other", 0)}, false, false},
		{"another number wrote and the pin has moved or ended", []fleet.Chat{chat("other", 30*24*time.Hour), chat("chosen", time.Minute)}, false, true},
		{"another number wrote long ago, and the pin holds", []fleet.Chat{chat("other", 3*time.Hour), chat("chosen", time.Hour)}, true, false},
		{"another number wrote as lately as an hour tells", []fleet.Chat{chat("other", 90*time.Minute), chat("chosen", time.Hour)}, true, true},
		{"they wrote to the chosen number, which pinned it", []fleet.Chat{chat("other", 3*time.Hour), chat("chosen", 0)}, true, true},
	} {
		if got := trails(tc.chats, "chosen", tc.pinned); got != tc.want {
			t.Errorf("%s: trails = %v, want %v", tc.name, got, tc.want)
		}
	}
}
