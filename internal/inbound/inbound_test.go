package inbound_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/inbound"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
)

// owned makes an organization with one endpoint and one session, claims the session and returns its term.
func owned(t *testing.T, s *store.Store, org fleet.OrgID) fleet.Term {
	t.Helper()
	if _, err := s.GetOrganization(t.Context(), org); err != nil {
		if _, err := s.CreateOrganization(t.Context(), fleet.Organization{ID: org, Strategy: fleet.StrategyWeighted}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.CreateEndpoint(t.Context(), fleet.Endpoint{OrgID: org, Scope: fleet.ScopeOrganization, URL: "https://hooks.example/"}); err != nil {
			t.Fatal(err)
		}
	}
	v, err := s.CreateSession(t.Context(), store.NewSession{Org: org})
	if err != nil {
		t.Fatal(err)
	}
	return claim(t, s, v.ID)
}

func claim(t *testing.T, s *store.Store, id fleet.SessionID) fleet.Term {
	t.Helper()
	terms, _, err := s.ClaimLeases(t.Context(), store.ClaimQuery{Owner: "worker-1/boot", TTL: time.Hour, Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	for _, term := range terms {
		if term.SessionID == id {
			return term
		}
	}
	t.Fatalf("ClaimLeases = %v, want session %s in it", terms, id)
	return fleet.Term{}
}

func handler(t *testing.T, s *store.Store, b bus.Bus) *inbound.Handler {
	t.Helper()
	return inbound.New(inbound.Options{Store: s, Bus: b, Log: testkit.Logger(t), Registerer: prometheus.NewRegistry()})
}

func hello() fleet.Inbound {
	return fleet.Inbound{
		Chat: "5511900000001@s.whatsapp.net", Sender: "5511900000001@s.whatsapp.net", SenderPhone: "5511900000001",
		PushName: "Ana", WAID: "3A01", Kind: "text", Text: "hello", SentAt: time.UnixMilli(1_700_000_000_000).UTC(),
	}
}

// contactOf is the sender of a message as org-a knows them.
func contactOf(t *testing.T, s *store.Store, m fleet.Inbound) store.Known {
	t.Helper()
	k, err := s.Recipient(t.Context(), "org-a", fleet.Recipient{ContactKey: fleet.ContactKey(m.SenderPhone, m.SenderLID)})
	if err != nil || k == nil {
		t.Fatalf("Recipient = %v, %v, want the sender", k, err)
	}
	return *k
}

// told returns the events that the operator's list of deliveries knows, oldest first.
func told(t *testing.T, s *store.Store, org fleet.OrgID) []fleet.Event {
	t.Helper()
	list, err := s.ListDeliveries(t.Context(), store.DeliveryQuery{Org: org, Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	var out []fleet.Event
	for _, d := range slices.Backward(list) {
		ev, err := s.GetEvent(t.Context(), org, d.EventID)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, ev)
	}
	return out
}

func TestAMessageIsStoredAndToldInOneTransactionBeforeHandleReturns(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		term := owned(t, s, "org-a")
		if err := handler(t, s, bus.NewLocal()).Handle(t.Context(), term, "org-a", hello()); err != nil {
			t.Fatal(err)
		}
		events := told(t, s, "org-a")
		if len(events) != 1 {
			t.Fatalf("%d events, want 1", len(events))
		}
		ev := events[0]
		if ev.Kind != fleet.EventMessage || ev.SessionID != term.SessionID || ev.ConversationID == "" || ev.Seq != 1 || ev.Stream != string(ev.ConversationID) {
			t.Errorf("event = %+v, want message on the session's first conversation", ev)
		}
		got, err := s.GetInbound(t.Context(), "org-a", ev.Data.InboundID)
		if err != nil {
			t.Fatal(err)
		}
		want := hello()
		want.ID, want.OrgID, want.SessionID, want.ConversationID, want.ReceivedAt = ev.Data.InboundID, "org-a", term.SessionID, ev.ConversationID, got.ReceivedAt
		want.ContactID = contactOf(t, s, hello()).ID
		if diff := cmp.Diff(want, got); diff != "" || got.ReceivedAt.IsZero() {
			t.Errorf("stored message (-sent +stored):\n%s", diff)
		}
		if _, err := s.GetInbound(t.Context(), "org-b", got.ID); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("GetInbound by another organization = %v, want ErrNotFound", err)
		}
	})
}

func TestTheSameStanzaIsToldOnceHoweverOftenItComes(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		term := owned(t, s, "org-a")
		h := handler(t, s, bus.NewLocal())
		var wg sync.WaitGroup
		for range 32 { // at once
			wg.Go(func() {
				if err := h.Handle(t.Context(), term, "org-a", hello()); err != nil {
					t.Errorf("Handle = %v", err)
				}
			})
		}
		wg.Wait()
		if _, err := s.DB().Exec(t.Context(), `UPDATE leases SET expires_at = 1`); err != nil {
			t.Fatal(err)
		}
		term = claim(t, s, term.SessionID)
		again := hello()
		again.Offline = true
		if err := h.Handle(t.Context(), term, "org-a", again); err != nil { // after a failover
			t.Fatal(err)
		}
		if events := told(t, s, "org-a"); len(events) != 1 {
			t.Errorf("%d events, want 1", len(events))
		}
	})
}

