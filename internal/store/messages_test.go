package store_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
)

// lane is one session of one organization under one term, with what a test says about it.
type lane struct {
	t    *testing.T
	s    *store.Store
	org  fleet.Organization
	sess fleet.Session
	term fleet.Term
}

func newLane(t *testing.T, s *store.Store, org fleet.OrgID) *lane {
	t.Helper()
	l := &lane{t: t, s: s, org: newOrg(t, s, org)}
	l.sess = newSession(t, s, store.NewSession{Org: org})
	l.takeOver("worker-1/boot")
	return l
}

// takeOver makes owner claim the session, whoever holds it now.
func (l *lane) takeOver(owner string) {
	l.t.Helper()
	found := false
	try := func() error {
		terms, _, err := l.s.ClaimLeases(l.t.Context(), store.ClaimQuery{Owner: owner, Limit: 100, TTL: 30 * time.Second, All: true})
		for _, term := range terms {
			if term.SessionID == l.sess.ID {
				l.term, found = term, true
			}
		}
		if err == nil && !found {
			err = fmt.Errorf("ClaimLeases(%q) = %v, want session %s in it", owner, terms, l.sess.ID)
		}
		return err
	}
	if l.s.Postgres() { // a claim passes over a row that a fenced write holds
		testkit.Eventually(l.t, 5*time.Second, try)
	} else if err := try(); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lane) accept(contact, text string) fleet.Message {
	l.t.Helper()
	return l.acceptFor(contact, text, fleet.DefaultTTL)
}

func (l *lane) acceptFor(contact, text string, ttl time.Duration) fleet.Message {
	l.t.Helper()
	m, err := l.s.CreateMessage(l.t.Context(), fleet.Message{
		OrgID: l.org.ID, ProjectID: "prj_1", SessionID: l.sess.ID, ContactKey: contact, To: "+" + contact,
		ToJID: contact + "@s.whatsapp.net", Kind: "text", Text: text,
	}, ttl)
	if err != nil {
		l.t.Fatal(err)
	}
	return m
}

func (l *lane) next() *store.LaneItem {
	l.t.Helper()
	item, err := l.s.NextInLane(l.t.Context(), l.sess.ID)
	if err != nil {
		l.t.Fatal(err)
	}
	return item
}

// wantNext checks what the lane would send now; nil = nothing.
func (l *lane) wantNext(want *fleet.Message) *store.LaneItem {
	l.t.Helper()
	got := l.next()
	switch {
	case want == nil && got != nil:
		l.t.Fatalf("NextInLane = %s %q, want nothing", got.ID, got.Text)
	case want != nil && got == nil:
		l.t.Fatalf("NextInLane = nothing, want %s %q", want.ID, want.Text)
	case want != nil && got.ID != want.ID:
		l.t.Fatalf("NextInLane = %s %q, want %s %q", got.ID, got.Text, want.ID, want.Text)
	}
	return got
}

func (l *lane) tryClaim(term fleet.Term, id fleet.MessageID, kind fleet.AttemptKind) (bool, error) {
	return l.s.ClaimMessage(l.t.Context(), term, store.Claim{ID: id, Payload: []byte("frame of " + id), Kind: kind, LockFor: 30 * time.Second})
}

func (l *lane) claim(id fleet.MessageID, kind fleet.AttemptKind) {
	l.t.Helper()
	if ok, err := l.tryClaim(l.term, id, kind); !ok || err != nil {
		l.t.Fatalf("ClaimMessage(%s, %s) = %v, %v, want true", id, kind, ok, err)
	}
}

func (l *lane) record(r store.Result) {
	l.t.Helper()
	if err := l.s.RecordOutcome(l.t.Context(), l.term, r); err != nil {
		l.t.Fatalf("RecordOutcome(%+v) = %v", r, err)
	}
}

// send claims the message and records what became of its frame.
func (l *lane) send(m fleet.Message, outcome fleet.Outcome) {
	l.t.Helper()
	l.claim(m.ID, fleet.AttemptSend)
	l.record(store.Result{ID: m.ID, Outcome: outcome, RetryIn: 5 * time.Second, Code: 7, ErrorCode: "WHY", Detail: "why"})
}

