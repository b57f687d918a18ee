package wa_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/wa"
	"github.com/wafleet/wafleet/internal/wasim"
)

func TestPairingByQRStoresTheDeviceAndTheLoginIsTheNextGeneration(t *testing.T) {
	pn := fresh()
	n := shared.paired(t, pn)
	if es := shared.sim.Log(wasim.Query{Session: pn, Kind: wasim.KindLogin}); len(es) != 0 {
		t.Errorf("the pairing generation logged in %d times, want 0", len(es))
	}
	g := n.online()
	if !g.sock.Ready() {
		t.Error("Ready() = false after Handler.Ready")
	}
	if es := shared.log(t, 1, wasim.Query{Session: pn, Kind: wasim.KindLogin}); len(es) != 1 || es[0].Generation != 2 {
		t.Errorf("logins = %+v, want one, of generation 2", es)
	}
	g.stop()
	if g.sock.Ready() {
		t.Error("Ready() = true after the end")
	}
}

func TestPairingByPhoneCode(t *testing.T) {
	pn := fresh()
	n := shared.number(t, pn)
	g := n.start(func(o *wa.Options) {
		o.Pair = &wa.PairRequest{Method: fleet.PairCode, Phone: pn, Until: time.Now().Add(time.Minute)}
	})
	code := take(t, g.code)
	if err := shared.sim.Phone(pn).EnterCode(t.Context(), code); err != nil {
		t.Fatalf("EnterCode(%q) = %v", code, err)
	}
	p := take(t, g.paired)
	if p.Phone != pn || p.LID != shared.sim.Phone(pn).LID().User || p.Platform == "" {
		t.Errorf("Paired = %+v, want phone %s and LID %s", p, pn, shared.sim.Phone(pn).LID().User)
	}
	if e := g.end(); e.Reason != wa.ReasonPaired {
		t.Fatalf("Run = %v, want %s", e, wa.ReasonPaired)
	}
	n.learn(p)
	n.online()
}

func TestAPairingCodeThatWhatsAppRefusesEndsTheAttemptAndTheNextOneWorks(t *testing.T) {
	pn := fresh()
	n := shared.number(t, pn)
	ask := func() *generation {
		return n.start(func(o *wa.Options) {
			o.Pair = &wa.PairRequest{Method: fleet.PairCode, Phone: pn, Until: time.Now().Add(time.Minute)}
		})
	}
	for _, code := range []int{400, 429} {
		shared.sim.SetFault(wasim.Scope{Session: pn}, wasim.Fault{LinkCode: code})
		if e := ask().end(); e.Reason != wa.ReasonPairFailed || e.Err == nil || !strings.Contains(e.Err.Error(), fmt.Sprint(code)) {
			t.Errorf("Run = %v, want %s with %d", e, wa.ReasonPairFailed, code)
		}
	}
	shared.sim.SetFault(wasim.Scope{Session: pn}, wasim.Fault{})
	g := ask()
	if err := shared.sim.Phone(pn).EnterCode(t.Context(), take(t, g.code)); err != nil {
		t.Fatal(err)
	}
	if e := g.end(); e.Reason != wa.ReasonPaired {
		t.Errorf("Run = %v, want %s", e, wa.ReasonPaired)
	}
}

func TestANumberThatIsInUseIsRefusedWhilePairing(t *testing.T) {
	pn := fresh()
	n := shared.number(t, pn)
	g := n.start(func(o *wa.Options) {
		o.Pair = &wa.PairRequest{Method: fleet.PairQR, Until: time.Now().Add(time.Minute)}
		o.Handler.AcceptPair = func(_ context.Context, phone string) error {
			if phone != pn {
				t.Errorf("AcceptPair got %q, want %q", phone, pn)
			}
			return fleet.ErrNumberInUse
		}
	})
	_ = shared.sim.Phone(pn).ScanQR(t.Context(), take(t, g.qr))
	if e := g.end(); e.Reason != wa.ReasonPairFailed || !errors.Is(e.Err, fleet.ErrNumberInUse) {
		t.Errorf("Run = %v, want %s with ErrNumberInUse", e, wa.ReasonPairFailed)
	}
	if ds, err := n.keys.GetAllDevices(t.Context()); err != nil || len(ds) != 0 {
		t.Errorf("stored devices = %d, %v, want none", len(ds), err)
	}
}

