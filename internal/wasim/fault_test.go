package wasim

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mau.fi/whatsmeow"
	"go.mau.fi/whatsmeow/proto/waE2E"
	"go.mau.fi/whatsmeow/socket"
	"go.mau.fi/whatsmeow/types/events"
	"google.golang.org/protobuf/proto"
)

// brief is how long a test waits for something that must not come.
const brief = 200 * time.Millisecond

func (c *client) textWithin(d time.Duration, id, to string) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	_, err := c.SendMessage(ctx, pnJID(to), &waE2E.Message{Conversation: proto.String("text of " + id)},
		whatsmeow.SendRequestExtra{ID: id, Timeout: d})
	return err
}

func TestARefusedMessageIsNotRelayedAndItsAckCarriesTheCode(t *testing.T) {
	w := newWorld(t)
	const pn = "5511900000401"
	c := w.paired(t, pn)
	for i, code := range []int{403, 463, 479, 429} {
		contact := []string{"5511900000402", "5511900000403", "5511900000404", "5511900000405"}[i]
		id := "DD0" + contact[len(contact)-1:]
		phone := w.srv.Phone(contact)
		w.srv.SetFault(Scope{Session: pn, Recipient: contact}, Fault{AckError: code})
		if err := c.textWithin(patience, id, contact); !errors.Is(err, whatsmeow.ErrServerReturnedError) {
			t.Errorf("SendMessage with ack error %d = %v, want ErrServerReturnedError", code, err)
		}
		es := w.srv.Log(Query{ID: id, Kind: KindMessage, Dir: DirIn})
		if len(es) != 1 || es[0].Error != code || es[0].Relayed {
			t.Errorf("log of a refused message = %+v, want error %d and not relayed", es, code)
		}
		acks := w.awaitLog(t, 1, Query{ID: id, Kind: KindAck, Dir: DirOut})
		if acks[0].Error != code || acks[0].Recipient != pn {
			t.Errorf("ack in the log = %+v, want error %d to %s", acks[0], code, pn)
		}
		if got := phone.Received(); len(got) != 0 {
			t.Errorf("a refused message was delivered: %+v", got)
		}
	}
}

func TestALimitedRefusalEndsByItself(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000406", "5511900000407"
	c, phone := w.paired(t, pn), w.srv.Phone(contact)
	w.srv.SetFault(Scope{Recipient: contact}, Fault{AckError: 463, AckErrorNext: 2})
	for _, id := range []string{"DD10", "DD11"} {
		if err := c.textWithin(patience, id, contact); err == nil {
			t.Errorf("SendMessage(%s) = nil, want an error", id)
		}
	}
	c.mustText("DD12", pnJID(contact), "third")
	phone.awaitID(t, "DD12")
	for _, f := range w.srv.Faults() {
		if f.Scope.Recipient == contact {
			t.Errorf("a used-up fault is still listed: %+v", f)
		}
	}
}

func TestALostAckLeavesTheMessageDeliveredAndTheSenderWaiting(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000408", "5511900000409"
	c, phone := w.paired(t, pn), w.srv.Phone(contact)
	for name, f := range map[string]Fault{"DD20": {DropNextAcks: 1}, "DD21": {DropAcks: true}} {
		w.srv.SetFault(Scope{Session: pn}, f)
		if err := c.textWithin(brief, name, contact); !errors.Is(err, whatsmeow.ErrMessageTimedOut) {
			t.Errorf("SendMessage with %+v = %v, want ErrMessageTimedOut", f, err)
		}
		phone.awaitID(t, name)
		w.srv.SetFault(Scope{Session: pn}, Fault{})
	}
	c.mustText("DD22", pnJID(contact), "acknowledged again")
}

func TestAConnectionClosedBeforeTheAckHasRelayedTheMessageOnce(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000410", "5511900000411"
	c, phone := w.paired(t, pn), w.srv.Phone(contact)
	w.srv.SetFault(Scope{Session: pn}, Fault{CloseBeforeAck: 1})
	c.mustText("DD30", pnJID(contact), "at the edge") // whatsmeow sends the frame again after reconnecting
	phone.await(t, func(r Received) bool { return r.ID == "DD30" && r.Duplicate })
	in := w.srv.Log(Query{ID: "DD30", Kind: KindMessage, Dir: DirIn})
	if len(in) != 2 || in[0].Conn == in[1].Conn {
		t.Errorf("log = %+v, want the message on two connections", in)
	}
	if es := w.srv.Log(Query{Session: pn, Kind: KindClose}); len(es) == 0 || es[0].Type != "before ack" {
		t.Errorf("closes = %+v, want one before an ack", es)
	}
}