func TestDifferentThingsUnderOneWhatsAppIDAreToldEach(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		term := owned(t, s, "org-a")
		h := handler(t, s, bus.NewLocal())
		about := &fleet.Content{About: hello().WAID}
		for _, change := range []func(m *fleet.Inbound){
			func(*fleet.Inbound) {},
			func(m *fleet.Inbound) { m.Kind, m.Version, m.Content = fleet.KindEdited, 1, about },
			func(m *fleet.Inbound) { m.Kind, m.Version, m.Content = fleet.KindEdited, 2, about },
			func(m *fleet.Inbound) { m.Kind, m.Content = fleet.KindReaction, about },
			func(m *fleet.Inbound) { m.Kind = fleet.KindUnsupported },
			func(m *fleet.Inbound) { m.Chat = "5511900000002@s.whatsapp.net" },
		} {
			m := hello()
			change(&m)
			for range 2 {
				if err := h.Handle(t.Context(), term, "org-a", m); err != nil {
					t.Fatal(err)
				}
			}
		}
		// Acks of a message of ours that happens to have the same id.
		ours := send(t, s, term, hello().WAID)
		for _, status := range []fleet.Status{fleet.StatusDelivered, fleet.StatusDelivered, fleet.StatusRead} {
			if err := h.HandleReceipt(t.Context(), term, fleet.Receipt{SessionID: term.SessionID, WAIDs: []string{ours.WAID}, Status: status, At: time.Now()}); err != nil {
				t.Fatal(err)
			}
		}
		kinds := map[fleet.EventKind]int{}
		seq := map[string]int64{}
		for i, ev := range told(t, s, "org-a") {
			kinds[ev.Kind]++
			if seq[ev.Stream]++; ev.Seq != seq[ev.Stream] {
				t.Errorf("event %d has seq %d, want %d", i, ev.Seq, seq[ev.Stream])
			}
		}
		if kinds[fleet.EventMessage] != 6 || kinds[fleet.EventMessageStatus] != 3 {
			t.Errorf("told %v, want 6 messages, and sent, delivered and read", kinds)
		}
	})
}

