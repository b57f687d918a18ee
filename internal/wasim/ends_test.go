package wasim

import (
	"testing"

	"go.mau.fi/whatsmeow"
	"go.mau.fi/whatsmeow/types/events"
	waLog "go.mau.fi/whatsmeow/util/log"
)

func TestASecondLoginReplacesTheFirstWhoseStanzasThenCountForNothing(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000301", "5511900000302"
	c := w.paired(t, pn)
	phone := w.srv.Phone(contact)
	twin := &client{t: t, w: w, pn: pn, events: make(chan any, 1000), http: dialTo(w.dial)}
	twin.Client = whatsmeow.NewClient(c.Store, waLog.Noop)
	twin.wire()
	if err := twin.Connect(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(twin.Disconnect)
	await[*events.Connected](twin, nil)
	await[*events.StreamReplaced](c, nil)
	es := w.awaitLog(t, 1, Query{Session: pn, Kind: KindStream})
	if es[0].Type != "replaced" {
		t.Errorf("stream error in the log = %+v, want replaced", es[0])
	}
	twin.mustText("CC01", pnJID(contact), "from the new login")
	phone.awaitID(t, "CC01")
}

func TestStanzasOfAReplacedConnectionAreLoggedAndIgnored(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000303", "5511900000304"
	c := w.paired(t, pn)
	phone := w.srv.Phone(contact)
	c.mustText("CC02", pnJID(contact), "before")
	phone.awaitID(t, "CC02")
	if !w.srv.Replace(pn, 1) {
		t.Fatal("Replace = false for a companion that is online")
	}
	await[*events.StreamReplaced](c, nil)
	// The socket stays open for a moment, and a stale owner would not know yet.
	stale := node{Tag: KindReceipt, Attrs: attrs{"id": "CC02", "to": pnJID(contact), "type": "read"}}
	if err := c.DangerousInternals().SendNode(t.Context(), stale); err != nil {
		t.Fatal(err)
	}
	w.awaitEntry(t, Query{Session: pn, Kind: KindIgnored, ID: "CC02"}, func(e Entry) bool { return e.Type == KindReceipt })
	for _, e := range w.srv.Log(Query{Session: pn, Dir: DirIn, Kind: KindReceipt, ID: "CC02"}) {
		t.Errorf("a receipt of a replaced connection was handled: %+v", e)
	}
}

func TestUnlinkingOnThePhoneLogsTheCompanionOut(t *testing.T) {
	w := newWorld(t)
	const pn = "5511900000305"
	c := w.paired(t, pn)
	phone := w.srv.Phone(pn)
	if got := phone.Devices(); len(got) != 1 || got[0] != 1 {
		t.Fatalf("Devices() = %v, want [1]", got)
	}
	if err := phone.Unlink(1); err != nil {
		t.Fatal(err)
	}
	if e := await[*events.LoggedOut](c, nil); e.OnConnect {
		t.Error("LoggedOut.OnConnect = true, want false")
	}
	if got := phone.Devices(); len(got) != 0 {
		t.Errorf("Devices() after Unlink = %v, want none", got)
	}
	if err := phone.Unlink(1); err == nil {
		t.Error("Unlink of a device that is gone = nil, want an error")
	}
	if es := w.awaitLog(t, 1, Query{Session: pn, Kind: KindLogout}); es[0].Type != "phone" {
		t.Errorf("logout in the log = %+v, want by the phone", es[0])
	}
}

func TestALogoutOfTheClientRemovesTheCompanion(t *testing.T) {
	w := newWorld(t)
	const pn = "5511900000306"
	c := w.paired(t, pn)
	if err := c.Logout(t.Context()); err != nil {
		t.Fatalf("Logout = %v", err)
	}
	es := w.awaitLog(t, 1, Query{Session: pn, Kind: KindLogout})
	if es[0].Type != "client" || es[0].Device != 1 {
		t.Errorf("logout in the log = %+v, want device 1 by the client", es[0])
	}
	if got := w.srv.Phone(pn).Devices(); len(got) != 0 {
		t.Errorf("Devices() after Logout = %v, want none", got)
	}
}

func TestALoginWithAForgottenDeviceIsRefused(t *testing.T) {
	w := newWorld(t)
	const pn = "5511900000307"
	c := w.paired(t, pn)
	c.Disconnect()
	if err := w.srv.Phone(pn).Unlink(1); err != nil {
		t.Fatal(err)
	}
	if err := c.Connect(); err != nil {
		t.Fatal(err)
	}
	if e := await[*events.LoggedOut](c, nil); !e.OnConnect || e.Reason != events.ConnectFailureLoggedOut {
		t.Errorf("event = %+v, want logged out on connect with 401", e)
	}
}

func TestADroppedConnectionComesBackByItself(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000308", "5511900000309"
	c := w.paired(t, pn)
	phone := w.srv.Phone(contact)
	if !w.srv.Drop(pn, 1) {
		t.Fatal("Drop = false for a companion that is online")
	}
	await[*events.Disconnected](c, nil)
	await[*events.Connected](c, nil)
	c.mustText("CC03", pnJID(contact), "back again")
	phone.awaitID(t, "CC03")
	es := w.srv.Log(Query{Session: pn, Kind: KindClose})
	if len(es) == 0 || es[0].Type != "dropped" {
		t.Errorf("closes in the log = %+v, want one that was dropped", es)
	}
}

func TestAQRCodeIsGoodForOnePhoneAndOnlyWhileItsConnectionLives(t *testing.T) {
	w := newWorld(t)
	const pn, late = "5511900000310", "5511900000311"
	c := w.newClient(t, pn)
	if err := c.Connect(); err != nil {
		t.Fatal(err)
	}
	qr := await[*events.QR](c, nil).Codes[0]
	for name, bad := range map[string]string{
		"empty": "", "not a code": "hello", "keys are not base64": "2@ref,@@,@@,@@", "keys are too short": "2@ref,AAAA,AAAA,AAAA",
	} {
		if err := w.srv.Phone(pn).ScanQR(t.Context(), bad); err == nil {
			t.Errorf("ScanQR(%s) = nil, want an error", name)
		}
	}
	if err := w.srv.Phone(pn).ScanQR(t.Context(), qr); err != nil {
		t.Fatalf("ScanQR = %v", err)
	}
	if err := w.srv.Phone(late).ScanQR(t.Context(), qr); err == nil {
		t.Error("scanning a code again = nil, want an error")
	}
	await[*events.Connected](c, nil)
	c.Disconnect()
	w.awaitLog(t, 1, Query{Session: pn, Kind: KindClose})
	if err := w.srv.Phone(late).ScanQR(t.Context(), qr); err == nil {
		t.Error("scanning a code of a closed connection = nil, want an error")
	}
	if got := w.srv.Phone(late).Devices(); len(got) != 0 {
		t.Errorf("the second phone has devices %v, want none", got)
	}
}

func TestAWrongPairingCodeIsRefusedAndTheRightOneStillWorks(t *testing.T) {
	w := newWorld(t)
	const pn = "5511900000312"
	c := w.newClient(t, pn)
	phone := w.srv.Phone(pn)
	if err := phone.EnterCode(t.Context(), "ABCDEFGH"); err == nil {
		t.Error("EnterCode with nothing pending = nil, want an error")
	}
	if err := c.Connect(); err != nil {
		t.Fatal(err)
	}
	await[*events.QR](c, nil)
	for attempt, right := range []bool{false, true} {
		code, err := c.PairPhone(t.Context(), pn, true, whatsmeow.PairClientChrome, "Chrome (Linux)")
		if err != nil {
			t.Fatalf("PairPhone, attempt %d = %v", attempt, err)
		}
		if !right {
			code = "99999999"
		}
		if err = phone.EnterCode(t.Context(), code); err != nil {
			t.Fatalf("EnterCode, attempt %d = %v", attempt, err)
		}
	}
	await[*events.Connected](c, nil)
}
