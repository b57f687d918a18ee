package worker

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mau.fi/whatsmeow/proto/waCommon"
	"go.mau.fi/whatsmeow/proto/waE2E"
	"go.mau.fi/whatsmeow/types"
	"google.golang.org/protobuf/proto"

	"github.com/wafleet/wafleet/internal/fleet"
)

// What comes in and must not be lost, doubled or put out of order.

var errDisk = errors.New("disk on fire")

// once checks that every text has exactly one event, and that seq has no gap.
func (w *world) once(want []string) {
	w.t.Helper()
	seen, seq := map[string]int{}, map[string]int64{}
	for _, m := range w.inbound() {
		seen[m.Text]++
	}
	for _, text := range want {
		if seen[text] != 1 {
			w.t.Errorf("%q has %d events, want one", text, seen[text])
		}
	}
	if len(seen) != len(want) {
		w.t.Errorf("%d different texts came, want %d", len(seen), len(want))
	}
	for _, e := range w.events(fleet.EventMessage) {
		if seq[e.Stream]++; e.Seq != seq[e.Stream] {
			w.t.Errorf("stream %s: seq %d after %d", e.Stream, e.Seq, seq[e.Stream]-1)
		}
	}
}

// The database fails at the first call that a message needs, then at the second, and so on through its
// whole way from the socket to the ack: at none of them is it lost or told twice.
func TestReceivingMayFailAtEveryCallOfTheDatabase(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.start("w1", func(o *Options) { o.TTL = 5 * time.Minute })
		w.paired(number1)
		w.write(person1, number1, "first") // the chat's keys are there now
		var texts []string
		for n := 1; ; n++ {
			w.sleep(5 * time.Second)
			p.gate.onCall(n, "", func() { p.gate.fail(errDisk) })
			text := fmt.Sprint("fails at call ", n)
			texts = append(texts, text)
			w.write(person1, number1, text)
			w.sleep(400 * time.Millisecond) // less than it takes until the worker looks for other work
			through := p.gate.untripped()
			p.gate.onCall(0, "", nil)
			w.sleep(time.Second)
			p.gate.fail(nil)
			w.await(text, func() bool { return w.came() > n })
			w.await("its ack", func() bool { return w.sim.Pending(number1, 1) == 0 })
			if through {
				t.Logf("a message takes fewer than %d calls", n)
				break
			}
		}
		w.once(append(texts, "first"))
	})
}

// What WhatsApp queued while we were down comes whole, in order per chat and marked as offline, also when
// the worker dies in the middle of it.
func TestACrashInTheMiddleOfTheOfflineQueueLosesAndDoublesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.start("w1", func(o *Options) { o.TTL = 5 * time.Second })
		w.paired(number1)
		p.stop()
		var texts []string
		for i := range 50 {
			text := fmt.Sprintf("%02d", i)
			texts = append(texts, text)
			w.write([]string{person1, person2}[i%2], number1, text)
			w.sleep(time.Second)
		}
		p = w.start("w2", func(o *Options) { o.TTL = 5 * time.Second })
		p.gate.onCall(20, "INSERT INTO inbound_messages", p.crash)
		w.await("the crash", func() bool { return !p.gate.untripped() })
		w.start("w3", func(o *Options) { o.TTL = 5 * time.Second })
		w.await("all events", func() bool { return w.came() >= 50 })
		w.sleep(time.Minute)
		w.once(texts)
		last := map[string]string{}
		for _, m := range w.inbound() {
			if !m.Offline {
				t.Errorf("%s is told as live", m.Text)
			}
			if m.Text <= last[m.Chat] {
				t.Errorf("%s came after %s in one chat", m.Text, last[m.Chat])
			}
			last[m.Chat] = m.Text
		}
	})
}

// Nothing between receive and commit drops: while the database hangs, messages stay with WhatsApp.
func TestADatabaseThatHangsForAMinuteLosesNothingAndPilesNothingUp(t *testing.T) {
	for name, ttl := range map[string]time.Duration{"the term ends meanwhile": 30 * time.Second, "the term outlives it": 5 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				p := w.start("w1", func(o *Options) { o.TTL = ttl })
				w.paired(number1)
				w.write(person1, number1, "before")
				w.await("an event", func() bool { return w.came() == 1 })
				before := runtime.NumGoroutine()
				p.gate.freeze()
				texts := []string{"before"}
				for i := range 60 {
					texts = append(texts, fmt.Sprintf("%03d", i))
					w.write(person1, number1, texts[i+1])
					w.sleep(time.Second)
				}
				if n := runtime.NumGoroutine(); n > before+20 {
					t.Errorf("%d goroutines while 60 messages wait, %d before", n, before)
				}
				if n := w.came(); n != 1 {
					t.Fatalf("%d events while the database hangs", n)
				}
				p.gate.open()
				w.await("all events", func() bool { return w.came() >= len(texts) })
				w.sleep(time.Minute)
				w.once(texts)
				for i, m := range w.inbound() {
					if m.Text != texts[i] {
						t.Fatalf("event %d is %q, want %q", i, m.Text, texts[i])
					}
				}
			})
		})
	}
}