func (l *lane) receipt(status fleet.Status, at time.Time, waIDs ...string) []fleet.MessageID {
	l.t.Helper()
	changed, err := l.s.ApplyReceipt(l.t.Context(), l.term, fleet.Receipt{SessionID: l.sess.ID, WAIDs: waIDs, Status: status, At: at})
	if err != nil {
		l.t.Fatalf("ApplyReceipt(%s, %v) = %v", status, waIDs, err)
	}
	return changed
}

func (l *lane) get(id fleet.MessageID) fleet.Message {
	l.t.Helper()
	m, err := l.s.GetMessage(l.t.Context(), l.org.ID, id)
	if err != nil {
		l.t.Fatal(err)
	}
	return m
}

func (l *lane) wantState(id fleet.MessageID, status fleet.Status, outcome fleet.Outcome) fleet.Message {
	l.t.Helper()
	m := l.get(id)
	if m.Status != status || m.Outcome != outcome {
		l.t.Fatalf("message %q is %s, outcome %q, want %s, outcome %q", m.Text, m.Status, m.Outcome, status, outcome)
	}
	return m
}

// events are the message.status events of a message, oldest first, as "status/outcome".
func (l *lane) events(id fleet.MessageID) []string {
	l.t.Helper()
	rows, err := l.s.DB().Query(l.t.Context(), `SELECT data FROM events WHERE kind='message.status' ORDER BY n`)
	if err != nil {
		l.t.Fatal(err)
	}
	defer rows.Close()
	out := []string{}
	for rows.Next() {
		var raw string
		if err := rows.Scan(&raw); err != nil {
			l.t.Fatal(err)
		}
		if d := decodeEvent(l.t, raw); d.MessageID == id {
			out = append(out, fmt.Sprintf("%s/%s", d.Status, d.Outcome))
		}
	}
	if err := rows.Err(); err != nil {
		l.t.Fatal(err)
	}
	return out
}

func (l *lane) wantEvents(id fleet.MessageID, want ...string) {
	l.t.Helper()
	if diff := cmp.Diff(append([]string{}, want...), l.events(id)); diff != "" {
		l.t.Errorf("events of %s (-want +got):\n%s", id, diff)
	}
}

// attempts are the frames of a message as "kind/outcome/code".
func (l *lane) attempts(id fleet.MessageID) []string {
	l.t.Helper()
	rows, err := l.s.DB().Query(l.t.Context(), `SELECT kind, outcome, code FROM attempts WHERE message_id=$1 ORDER BY n`, id)
	if err != nil {
		l.t.Fatal(err)
	}
	defer rows.Close()
	out := []string{}
	for rows.Next() {
		var kind, outcome string
		var code int
		if err := rows.Scan(&kind, &outcome, &code); err != nil {
			l.t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%s/%s/%d", kind, outcome, code))
	}
	if err := rows.Err(); err != nil {
		l.t.Fatal(err)
	}
	return out
}

func (l *lane) wantAttempts(id fleet.MessageID, want ...string) {
	l.t.Helper()
	if diff := cmp.Diff(append([]string{}, want...), l.attempts(id)); diff != "" {
		l.t.Errorf("attempts of %s (-want +got):\n%s", id, diff)
	}
}

func TestWhatsAppIDIsStoredBeforeAnythingLeaves(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		m := l.accept("5511900000001", "hello")
		stored := l.get(m.ID)
		if diff := cmp.Diff(m, stored); diff != "" {
			t.Errorf("CreateMessage returned something else than is stored (-returned +stored):\n%s", diff)
		}
		if len(stored.WAID) != 22 || stored.Status != fleet.StatusQueued || stored.Attempts != 0 || stored.Text != "hello" {
			t.Errorf("stored message = %+v, want it queued, without attempts and with a WhatsApp id", stored)
		}
		if d := stored.ExpiresAt.Sub(stored.CreatedAt); d != fleet.DefaultTTL {
			t.Errorf("expires %v after it was made, want %v", d, fleet.DefaultTTL)
		}
	})
}