// send stores a message of ours.
func send(t *testing.T, s *store.Store, term fleet.Term, waID string) fleet.Message {
	t.Helper()
	project, err := s.DefaultProject(t.Context(), "org-a")
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.CreateMessage(t.Context(), fleet.Message{
		OrgID: "org-a", ProjectID: project, SessionID: term.SessionID, ContactKey: "5511900000001", To: "+5511900000001",
		ToJID: "5511900000001@s.whatsapp.net", Kind: "text", Text: "hi", WAID: waID,
	}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestWhatAMessageIsAboutIsFoundAmongOursAndTheirs(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		term := owned(t, s, "org-a")
		h := handler(t, s, bus.NewLocal())
		ours := send(t, s, term, "3EB0FEED")
		edit, reaction, odd := hello(), hello(), hello()
		edit.WAID, edit.Kind, edit.Version, edit.Content = "3A02", fleet.KindEdited, 7, &fleet.Content{About: hello().WAID}
		reaction.WAID, reaction.Kind, reaction.Text, reaction.Content = "3A03", fleet.KindReaction, "👍", &fleet.Content{About: ours.WAID}
		odd.WAID, odd.Content = "3A04", &fleet.Content{About: "before our time", Options: []string{"a", "b"}}
		for _, m := range []fleet.Inbound{hello(), edit, reaction, odd} {
			if err := h.Handle(t.Context(), term, "org-a", m); err != nil {
				t.Fatal(err)
			}
		}
		events := told(t, s, "org-a")
		for i, want := range []string{"", string(events[0].Data.InboundID), string(ours.ID), ""} {
			sub, err := s.EventSubject(t.Context(), events[i])
			if err != nil || sub.AboutID != want {
				t.Errorf("event %d is about %q, %v, want %q", i, sub.AboutID, err, want)
			}
		}
		got, err := s.GetInbound(t.Context(), "org-a", events[3].Data.InboundID)
		if diff := cmp.Diff(odd.Content, got.Content); diff != "" || err != nil {
			t.Errorf("content (-given +stored), %v:\n%s", err, diff)
		}
	})
}

func TestWithoutEndpointsAMessageIsStoredAndOwedToNobody(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		owned(t, s, "org-a") // has an endpoint
		if _, err := s.CreateOrganization(t.Context(), fleet.Organization{ID: "org-b", Strategy: fleet.StrategyWeighted}); err != nil {
			t.Fatal(err)
		}
		v, err := s.CreateSession(t.Context(), store.NewSession{Org: "org-b"})
		if err != nil {
			t.Fatal(err)
		}
		if err := handler(t, s, bus.NewLocal()).Handle(t.Context(), claim(t, s, v.ID), "org-b", hello()); err != nil {
			t.Fatal(err)
		}
		if list, err := s.ListDeliveries(t.Context(), store.DeliveryQuery{Limit: 10}); err != nil || len(list) != 0 {
			t.Errorf("deliveries = %+v, %v, want none: the other organization's endpoint is not for it", list, err)
		}
		var stored, told int
		err = s.DB().QueryRow(t.Context(), `SELECT (SELECT count(*) FROM inbound_messages WHERE org_id='org-b'), (SELECT count(*) FROM events WHERE org_id='org-b')`).Scan(&stored, &told)
		if err != nil || stored != 1 || told != 1 {
			t.Errorf("%d messages and %d events stored, %v, want 1 and 1", stored, told, err)
		}
	})
}

func TestAnOwnerBeforeWritesNothing(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		stale := owned(t, s, "org-a")
		h := handler(t, s, bus.NewLocal())
		if _, err := s.DB().Exec(t.Context(), `UPDATE leases SET expires_at = 1`); err != nil {
			t.Fatal(err)
		}
		claim(t, s, stale.SessionID)
		for name, call := range map[string]func() error{
			"Handle":              func() error { return h.Handle(t.Context(), stale, "org-a", hello()) },
			"HandleUnprocessable": func() error { return h.HandleUnprocessable(t.Context(), stale, "org-a", hello(), errors.New("x")) },
			"HandleReceipt": func() error {
				return h.HandleReceipt(t.Context(), stale, fleet.Receipt{WAIDs: []string{"3EB0"}, Status: fleet.StatusRead})
			},
		} {
			if err := call(); !errors.Is(err, fleet.ErrLeaseLost) {
				t.Errorf("%s under a term that is over = %v, want ErrLeaseLost", name, err)
			}
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := h.Handle(ended, stale, "org-a", hello()); err == nil {
			t.Error("Handle under an ended context = nil: the stanza would be acknowledged")
		}
		if events := told(t, s, "org-a"); len(events) != 0 {
			t.Errorf("%d events, want none", len(events))
		}
	})
}