func TestPairingEndsWhenItsTimeIsOver(t *testing.T) {
	n := shared.number(t, fresh())
	g := n.start(func(o *wa.Options) {
		o.Pair = &wa.PairRequest{Method: fleet.PairQR, Until: time.Now().Add(200 * time.Millisecond)}
	})
	if e := g.end(); e.Reason != wa.ReasonPairExpired {
		t.Errorf("Run = %v, want %s", e, wa.ReasonPairExpired)
	}
}

func TestADeviceNeverPairsUnasked(t *testing.T) {
	pn := fresh()
	n := shared.number(t, pn)
	if e := n.start().end(); e.Reason != wa.ReasonPairFailed {
		t.Errorf("Run without login and without request = %v, want %s", e, wa.ReasonPairFailed)
	}
	if es := shared.sim.Log(wasim.Query{SessionID: "session-" + pn}); len(es) != 0 {
		t.Errorf("the simulator saw %v, want no dial", kinds(es))
	}
	n = shared.paired(t, pn)
	g := n.start(func(o *wa.Options) { o.Pair = &wa.PairRequest{Method: fleet.PairQR} })
	if e := g.end(); e.Reason != wa.ReasonPairFailed {
		t.Errorf("Run with login and a request = %v, want %s", e, wa.ReasonPairFailed)
	}
}

func TestATextIsSentDeliveredReadAndAnswered(t *testing.T) {
	pn, contact := fresh(), fresh()
	n := shared.paired(t, pn)
	g := n.online()
	phone := shared.sim.Phone(contact)
	if err := phone.SetPushName("Contact"); err != nil {
		t.Fatal(err)
	}
	if err := g.send(contact, "3EB0A1", "hello"); err != nil {
		t.Fatalf("Send = %v", err)
	}
	got, err := phone.Wait(t.Context(), func(r wasim.Received) bool { return r.ID == "3EB0A1" })
	if err != nil || got.Text != "hello" {
		t.Fatalf("the phone got %+v, %v, want hello", got, err)
	}
	if r := take(t, g.receipts); r.Status != fleet.StatusDelivered || !cmp.Equal(r.WAIDs, []string{"3EB0A1"}) ||
		r.SessionID != fleet.SessionID("session-"+pn) || r.At.IsZero() {
		t.Errorf("Receipt = %+v, want delivered for 3EB0A1", r)
	}
	if err := phone.MarkRead(t.Context(), "3EB0A1"); err != nil {
		t.Fatal(err)
	}
	if r := take(t, g.receipts); r.Status != fleet.StatusRead || !cmp.Equal(r.WAIDs, []string{"3EB0A1"}) {
		t.Errorf("Receipt = %+v, want read for 3EB0A1", r)
	}

	id, err := phone.SendText(t.Context(), pn, "hello\x00 back")
	if err != nil {
		t.Fatal(err)
	}
	m := take(t, g.messages)
	if m.WAID != id || m.Kind != "text" || m.Text != "hello back" || m.SenderPhone != contact ||
		m.SenderLID != phone.LID().User || m.PushName != "Contact" || m.SessionID != fleet.SessionID("session-"+pn) || m.SentAt.IsZero() {
		t.Errorf("Message = %+v, want %q from %s (%s)", m, "hello back", contact, phone.LID())
	}
	// WhatsApp is told: the delivery receipt, as a client that is not in the foreground.
	es := shared.log(t, 1, wasim.Query{Session: pn, Kind: wasim.KindReceipt, Dir: wasim.DirIn, ID: id})
	if es[0].Type != "inactive" {
		t.Errorf("receipt for the inbound message has type %q, want inactive", es[0].Type)
	}
	if err := g.sock.MarkRead(t.Context(), m.Chat, m.Sender, []string{m.WAID}, time.Now()); err != nil {
		t.Fatalf("MarkRead = %v", err)
	}
	es = shared.log(t, 2, wasim.Query{Session: pn, Kind: wasim.KindReceipt, Dir: wasim.DirIn, ID: id})
	if es[1].Type != "read" {
		t.Errorf("receipt after MarkRead has type %q, want read", es[1].Type)
	}
}