func TestAKeyRequestCanFailOrStayUnanswered(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000412", "5511900000413"
	c, phone := w.paired(t, pn), w.srv.Phone(contact)
	w.srv.SetFault(Scope{Session: pn, Recipient: contact}, Fault{KeyFetch: 429})
	// whatsmeow alone skips devices whose keys it did not get, and the server acknowledges what reaches nobody.
	c.mustText("DD40", pnJID(contact), "for nobody")
	if es := w.awaitLog(t, 1, Query{ID: "DD40", Kind: KindMessage, Dir: DirIn}); es[0].Relayed {
		t.Errorf("log of a message without ciphertext for the recipient = %+v, want it not relayed", es[0])
	}
	w.srv.SetFault(Scope{Session: pn, Recipient: contact}, Fault{KeyFetch: -1})
	ctx, cancel := context.WithTimeout(t.Context(), brief)
	defer cancel()
	_, err := c.SendMessage(ctx, pnJID(contact), &waE2E.Message{Conversation: proto.String("x")}, whatsmeow.SendRequestExtra{ID: "DD41"})
	if err == nil || ctx.Err() == nil {
		t.Errorf("SendMessage without an answer to its key request = %v, want an error at the deadline", err)
	}
	w.srv.SetFault(Scope{Session: pn, Recipient: contact}, Fault{})
	c.mustText("DD42", pnJID(contact), "keys again")
	phone.awaitID(t, "DD42")
	for _, r := range phone.Received() {
		if r.ID != "DD42" {
			t.Errorf("the phone got %+v without its keys having been given out", r)
		}
	}
}

func TestLoginsAreRefusedWithTheReasonOfTheFault(t *testing.T) {
	w := newWorld(t)
	for reason, check := range map[int]func(*client) bool{
		401: func(c *client) bool { return await[*events.LoggedOut](c, nil).Reason == 401 },
		402: func(c *client) bool {
			e := await[*events.TemporaryBan](c, nil)
			return e.Code == 101 && e.Expire == time.Hour
		},
		403: func(c *client) bool { return await[*events.LoggedOut](c, nil).Reason == 403 },
		405: func(c *client) bool { return await[*events.ClientOutdated](c, nil) != nil },
		406: func(c *client) bool { return await[*events.LoggedOut](c, nil).Reason == 406 },
	} {
		pn := "55119000005" + string([]byte{'0', byte('0' + reason - 400)})
		c := w.paired(t, pn)
		w.srv.SetFault(Scope{Session: pn}, Fault{ConnectFailure: reason, BanCode: 101, BanExpire: time.Hour})
		c.Disconnect()
		if err := c.Connect(); err != nil {
			t.Fatal(err)
		}
		if !check(c) {
			t.Errorf("connect failure %d led to a wrong event", reason)
		}
		if es := w.awaitLog(t, 1, Query{Session: pn, Kind: KindFailure}); es[0].Error != reason {
			t.Errorf("failure in the log = %+v, want %d", es[0], reason)
		}
	}
}

func TestRefusedDialsFailBeforeTheWebsocketOpensOnceTheSessionIsKnown(t *testing.T) {
	w := newWorld(t)
	const pn = "5511900000414"
	c := w.newClient(t, pn)
	c.WebSocketHeaders = http.Header{
		HeaderWorker: {"worker-1"}, HeaderSession: {"session-414"}, HeaderEpoch: {"7"}, HeaderGeneration: {"3"},
	}
	c.EnableAutoReconnect = false
	c.pair()
	c.Disconnect()
	w.srv.SetFault(Scope{Session: pn}, Fault{RefuseDials: true})
	if err := c.Connect(); !errors.Is(err, socket.ErrDialFailed) {
		t.Errorf("Connect while dials are refused = %v, want an error", err)
	}
	es := w.awaitLog(t, 1, Query{SessionID: "session-414", Kind: KindDial})
	last := w.srv.Log(Query{SessionID: "session-414", Kind: KindDial, Tail: 1})[0]
	if last.Error != 1 || last.Worker != "worker-1" || last.Epoch != 7 || last.Generation != 3 {
		t.Errorf("last dial = %+v of %d, want it refused, with the headers of the dial", last, len(es))
	}
	w.srv.SetFault(Scope{Session: pn}, Fault{})
	if err := c.Connect(); err != nil {
		t.Fatalf("Connect after clearing the fault = %v", err)
	}
	await[*events.Connected](c, nil)
}