func TestNULAndInvalidUTF8DoNotStopAMessage(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		term := owned(t, s, "org-a")
		m := hello()
		m.Text, m.PushName = "a\x00b\xff 👩🏽‍🚀 مرحبا", "A\x00n\xc3a"
		if err := handler(t, s, bus.NewLocal()).Handle(t.Context(), term, "org-a", m); err != nil {
			t.Fatal(err)
		}
		got, err := s.GetInbound(t.Context(), "", told(t, s, "org-a")[0].Data.InboundID)
		if err != nil || got.Text != "ab\uFFFD 👩🏽‍🚀 مرحبا" || got.PushName != "An\uFFFDa" {
			t.Errorf("stored text %q, name %q, %v", got.Text, got.PushName, err)
		}
	})
}

func TestWhatCannotBeHandledIsKeptRaw(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		term := owned(t, s, "org-a")
		m := hello()
		m.Text, m.Raw = "", []byte{1, 2, 0, 255}
		h := handler(t, s, bus.NewLocal())
		for range 2 {
			if err := h.HandleUnprocessable(t.Context(), term, "org-a", m, errors.New("boom")); err != nil {
				t.Fatal(err)
			}
		}
		events := told(t, s, "org-a")
		if len(events) != 1 || events[0].Kind != fleet.EventMessageUnprocessable || events[0].Data.Reason != inbound.ReasonHandlerFailed {
			t.Fatalf("events = %+v, want one message.unprocessable", events)
		}
		got, err := s.GetInbound(t.Context(), "", events[0].Data.InboundID)
		if err != nil || got.Kind != fleet.KindUnprocessable || !cmp.Equal(got.Raw, m.Raw) {
			t.Errorf("stored = %+v, %v, want the raw bytes", got, err)
		}
	})
}

func TestAMessageThatComesUnreadableIsToldAsUnprocessable(t *testing.T) {
	s := storetest.SQLite(t)
	term := owned(t, s, "org-a")
	m := hello()
	m.Kind, m.Text, m.Raw = fleet.KindUnprocessable, "", []byte{1}
	if err := handler(t, s, bus.NewLocal()).Handle(t.Context(), term, "org-a", m); err != nil {
		t.Fatal(err)
	}
	events := told(t, s, "org-a")
	if len(events) != 1 || events[0].Kind != fleet.EventMessageUnprocessable || events[0].Data.Reason != inbound.ReasonUnreadable {
		t.Errorf("events = %+v, want one message.unprocessable that says unreadable", events)
	}
}

func TestAConversationFollowsThePersonAndNotTheSession(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		first, second, foreign := owned(t, s, "org-a"), owned(t, s, "org-a"), owned(t, s, "org-b")
		h := handler(t, s, bus.NewLocal())
		lid := hello()
		lid.SenderPhone, lid.SenderLID, lid.Chat = "", "123456789012345", "123456789012345@lid"
		nobody := hello()
		nobody.SenderPhone, nobody.WAID = "", "3A02"
		for _, m := range []struct {
			term fleet.Term
			org  fleet.OrgID
			m    fleet.Inbound
		}{{first, "org-a", hello()}, {second, "org-a", hello()}, {foreign, "org-b", hello()}, {first, "org-a", lid}, {first, "org-a", nobody}} {
			if err := h.Handle(t.Context(), m.term, m.org, m.m); err != nil {
				t.Fatal(err)
			}
		}
		a, b := told(t, s, "org-a"), told(t, s, "org-b")
		if a[0].ConversationID != a[1].ConversationID || a[1].Seq != 2 {
			t.Errorf("the same person on two sessions: %s seq %d and %s seq %d, want one conversation", a[0].ConversationID, a[0].Seq, a[1].ConversationID, a[1].Seq)
		}
		if b[0].ConversationID == a[0].ConversationID {
			t.Error("two organizations share a conversation")
		}
		if a[2].ConversationID == a[0].ConversationID || a[2].ConversationID == "" {
			t.Errorf("someone known by LID only: conversation %q, want one of their own", a[2].ConversationID)
		}
		if a[3].ConversationID != "" || a[3].Stream != string(first.SessionID) {
			t.Errorf("someone unknown: conversation %q stream %q, want none and the session's stream", a[3].ConversationID, a[3].Stream)
		}
	})
}