// A handler does one short transaction: with a database that takes 2 ms a call it stays under 50 ms, and
// WhatsApp's pings are answered all the while.
func TestAFloodOnOneSessionDelaysNeitherPingsNorAnotherSession(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		reg := prometheus.NewRegistry()
		p := w.start("w1", func(o *Options) { o.Registerer = reg })
		w.paired(number1)
		b := w.paired(number2)
		w.sim.Phone(person2)
		if _, err := w.st.CreateEndpoint(t.Context(), fleet.Endpoint{OrgID: w.org, Scope: fleet.ScopeOrganization, URL: "https://hangs.example/"}); err != nil {
			t.Fatal(err)
		}
		p.gate.setSlow(2 * time.Millisecond)
		for i := range 60 {
			w.write(person1, number1, fmt.Sprint(i))
		}
		from := time.Now()
		w.awaitStatus(w.send(b, person2, "beside the flood"), fleet.StatusDelivered)
		if d := time.Since(from); d > 2*time.Second {
			t.Errorf("another session's send took %v", d)
		}
		w.await("all events", func() bool { return w.came() == 60 })
		w.sleep(2 * time.Minute) // several pings
		p.gate.setSlow(0)
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, f := range families {
			switch f.GetName() {
			case "wafleet_wa_handler_duration_seconds":
				for _, m := range f.GetMetric() {
					if m.GetLabel()[0].GetValue() != "message" {
						continue
					}
					found++
					for _, bucket := range m.GetHistogram().GetBucket() {
						if bucket.GetUpperBound() == .05 && bucket.GetCumulativeCount() != 60 {
							t.Errorf("%d of 60 messages were handled within 50 ms", bucket.GetCumulativeCount())
						}
					}
				}
			case "wafleet_wa_ping_timeouts_total":
				found++
				if n := f.GetMetric()[0].GetCounter().GetValue(); n != 0 {
					t.Errorf("%v pings were not answered in time", n)
				}
			}
		}
		if found != 2 {
			t.Errorf("%d of the two metrics were found", found)
		}
	})
}

// A message, its edit, a reaction to it and its revocation are four events, each once, and each says what
// it is about.
func TestWhatHappensToAMessageIsToldEachUnderItsOwnType(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		phone := w.sim.Phone(person1)
		to := types.NewJID(number1, types.DefaultUserServer)
		ours := w.send(s, person1, "yours")
		w.awaitStatus(ours, fleet.StatusDelivered)
		theirs := w.write(person1, number1, "mine")
		key := func(id string) *waCommon.MessageKey {
			return &waCommon.MessageKey{ID: proto.String(id), FromMe: proto.Bool(true)}
		}
		for _, m := range []*waE2E.Message{
			{EditedMessage: &waE2E.FutureProofMessage{Message: &waE2E.Message{ProtocolMessage: &waE2E.ProtocolMessage{
				Type: waE2E.ProtocolMessage_MESSAGE_EDIT.Enum(), Key: key(theirs), TimestampMS: proto.Int64(7),
				EditedMessage: &waE2E.Message{Conversation: proto.String("mine, mended")},
			}}}},
			{ReactionMessage: &waE2E.ReactionMessage{Key: key(w.message(ours).WAID), Text: proto.String("👍")}},
			{ProtocolMessage: &waE2E.ProtocolMessage{Type: waE2E.ProtocolMessage_REVOKE.Enum(), Key: key(theirs)}},
			{ProtocolMessage: &waE2E.ProtocolMessage{Type: waE2E.ProtocolMessage_EPHEMERAL_SETTING.Enum()}}, // tells nothing
		} {
			if _, err := phone.Send(t.Context(), to, m); err != nil {
				t.Fatal(err)
			}
			w.sleep(time.Second)
			w.sim.Repeat(number1, 1)
			w.sleep(time.Second)
		}
		w.await("the acks", func() bool { return w.sim.Pending(number1, 1) == 0 })
		events := w.events(fleet.EventMessage)
		if len(events) != 4 {
			t.Fatalf("%d events, want 4", len(events))
		}
		mine := string(events[0].Data.InboundID)
		for i, want := range []struct{ kind, text, about string }{
			{fleet.KindText, "mine", ""},
			{fleet.KindEdited, "mine, mended", mine},
			{fleet.KindReaction, "👍", string(ours)},
			{fleet.KindRevoked, "", mine},
		} {
			sub, err := w.st.EventSubject(t.Context(), events[i])
			if err != nil {
				t.Fatal(err)
			}
			if m := sub.Inbound; m.Kind != want.kind || m.Text != want.text || sub.AboutID != want.about {
				t.Errorf("event %d is %s %q about %q, want %+v", i, m.Kind, m.Text, sub.AboutID, want)
			}
		}
	})
}