func TestRefusedDialsWithoutHeadersEndAtTheLogin(t *testing.T) {
	w := newWorld(t)
	const pn = "5511900000415"
	c := w.paired(t, pn)
	c.EnableAutoReconnect = false
	c.Disconnect()
	w.awaitLog(t, 1, Query{Session: pn, Kind: KindClose})
	w.srv.SetFault(Scope{Session: pn}, Fault{RefuseDials: true})
	_ = c.Connect() // the handshake itself succeeds
	w.awaitEntry(t, Query{Session: pn, Kind: KindClose}, func(e Entry) bool { return e.Type == "refused" })
	if got := w.srv.Log(Query{Session: pn, Kind: KindLogin}); len(got) != 1 {
		t.Errorf("%d logins, want only the first", len(got))
	}
}

func TestLatencyDelaysWhatTheServerSends(t *testing.T) {
	w := newWorld(t)
	const pn, contact, slow = "5511900000416", "5511900000417", "5511900000418"
	c := w.paired(t, pn)
	w.srv.Phone(contact)
	w.srv.Phone(slow)
	c.mustText("DD50", pnJID(contact), "gets the keys")
	c.mustText("DD51", pnJID(slow), "gets the keys")
	const delay = 300 * time.Millisecond
	w.srv.SetFault(Scope{Recipient: slow}, Fault{Latency: delay})
	start := time.Now()
	c.mustText("DD52", pnJID(slow), "slow")
	if took := time.Since(start); took < delay {
		t.Errorf("ack of a slow recipient after %v, want at least %v", took, delay)
	}
	w.srv.SetFault(Scope{Session: pn}, Fault{Latency: delay})
	start = time.Now()
	c.mustText("DD53", pnJID(contact), "slow too")
	if took := time.Since(start); took < delay {
		t.Errorf("ack of a slow session after %v, want at least %v", took, delay)
	}
}

func TestAMutedConnectionIsReadAndGetsNothing(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000419", "5511900000420"
	c, phone := w.paired(t, pn), w.srv.Phone(contact)
	c.mustText("DD60", pnJID(contact), "heard")
	if !w.srv.Mute(pn, 1) {
		t.Fatal("Mute = false for a companion that is online")
	}
	if err := c.textWithin(brief, "DD61", contact); !errors.Is(err, whatsmeow.ErrMessageTimedOut) {
		t.Errorf("SendMessage on a muted connection = %v, want ErrMessageTimedOut", err)
	}
	w.awaitLog(t, 1, Query{Session: pn, Kind: KindIgnored, ID: "DD61"})
	id, err := phone.SendText(t.Context(), pn, "for later")
	if err != nil {
		t.Fatal(err)
	}
	c.ResetConnection()
	if m := c.awaitText("for later"); m.Info.ID != id {
		t.Errorf("message after the mute has id %s, want %s", m.Info.ID, id)
	}
}

func TestTheNarrowestScopeThatSetsAFieldDecides(t *testing.T) {
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.SetFault(Scope{}, Fault{AckError: 400, Latency: time.Second})
	s.SetFault(Scope{Session: "a"}, Fault{AckError: 401})
	s.SetFault(Scope{Recipient: "b"}, Fault{AckError: 402, AckErrorNext: 1})
	s.SetFault(Scope{Session: "a", Recipient: "b"}, Fault{DropNextAcks: 1})
	var got []int
	for _, q := range [][2]string{{"a", "b"}, {"a", "b"}, {"a", "c"}, {"x", "b"}, {"x", "y"}} {
		_, code := s.faults.forMessage(q[0], q[1])
		got = append(got, code)
	}
	if diff := cmp.Diff([]int{402, 401, 401, 400, 400}, got); diff != "" {
		t.Errorf("codes of the messages (-want +got):\n%s", diff)
	}
	if got := s.faults.latency("a", "b"); got != time.Second {
		t.Errorf("latency = %v, want that of everyone", got)
	}
	s.SetFault(Scope{}, Fault{})
	want := []ScopedFault{{Scope{"a", ""}, Fault{AckError: 401}}, {Scope{"a", "b"}, Fault{DropNextAcks: 1}}}
	if diff := cmp.Diff(want, s.Faults()); diff != "" {
		t.Errorf("Faults() (-want +got):\n%s", diff)
	}
}