func TestAReceiptRaisesAMessageOnceAndNudgesItsWaiters(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		term := owned(t, s, "org-a")
		m := send(t, s, term, fleet.NewWAID())
		b := bus.NewLocal()
		nudges := make(chan string, 10)
		stop, err := b.Subscribe(t.Context(), func(topic, payload string) { nudges <- topic + " " + payload }, bus.TopicMessage, bus.TopicWebhooks)
		if err != nil {
			t.Fatal(err)
		}
		h := handler(t, s, b)
		for _, waIDs := range [][]string{{m.WAID, "not ours"}, {m.WAID}, {"not ours"}} {
			err := h.HandleReceipt(t.Context(), term, fleet.Receipt{SessionID: term.SessionID, WAIDs: waIDs, Status: fleet.StatusDelivered, At: time.Now()})
			if err != nil {
				t.Fatal(err)
			}
		}
		stop()
		if got := (<-nudges); got != bus.TopicWebhooks+" " {
			t.Errorf("first nudge = %q, want webhooks", got)
		}
		if got := (<-nudges); got != bus.TopicMessage+" "+string(m.ID) {
			t.Errorf("second nudge = %q, want message %s", got, m.ID)
		}
		if len(nudges) != 0 {
			t.Errorf("nudges for receipts that changed nothing: %d", len(nudges))
		}
		var delivered []fleet.Event
		for _, ev := range told(t, s, "org-a") {
			if ev.Kind == fleet.EventMessageStatus && ev.Data.Status == fleet.StatusDelivered {
				delivered = append(delivered, ev)
			}
		}
		if len(delivered) != 1 || delivered[0].Data.MessageID != m.ID {
			t.Errorf("events = %+v, want one delivered of %s", delivered, m.ID)
		}
	})
}

// brokenBus fails every publishing.
type brokenBus struct {
	bus.Bus
	tried int
}

func (b *brokenBus) Publish(context.Context, string, string) error {
	b.tried++
	return errors.New("no server")
}

func TestNudgesGoBesideTheHandlerThatIsToldWhere(t *testing.T) {
	s := storetest.SQLite(t)
	term := owned(t, s, "org-a")
	m := send(t, s, term, fleet.NewWAID())
	b := &brokenBus{}
	h := handler(t, s, b)
	var got []string
	h.NudgeThrough(func(topic, payload string) { got = append(got, topic+" "+payload) })
	if err := h.HandleReceipt(t.Context(), term, fleet.Receipt{SessionID: term.SessionID, WAIDs: []string{m.WAID}, Status: fleet.StatusDelivered, At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if err := h.Handle(t.Context(), term, "org-a", hello()); err != nil {
		t.Fatal(err)
	}
	want := []string{bus.TopicWebhooks + " ", bus.TopicMessage + " " + string(m.ID), bus.TopicWebhooks + " org-a"}
	if !slices.Equal(got, want) || b.tried != 0 {
		t.Errorf("nudges = %q and the bus was asked %d times, want %q and never", got, b.tried, want)
	}
}

func TestABusThatIsDownCostsNoMessage(t *testing.T) {
	s := storetest.SQLite(t)
	term := owned(t, s, "org-a")
	b := &brokenBus{}
	if err := handler(t, s, b).Handle(t.Context(), term, "org-a", hello()); err != nil || b.tried != 1 {
		t.Errorf("Handle without a bus = %v after %d nudges, want nil after one: the message is stored", err, b.tried)
	}
}