func TestTextAndPayloadAreSealedInTheRow(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		m := l.accept("5511900000001", "a secret word")
		l.claim(m.ID, fleet.AttemptSend)
		var body, payload []byte
		if err := s.DB().QueryRow(t.Context(), `SELECT m.body, p.sealed FROM messages m JOIN payloads p ON p.message=m.seq WHERE m.id=$1`, m.ID).Scan(&body, &payload); err != nil {
			t.Fatal(err)
		}
		for column, raw := range map[string][]byte{"body": body, "payload": payload} {
			if len(raw) == 0 || slices.Contains([]string{"a secret word", "frame of " + string(m.ID)}, string(raw)) {
				t.Errorf("%s holds %q, want sealed bytes", column, raw)
			}
		}
		if _, err := storetest.Ring(t).Open(string(m.ID), payload); err == nil {
			t.Error("the payload opens as a text: the two columns could be swapped")
		}
	})
}

func TestAnotherOrganizationsMessageIsNotFound(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		newOrg(t, s, "org-b")
		m := l.accept("5511900000001", "hello")
		if _, err := s.GetMessage(t.Context(), "org-b", m.ID); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("GetMessage of another organization = %v, want ErrNotFound", err)
		}
		if _, err := s.CancelMessage(t.Context(), "org-b", m.ID); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("CancelMessage of another organization = %v, want ErrNotFound", err)
		}
		if page, _, err := s.ListMessages(t.Context(), store.MessageQuery{Org: "org-b"}); err != nil || len(page) != 0 {
			t.Errorf("ListMessages of another organization = %v, %v, want nothing", page, err)
		}
		l.wantState(m.ID, fleet.StatusQueued, fleet.OutcomeNone)
	})
}

func TestListMessagesIsNewestFirstAndPages(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		var want []fleet.MessageID
		for i := range 5 {
			want = append(want, l.accept("5511900000001", fmt.Sprint(i)).ID)
		}
		other := l.accept("5511900000002", "other")
		slices.Reverse(want)

		var got []fleet.MessageID
		q := store.MessageQuery{Org: "org-a", ContactKey: "5511900000001", Limit: 2}
		for pages := 0; ; pages++ {
			page, next, err := s.ListMessages(t.Context(), q)
			if err != nil || pages > 3 {
				t.Fatalf("page %d: %v", pages, err)
			}
			got = append(got, ids(page)...)
			if next == 0 {
				break
			}
			q.Before = next
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pages (-want +got):\n%s", diff)
		}
		if _, err := s.CancelMessage(t.Context(), "org-a", other.ID); err != nil {
			t.Fatal(err)
		}
		page, _, err := s.ListMessages(t.Context(), store.MessageQuery{Org: "org-a", Status: fleet.StatusCancelled, Session: l.sess.ID})
		if diff := cmp.Diff([]fleet.MessageID{other.ID}, ids(page)); err != nil || diff != "" {
			t.Errorf("cancelled messages: %v (-want +got):\n%s", err, diff)
		}
	})
}

func TestMessagesByIDReadsManyWithOneStatement(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		a, b := l.accept("5511900000001", "a"), l.accept("5511900000002", "b")
		l.accept("5511900000003", "c")
		got, err := s.MessagesByID(t.Context(), []fleet.MessageID{b.ID, a.ID, "msg_unknown"})
		slices.SortFunc(got, func(x, y fleet.Message) int { return int(x.Seq - y.Seq) })
		if diff := cmp.Diff([]fleet.Message{a, b}, got); err != nil || diff != "" {
			t.Errorf("MessagesByID: %v (-want +got):\n%s", err, diff)
		}
	})
}

func TestOnlyAQueuedMessageCanBeCancelled(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		queued, sending := l.accept("5511900000001", "queued"), l.accept("5511900000002", "sending")
		l.claim(sending.ID, fleet.AttemptSend)

		m, err := s.CancelMessage(t.Context(), "org-a", queued.ID)
		if err != nil || m.Status != fleet.StatusCancelled {
			t.Errorf("CancelMessage(queued) = %s, %v, want cancelled", m.Status, err)
		}
		l.wantEvents(queued.ID, "cancelled/")
		if _, err := s.CancelMessage(t.Context(), "org-a", queued.ID); !errors.Is(err, fleet.ErrConflict) {
			t.Errorf("CancelMessage again = %v, want ErrConflict", err)
		}
		if _, err := s.CancelMessage(t.Context(), "org-a", sending.ID); !errors.Is(err, fleet.ErrConflict) {
			t.Errorf("CancelMessage(sending) = %v, want ErrConflict", err)
		}
		l.wantEvents(queued.ID, "cancelled/")
		l.wantEvents(sending.ID)
		if ok, err := l.tryClaim(l.term, queued.ID, fleet.AttemptSend); ok || err != nil {
			t.Errorf("ClaimMessage of a cancelled message = %v, %v, want false", ok, err)
		}
	})
}