func TestWhatWhatsAppHeldIsMarkedOfflineAndThenTheQueueIsDone(t *testing.T) {
	pn, contact := fresh(), fresh()
	n := shared.paired(t, pn)
	g := n.online()
	take(t, g.offline)
	g.stop()
	phone := shared.sim.Phone(contact)
	for _, text := range []string{"one", "two"} {
		if _, err := phone.SendText(t.Context(), pn, text); err != nil {
			t.Fatal(err)
		}
	}
	g = n.online()
	for _, want := range []string{"one", "two"} {
		if m := take(t, g.messages); m.Text != want || !m.Offline {
			t.Errorf("Message = %q offline %v, want %q offline", m.Text, m.Offline, want)
		}
	}
	take(t, g.offline)
	if _, err := phone.SendText(t.Context(), pn, "three"); err != nil {
		t.Fatal(err)
	}
	if m := take(t, g.messages); m.Text != "three" || m.Offline {
		t.Errorf("Message = %q offline %v, want three, not offline", m.Text, m.Offline)
	}
}

func TestARetryReceiptIsAnsweredAfterATakeover(t *testing.T) {
	pn, contact := fresh(), fresh()
	n := shared.paired(t, pn)
	phone := shared.sim.Phone(contact)
	g := n.online()
	if err := g.send(contact, "3EB0B1", "again please"); err != nil {
		t.Fatalf("Send = %v", err)
	}
	if _, err := phone.Wait(t.Context(), func(r wasim.Received) bool { return r.ID == "3EB0B1" }); err != nil {
		t.Fatal(err)
	}
	take(t, g.receipts)
	n.settled()
	g.stop() // whatsmeow's own memory of the message is gone

	refuse := n.online(func(o *wa.Options) {
		o.Handler.AllowRetry = func(context.Context, string) bool { return false }
	})
	if err := phone.AskRetry("3EB0B1"); err != nil {
		t.Fatal(err)
	}
	// The refusal is the end of it: the receipt is acknowledged and nothing is sent.
	shared.entry(t, wasim.Query{Session: pn, Kind: wasim.KindReceipt, Dir: wasim.DirOut, ID: "3EB0B1"},
		func(e wasim.Entry) bool { return e.Type == "retry" })
	n.settled()
	if es := n.framesOf("3EB0B1"); len(es) != 1 {
		t.Errorf("frames after a refused retry = %d, want 1", len(es))
	}
	refuse.stop()

	g = n.online()
	if err := phone.AskRetry("3EB0B1"); err != nil {
		t.Fatal(err)
	}
	es := shared.log(t, 2, wasim.Query{Session: pn, Kind: wasim.KindMessage, Dir: wasim.DirIn, ID: "3EB0B1"})
	if es[1].Retry == 0 {
		t.Errorf("second frame = %+v, want an answer to a retry receipt", es[1])
	}
	again, err := phone.Wait(t.Context(), func(r wasim.Received) bool { return r.ID == "3EB0B1" && r.Duplicate })
	if err != nil || again.Text != "again please" {
		t.Errorf("the phone got %+v, %v, want the same text once more", again, err)
	}
	if g.asked.Load() != 1 || g.retries.Load() != 1 {
		t.Errorf("Payload was called %d times and AllowRetry %d times, want once each", g.asked.Load(), g.retries.Load())
	}
}

func TestLogoutUnlinksTheDeviceAndDeletesIt(t *testing.T) {
	pn := fresh()
	n := shared.paired(t, pn)
	g := n.online()
	if err := g.sock.Logout(t.Context()); err != nil {
		t.Fatalf("Logout = %v", err)
	}
	if e := g.end(); e.Reason != wa.ReasonStopped {
		t.Errorf("Run after Logout = %v, want %s", e, wa.ReasonStopped)
	}
	if ds := shared.sim.Phone(pn).Devices(); len(ds) != 0 {
		t.Errorf("devices on the phone = %v, want none", ds)
	}
	if d, err := n.keys.GetDevice(t.Context(), n.jid); err != nil || d != nil {
		t.Errorf("GetDevice = %v, %v, want it deleted", d, err)
	}
}

