package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/wasim"
	"github.com/wafleet/wafleet/internal/wasim/memnet"
)

func (w *world) write(from, to, text string) string {
	w.t.Helper()
	id, err := w.sim.Phone(from).SendText(w.t.Context(), to, text)
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

func TestAnInboundMessageBecomesOneEvent(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		id := w.write(person1, number1, "hi there")
		w.await("an event", func() bool { return w.came() == 1 })
		m := w.inbound()[0]
		if m.Text != "hi there" || m.SenderPhone != person1 || m.WAID != id || m.SessionID != s.ID || m.Offline {
			t.Errorf("stored %+v, want the live text from %s under %s", m, person1, id)
		}
		w.await("the ack", func() bool { return w.sim.Pending(number1, 1) == 0 })
	})
}

func TestARepeatedStanzaIsOneEvent(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.start("w1")
		s := w.paired(number1)
		w.write(person1, number1, "once")
		w.await("an event", func() bool { return w.came() == 1 })
		repeat := func() {
			w.t.Helper()
			if !w.sim.Repeat(number1, 1) {
				w.t.Error("there was nothing to repeat")
			}
			w.sleep(time.Second)
		}
		repeat()
		repeat()
		for range 2 { // over reconnects
			w.sim.Drop(number1, 1)
			w.sleep(time.Minute)
			repeat()
		}
		p.stop() // and a failover
		w.start("w2")
		w.await("the new owner", func() bool {
			return w.row(s.ID).LeaseOwner == "w2/1" && w.row(s.ID).Observed == fleet.ObservedConnected
		})
		repeat()
		w.sleep(time.Minute)
		if n := w.came(); n != 1 {
			t.Errorf("%d events for one message", n)
		}
	})
}

// What WhatsApp queued while we were down is live, not history.
func TestWhatWaitedWhileWeWereDownArrivesInOrder(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.start("w1")
		w.paired(number1)
		p.stop()
		for i := range 50 {
			w.write(person1, number1, fmt.Sprint("queued ", i))
			w.sleep(time.Second)
		}
		w.start("w2")
		w.await("all events", func() bool { return w.came() >= 50 })
		w.sleep(time.Minute)
		got := w.inbound()
		if len(got) != 50 {
			t.Fatalf("%d events, want 50", len(got))
		}
		for i, m := range got {
			if m.Text != fmt.Sprint("queued ", i) || !m.Offline {
				t.Fatalf("event %d is %q (offline %v), want queued %d, offline", i, m.Text, m.Offline, i)
			}
		}
	})
}

// Rule 3: an infrastructure error while receiving ends the generation before whatsmeow acks or asks
// for a retry; WhatsApp delivers again.
func TestAStoreErrorOnReceiveIsNeverAcked(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.start("w1", func(o *Options) { o.TTL = 5 * time.Minute })
		w.paired(number1)
		w.sleep(10 * time.Second)
		p.gate.fail(errors.New("disk on fire"))
		id := w.write(person1, number1, "precious")
		w.sleep(20 * time.Second)
		for _, e := range w.sim.Log(wasim.Query{Session: number1, ID: id, Dir: wasim.DirIn}) {
			t.Errorf("the session answered %s %q for a message it could not store", e.Kind, e.Type)
		}
		p.gate.fail(nil)
		w.await("the event", func() bool { return w.came() == 1 })
		if m := w.inbound()[0]; m.Text != "precious" {
			t.Errorf("stored %q, want precious", m.Text)
		}
		w.sleep(time.Minute)
		if n := w.came(); n != 1 {
			t.Errorf("%d events for one message", n)
		}
	})
}

// A full disk is a store error like another: nothing is acknowledged that is not stored, and nothing that
// waits to be sent is lost or doubled.
func TestAFullDiskLosesAndDoublesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.start("w1")
		s := w.paired(number1)
		w.sleep(10 * time.Second)
		large := strings.Repeat("x", 20_000) // no page has room for it
		p.gate.fill(true)
		var sent []fleet.MessageID
		for i := range 5 {
			w.write(person1, number1, fmt.Sprint("in", i, large))
			sent = append(sent, w.send(s, person1, fmt.Sprint("out", i, large)))
			w.sleep(5 * time.Second)
		}
		w.sleep(time.Minute)
		if n := len(w.inbound()); n != 0 {
			t.Errorf("%d messages stored on a full disk, want none: the test proves nothing", n)
		}
		if n := len(w.sim.Log(wasim.Query{Session: number1, Kind: wasim.KindMessage, Dir: wasim.DirIn})); n != 0 {
			t.Errorf("%d frames left that could not be claimed", n)
		}
		p.gate.fill(false)
		for i, id := range sent {
			w.awaitFor(5*time.Minute, fmt.Sprint("message ", i), func() bool { return w.message(id).Status == fleet.StatusDelivered })
		}
		w.awaitFor(5*time.Minute, "what came in", func() bool { return len(w.inbound()) == 5 })
		w.sleep(10 * time.Minute)
		seen := map[string]int{}
		for _, m := range w.inbound() {
			seen[m.Text]++
		}
		for _, text := range w.texts(person1) {
			seen[text]++
		}
		for i := range 5 {
			for _, dir := range []string{"in", "out"} {
				if n := seen[fmt.Sprint(dir, i, large)]; n != 1 {
					t.Errorf("%s%d was seen %d times, want once", dir, i, n)
				}
			}
		}
		if r := w.row(s.ID); r.Observed != fleet.ObservedConnected || r.DeviceJID != s.DeviceJID {
			t.Errorf("the session is %s as %s, want connected as %s", r.Observed, r.DeviceJID, s.DeviceJID)
		}
	})
}

func TestACrashBetweenReceiveAndCommitLosesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p1 := w.start("w1")
		s := w.paired(number1)
		for i := range 10 {
			w.write(person1, number1, fmt.Sprint("m", i))
			if i == 5 {
				p1.crash()
			}
			w.sleep(200 * time.Millisecond)
		}
		w.start("w2")
		w.await("the new owner", func() bool { return w.row(s.ID).LeaseOwner == "w2/1" })
		w.await("all events", func() bool { return w.came() >= 10 })
		w.sleep(time.Minute)
		seen := map[string]int{}
		for _, m := range w.inbound() {
			seen[m.Text]++
		}
		for i := range 10 {
			if n := seen[fmt.Sprint("m", i)]; n != 1 {
				t.Errorf("m%d has %d events, want one", i, n)
			}
		}
	})
}

// Only deterministic failures of our own code count, per stanza, over generations; after three the
// stanza is kept raw and acknowledged.
func TestAStanzaThatOurCodeCannotHandleIsKeptRawAfterThreeTries(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.start("w1")
		w.paired(number1)
		tries := 0
		handle := p.worker.handle
		p.worker.handle = func(ctx context.Context, term fleet.Term, org fleet.OrgID, m fleet.Inbound) error {
			if m.Text == "poison" {
				tries++
				panic("this text breaks us")
			}
			return handle(ctx, term, org, m)
		}
		w.write(person1, number1, "poison")
		w.await("the raw event", func() bool { return len(w.events(fleet.EventMessageUnprocessable)) == 1 })
		if tries != strikeLimit {
			t.Errorf("tried %d times, want %d", tries, strikeLimit)
		}
		w.write(person1, number1, "fine")
		w.await("the next message", func() bool { return w.came() == 1 })
		w.await("the acks", func() bool { return w.sim.Pending(number1, 1) == 0 })
	})
}

func TestASilentSocketIsReplacedAndNothingIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		w.sleep(2 * time.Minute)
		before := len(w.logins(number1))
		w.sim.Mute(number1, 1)
		muted := time.Now()
		w.write(person1, number1, "are you there")
		w.awaitFor(3*time.Minute, "a new login", func() bool { return len(w.logins(number1)) > before })
		if d := w.logins(number1)[before].At.Sub(muted); d > 90*time.Second {
			t.Errorf("a silent socket lived %v, want at most 90 s", d)
		}
		w.await("the message", func() bool { return w.came() == 1 })
		w.sleep(30 * time.Second)
		if n := w.came(); n != 1 {
			t.Errorf("%d events for one message", n)
		}
		if w.row(s.ID).Observed != fleet.ObservedConnected {
			t.Errorf("session is %s, want connected", w.row(s.ID).Observed)
		}
	})
}

func TestAReceiptThatComesBeforeTheAckCounts(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		w.sim.Phone(person1)
		// The ack to this recipient is slow; the receipt is not.
		w.sim.SetFault(wasim.Scope{Session: number1, Recipient: person1}, wasim.Fault{Latency: 3 * time.Second})
		var ids []fleet.MessageID
		for i := range 20 {
			ids = append(ids, w.send(s, person1, fmt.Sprint(i)))
		}
		for _, id := range ids {
			w.awaitStatus(id, fleet.StatusDelivered)
		}
	})
}

func TestABlackHoleIsNoticed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		w.sim.Phone(person1)
		w.net.Each("w1", func(l *memnet.Link) { l.BlackHole(true) })
		id := w.send(s, person1, "into the void")
		w.awaitFor(5*time.Minute, "delivery over a new socket", func() bool { return w.message(id).Status == fleet.StatusDelivered })
		if got := w.texts(person1); len(got) != 1 {
			t.Errorf("the person sees %q, want one message", got)
		}
	})
}