func TestQueuedMessageExpiresAfterItsTimeToLive(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		var short []fleet.Message
		for i := range 3 {
			short = append(short, l.acceptFor("5511900000001", fmt.Sprint(i), time.Millisecond))
		}
		long := l.accept("5511900000001", "long")
		waitUntil(t, s, short[2].ExpiresAt)

		if item := l.next(); item == nil || item.ID != long.ID {
			t.Errorf("NextInLane = %v, want the message that has not expired", item)
		}
		for _, want := range []int{2, 1, 0} {
			if n, err := s.ExpireQueued(t.Context(), 2); n != want || err != nil {
				t.Errorf("ExpireQueued(limit 2) = %d, %v, want %d", n, err, want)
			}
		}
		for _, m := range short {
			if got := l.wantState(m.ID, fleet.StatusExpired, fleet.OutcomeNone); got.ErrorCode != "EXPIRED" {
				t.Errorf("error code = %q, want EXPIRED", got.ErrorCode)
			}
			l.wantEvents(m.ID, "expired/")
		}
		l.wantState(long.ID, fleet.StatusQueued, fleet.OutcomeNone)
	})
}

func TestConversationIsOnePerOrganizationAndContact(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		newOrg(t, s, "org-b")
		got := make([]fleet.ConversationID, 8)
		var wg sync.WaitGroup
		for i := range got {
			wg.Go(func() {
				id, err := s.Conversation(t.Context(), "org-a", "5511900000001")
				if err != nil {
					t.Errorf("Conversation = %v", err)
				}
				got[i] = id
			})
		}
		wg.Wait()
		if c := slices.Compact(slices.Clone(got)); len(c) != 1 || c[0] == "" {
			t.Errorf("8 callers at once got %v, want one id", got)
		}
		for _, other := range []struct {
			org     fleet.OrgID
			contact string
		}{{"org-b", "5511900000001"}, {"org-a", "5511900000002"}} {
			if id, err := s.Conversation(t.Context(), other.org, other.contact); err != nil || id == got[0] {
				t.Errorf("Conversation(%s, %s) = %s, %v, want one of its own", other.org, other.contact, id, err)
			}
		}
		if _, err := s.Conversation(t.Context(), "org-a", ""); !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("Conversation with nobody = %v, want ErrInvalid", err)
		}
	})
}

func TestRetentionDropsPayloadsThenMessages(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		settled, open, young := l.accept("5511900000001", "settled"), l.accept("5511900000002", "open"), l.accept("5511900000003", "young")
		l.send(settled, fleet.OutcomeSent)
		l.send(open, fleet.OutcomeUnknown)
		l.send(young, fleet.OutcomeSent)
		age(t, s, 73*time.Hour, settled.ID, open.ID)
		if _, err := s.DB().Exec(t.Context(), `UPDATE attempts SET at=at-$2 WHERE message_id<>$1`, young.ID, (73 * time.Hour).Milliseconds()); err != nil {
			t.Fatal(err)
		}
		before := time.Now().Add(-fleet.PayloadRetention)
		for _, want := range []int{1, 0} {
			if n, err := s.PurgePayloads(t.Context(), before, 10); n != want || err != nil {
				t.Errorf("PurgePayloads = %d, %v, want %d", n, err, want)
			}
		}
		if n, err := s.PurgeMessages(t.Context(), time.Now(), 10); n != 1 || err != nil {
			t.Errorf("PurgeMessages = %d, %v, want 1: one message is open, one is younger than 25 h", n, err)
		}
		if _, err := s.GetMessage(t.Context(), "org-a", settled.ID); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("GetMessage of a purged message = %v, want ErrNotFound", err)
		}
		l.wantAttempts(settled.ID)
		l.wantAttempts(open.ID, "send/unknown/7")
		l.wantAttempts(young.ID, "send/sent/7")
	})
}

func ids(page []fleet.Message) []fleet.MessageID {
	out := []fleet.MessageID{}
	for _, m := range page {
		out = append(out, m.ID)
	}
	return out
}