func TestTheOwnNameIsTold(t *testing.T) {
	pn := fresh()
	if err := shared.sim.Phone(pn).SetPushName("First"); err != nil {
		t.Fatal(err)
	}
	n := shared.paired(t, pn)
	g := n.online()
	if name := take(t, g.names); name != "First" {
		t.Errorf("PushName = %q, want First", name)
	}
	if err := shared.sim.Phone(pn).SetPushName("Second"); err != nil {
		t.Fatal(err)
	}
	if name := take(t, g.names); name != "Second" {
		t.Errorf("PushName = %q, want Second", name)
	}
}

func TestFramesCarryTheTermInSimulatedMode(t *testing.T) {
	pn, contact := fresh(), fresh()
	n := shared.paired(t, pn)
	g := n.online()
	shared.sim.Phone(contact)
	if err := g.send(contact, "3EB0C1", "hello"); err != nil {
		t.Fatalf("Send = %v", err)
	}
	e := n.framesOf("3EB0C1")[0]
	if e.Worker != "worker-1.boot" || e.SessionID != "session-"+pn || e.Epoch != 7 || e.Generation != 2 {
		t.Errorf("frame = worker %q session %q epoch %d generation %d, want worker-1.boot session-%s 7 2",
			e.Worker, e.SessionID, e.Epoch, e.Generation, pn)
	}
}

func TestAMessageAddressedByLIDKnowsItsSendersNumber(t *testing.T) {
	pn, contact := fresh(), fresh()
	n := shared.paired(t, pn)
	g := n.online()
	phone := shared.sim.Phone(contact)
	if _, err := phone.SendText(t.Context(), shared.sim.Phone(pn).LID().String(), "to your LID"); err != nil {
		t.Fatal(err)
	}
	m := take(t, g.messages)
	if m.Text != "to your LID" || m.SenderPhone != contact || m.SenderLID != phone.LID().User || m.Chat != phone.LID().String() {
		t.Errorf("Message = %+v, want it from %s (%s), in the chat of the LID", m, contact, phone.LID())
	}
	// The answer goes to the LID as well.
	raw, err := wa.BuildText("to yours")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.sock.Send(t.Context(), wa.Outgoing{JID: m.Chat, WAID: "3EB0D1", Payload: raw}); err != nil {
		t.Fatalf("Send to %s = %v", m.Chat, err)
	}
	if r, err := phone.Wait(t.Context(), func(r wasim.Received) bool { return r.ID == "3EB0D1" }); err != nil || r.Text != "to yours" {
		t.Errorf("the phone got %+v, %v", r, err)
	}
}

func TestRunReturnsAfterItsHandlersAndCallsNoneLater(t *testing.T) {
	pn, contact := fresh(), fresh()
	n := shared.paired(t, pn)
	inside, left := make(chan struct{}), make(chan struct{})
	g := n.online(func(o *wa.Options) {
		o.Handler.Message = func(ctx context.Context, _ fleet.Inbound) error {
			close(inside)
			<-ctx.Done() // as a transaction would be cancelled
			close(left)
			return ctx.Err()
		}
	})
	id, err := shared.sim.Phone(contact).SendText(t.Context(), pn, "hold")
	if err != nil {
		t.Fatal(err)
	}
	take(t, inside)
	g.stop()
	select {
	case <-left:
	default:
		t.Error("Run returned while a handler was running")
	}
	if _, err := shared.sim.Phone(contact).SendText(t.Context(), pn, "later"); err != nil {
		t.Fatal(err)
	}
	g = n.online()
	if m := take(t, g.messages); m.WAID != id {
		t.Errorf("Message = %s, want %s once more, first", m.WAID, id)
	}
	if m := take(t, g.messages); m.Text != "later" {
		t.Errorf("Message = %q, want later", m.Text)
	}
}
