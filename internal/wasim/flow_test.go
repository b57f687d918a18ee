package wasim

import (
	"testing"

	"go.mau.fi/whatsmeow"
	"go.mau.fi/whatsmeow/types/events"
)

func TestPairingByQRLeadsToALoginUnderTheScannedNumber(t *testing.T) {
	w := newWorld(t)
	const pn = "5511900000101"
	c := w.paired(t, pn)
	if got := c.Store.ID.User; got != pn {
		t.Errorf("paired as %s, want %s", got, pn)
	}
	if got, want := c.Store.LID.User, w.srv.Phone(pn).LID().User; got != want {
		t.Errorf("LID after pairing = %s, want %s", got, want)
	}
	if es := w.awaitLog(t, 1, Query{Session: pn, Kind: KindLogin}); es[0].Device != 1 {
		t.Errorf("logged in as device %d, want 1", es[0].Device)
	}
}

func TestPairingByPhoneCodeLeadsToALogin(t *testing.T) {
	w := newWorld(t)
	const pn = "5511900000102"
	c := w.newClient(t, pn)
	if err := c.Connect(); err != nil {
		t.Fatal(err)
	}
	await[*events.QR](c, nil)
	code, err := c.PairPhone(t.Context(), pn, true, whatsmeow.PairClientChrome, "Chrome (Linux)")
	if err != nil {
		t.Fatalf("PairPhone = %v", err)
	}
	if err = w.srv.Phone(pn).EnterCode(t.Context(), code); err != nil {
		t.Fatalf("EnterCode(%q) = %v", code, err)
	}
	await[*events.Connected](c, nil)
	if got := c.Store.ID.User; got != pn {
		t.Errorf("paired as %s, want %s", got, pn)
	}
}

func TestATextReachesThePhoneAndItsReplyComesBack(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000103", "5511900000104"
	c := w.paired(t, pn)
	phone := w.srv.Phone(contact)
	c.mustText("AA03", pnJID(contact), "hello")
	r := phone.awaitID(t, "AA03")
	if r.Text != "hello" || r.Sender != pn || r.Chat != pn || r.Device != 1 || r.Duplicate || r.FromMe {
		t.Errorf("phone received %+v", r)
	}
	id, err := phone.SendText(t.Context(), pn, "hello back")
	if err != nil {
		t.Fatal(err)
	}
	m := c.awaitText("hello back")
	if m.Info.ID != id || m.Info.IsFromMe || m.Info.Sender.User != contact && m.Info.SenderAlt.User != contact {
		t.Errorf("client received %+v, want id %s", m.Info, id)
	}
}
