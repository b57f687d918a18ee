package wa_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/wa"
	"github.com/wafleet/wafleet/internal/wasim"
)

var errStore = errors.New("the database is away")

// Rule 1 of "whatsmeow swallows errors".
func TestAStoreErrorInsideASendCancelsThatSendOnly(t *testing.T) {
	pn, contact := fresh(), fresh()
	shared.sim.Phone(contact)
	n := shared.paired(t, pn)
	g := n.online()
	for i, tt := range []struct {
		op      string
		outcome fleet.Outcome
	}{
		{"GetManySessions", fleet.OutcomeNothing},
		{"PutIdentity", fleet.OutcomeNothing}, // the one whatsmeow skips a device for
		{"PutManySessions", fleet.OutcomeNothing},
		{"GetPrivacyToken", fleet.OutcomeUnknown}, // after the sessions were saved
	} {
		t.Run("in "+tt.op, func(t *testing.T) {
			id := fmt.Sprintf("3EB0D%d", i)
			n.store.failOn(tt.op, true, errStore)
			err := g.send(contact, id, "hello")
			n.store.heal()
			mustFail(t, err, tt.outcome, wa.SendStoreFailed, 0)
			if !errors.Is(err, errStore) {
				t.Errorf("Send = %v, want the store's error in it", err)
			}
			n.noFrame(id)
		})
	}
	if err := g.send(contact, "3EB0D9", "still here"); err != nil {
		t.Errorf("Send after the store healed = %v", err)
	}
}

// Rule 2.
func TestARefusedOrUnansweredKeyFetchSendsNothing(t *testing.T) {
	pn, contact := fresh(), fresh()
	shared.sim.Phone(contact)
	n := shared.paired(t, pn)
	g := n.online()
	scope := wasim.Scope{Session: pn, Recipient: contact}
	shared.fault(t, scope, wasim.Fault{KeyFetch: 429})
	mustFail(t, g.send(contact, "3EB0E1", "hello"), fleet.OutcomeNothing, wa.SendStoreFailed, 0)
	n.noFrame("3EB0E1")

	shared.sim.SetFault(scope, wasim.Fault{KeyFetch: -1})
	err := g.sendWithin(300*time.Millisecond, contact, "3EB0E2", "hello")
	mustFail(t, err, fleet.OutcomeNothing, wa.SendTimedOut, 0)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Send = %v, want the deadline in it", err)
	}
	n.noFrame("3EB0E2")

	shared.sim.SetFault(scope, wasim.Fault{})
	if err := g.send(contact, "3EB0E2", "hello"); err != nil {
		t.Errorf("Send of the same id after the fault = %v", err)
	}
}

// Rule 3: what our side failed on stays with WhatsApp, which gives it to the next generation.
func TestAFailureOnReceiveIsNeverAcknowledged(t *testing.T) {
	boom := errors.New("our transaction failed")
	for _, tt := range []struct {
		name   string
		opts   func(*wa.Options)
		store  func(*number)
		reason wa.Reason
		check  func(*testing.T, wa.End)
	}{
		{"a handler that returns an error", func(o *wa.Options) {
			o.Handler.Message = func(context.Context, fleet.Inbound) error { return boom }
		}, nil, wa.ReasonHandler, func(t *testing.T, e wa.End) {
			t.Helper()
			var he *wa.HandlerError
			if !errors.As(e.Err, &he) || he.Panic || he.Inbound == nil || he.Inbound.Text != "hold this" || !errors.Is(e.Err, boom) {
				t.Errorf("End.Err = %#v, want a HandlerError with the message and the cause", e.Err)
			}
		}},
		{"a handler that panics", func(o *wa.Options) {
			o.Handler.Message = func(context.Context, fleet.Inbound) error { panic("bug") }
		}, nil, wa.ReasonHandler, func(t *testing.T, e wa.End) {
			t.Helper()
			var he *wa.HandlerError
			if !errors.As(e.Err, &he) || !he.Panic || he.Inbound == nil || !strings.Contains(he.Error(), "bug") {
				t.Errorf("End.Err = %v, want a HandlerError that says it panicked", e.Err)
			}
		}},
		{"a store error while decrypting", nil, func(n *number) {
			n.store.failOn("PutIdentity", false, errStore)
		}, wa.ReasonStore, func(t *testing.T, e wa.End) {
			t.Helper()
			if !errors.Is(e.Err, errStore) {
				t.Errorf("End.Err = %v, want the store's error", e.Err)
			}
		}},
		{"a store error while buffering", nil, func(n *number) {
			n.store.failOn("PutBufferedEvent", false, errStore)
		}, wa.ReasonStore, func(*testing.T, wa.End) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pn, contact := fresh(), fresh()
			n := shared.paired(t, pn)
			n.online().stop()
			g := n.online(func(o *wa.Options) {
				if tt.opts != nil {
					tt.opts(o)
				}
			})
			take(t, g.offline)
			if tt.store != nil {
				tt.store(n)
			}
			id, err := shared.sim.Phone(contact).SendText(t.Context(), pn, "hold this")
			if err != nil {
				t.Fatal(err)
			}
			e := g.end()
			if e.Reason != tt.reason {
				t.Fatalf("Run = %v, want %s", e, tt.reason)
			}
			tt.check(t, e)
			for _, kind := range []string{wasim.KindAck, wasim.KindReceipt} {
				if es := shared.sim.Log(wasim.Query{Session: pn, Kind: kind, Dir: wasim.DirIn, ID: id}); len(es) != 0 {
					t.Errorf("the simulator got %v for the message, want neither ack nor receipt nor retry", kinds(es))
				}
			}
			n.store.heal()
			g = n.online()
			if m := take(t, g.messages); m.WAID != id || m.Text != "hold this" || !m.Offline {
				t.Errorf("next generation got %+v, want %s once more, offline", m, id)
			}
			es := shared.log(t, 1, wasim.Query{Session: pn, Kind: wasim.KindReceipt, Dir: wasim.DirIn, ID: id})
			if es[0].Generation != n.gen {
				t.Errorf("receipt by generation %d, want %d", es[0].Generation, n.gen)
			}
		})
	}
}

func TestAReceiptWhoseHandlerFailsComesAgain(t *testing.T) {
	pn, contact := fresh(), fresh()
	shared.sim.Phone(contact)
	n := shared.paired(t, pn)
	g := n.online(func(o *wa.Options) {
		o.Handler.Receipt = func(context.Context, fleet.Receipt) error { return errStore }
	})
	_ = g.send(contact, "3EB0F1", "hello") // may be answered before or after the receipt ends the generation
	if e := g.end(); e.Reason != wa.ReasonHandler || !errors.Is(e.Err, errStore) {
		t.Fatalf("Run = %v, want %s", e, wa.ReasonHandler)
	}
	g = n.online()
	if r := take(t, g.receipts); r.Status != fleet.StatusDelivered || !slices.Equal(r.WAIDs, []string{"3EB0F1"}) {
		t.Errorf("Receipt = %+v, want delivered for 3EB0F1", r)
	}
}

// Rule 4.
func TestASendHonoursItsDeadlineWithoutAnAck(t *testing.T) {
	pn, contact := fresh(), fresh()
	shared.sim.Phone(contact)
	n := shared.paired(t, pn)
	g := n.online()
	if err := g.send(contact, "3EB1A0", "so that the next one needs no keys"); err != nil {
		t.Fatalf("Send = %v", err)
	}
	shared.fault(t, wasim.Scope{Session: pn}, wasim.Fault{DropNextAcks: 1})
	mustFail(t, g.sendWithin(time.Second, contact, "3EB1A1", "hello"), fleet.OutcomeUnknown, wa.SendTimedOut, 0)
	if es := n.framesOf("3EB1A1"); len(es) != 1 {
		t.Errorf("frames = %d, want 1", len(es))
	}
	if err := g.send(contact, "3EB1A1", "hello"); err != nil { // the same id again, as a lane repeats it
		t.Errorf("Send of the same id = %v", err)
	}
}

func TestAStuckSendReturnsAndEndsItsGeneration(t *testing.T) {
	pn, contact := fresh(), fresh()
	shared.sim.Phone(contact)
	n := shared.paired(t, pn)
	g := n.online()
	stuck := make(chan struct{})
	n.store.failWith(func(_ context.Context, op string) error {
		if op == "GetManySessions" {
			<-stuck // deaf to its context
		}
		return nil
	})
	start := time.Now()
	err := g.sendWithin(100*time.Millisecond, contact, "3EB1B1", "hello")
	mustFail(t, err, fleet.OutcomeNothing, wa.SendTimedOut, 0)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("Send took %s, want its deadline and a moment", took)
	}
	if g.sock.Ready() {
		t.Error("Ready() = true with a stuck send lock")
	}
	// Another send does not wait for the lock.
	mustFail(t, g.sendWithin(patience, contact, "3EB1B2", "hello"), fleet.OutcomeNothing, wa.SendNotConnected, 0)
	close(stuck)
	if e := g.end(); e.Reason != wa.ReasonStuck {
		t.Errorf("Run = %v, want %s", e, wa.ReasonStuck)
	}
	n.noFrame("3EB1B1")
}

func TestALostConnectionBeforeTheAckLeavesTheOutcomeUnknown(t *testing.T) {
	pn, contact := fresh(), fresh()
	shared.sim.Phone(contact)
	n := shared.paired(t, pn)
	g := n.online()
	shared.fault(t, wasim.Scope{Session: pn}, wasim.Fault{CloseBeforeAck: 1})
	err := g.send(contact, "3EB1C1", "hello")
	var se *wa.SendError
	if !errors.As(err, &se) || se.Outcome != fleet.OutcomeUnknown {
		t.Fatalf("Send = %v, want unknown", err)
	}
	if e := g.end(); e.Reason != wa.ReasonDisconnected {
		t.Errorf("Run = %v, want %s", e, wa.ReasonDisconnected)
	}
	if es := n.framesOf("3EB1C1"); len(es) != 1 {
		t.Errorf("frames = %d, want 1: nothing is sent again by itself", len(es))
	}
	if err := n.online().send(contact, "3EB1C1", "hello"); err != nil {
		t.Errorf("Send of the same id in the next generation = %v", err)
	}
}

func TestRefusalsAreTyped(t *testing.T) {
	pn, contact := fresh(), fresh()
	shared.sim.Phone(contact)
	n := shared.paired(t, pn)
	g := n.online()
	for code, reason := range map[int]string{
		403: wa.SendRecipientRefused, 429: wa.SendRateLimited, 463: wa.SendReachoutRestricted,
		475: wa.SendNewChatCap, 479: wa.SendStanzaInvalid, 500: wa.SendRefused,
	} {
		shared.fault(t, wasim.Scope{Session: pn, Recipient: contact}, wasim.Fault{AckError: code})
		mustFail(t, g.send(contact, fmt.Sprintf("3EB2%d", code), "hello"), fleet.OutcomeRefused, reason, code)
	}
	shared.sim.SetFault(wasim.Scope{Session: pn, Recipient: contact}, wasim.Fault{})
	mustFail(t, g.send(fresh(), "3EB2A1", "hello"), fleet.OutcomeRefused, wa.SendNotOnWhatsApp, 0)
	n.noFrame("3EB2A1")
	for _, jid := range []string{"", "abc", "120363000000000000@g.us", "status@broadcast", "5511900000001:3@s.whatsapp.net", "@s.whatsapp.net"} {
		_, err := g.sock.Send(t.Context(), wa.Outgoing{JID: jid, WAID: "3EB2B1", Payload: []byte{0x0a, 1, 'x'}})
		mustFail(t, err, fleet.OutcomeRefused, wa.SendInvalid, 0)
	}
	_, err := g.sock.Send(t.Context(), wa.Outgoing{JID: contact + "@s.whatsapp.net", WAID: "3EB2B2", Payload: []byte{0xff}})
	mustFail(t, err, fleet.OutcomeRefused, wa.SendInvalid, 0)
}
