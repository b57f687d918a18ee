package wasim

import (
	"strings"
	"testing"

	"go.mau.fi/whatsmeow"
	"go.mau.fi/whatsmeow/types"
	"go.mau.fi/whatsmeow/types/events"
)

func TestAMessageIsReportedDeliveredAndThenRead(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000201", "5511900000202"
	c, phone := w.paired(t, pn), w.srv.Phone(contact)
	c.mustText("BB01", pnJID(contact), "read me")
	phone.awaitID(t, "BB01")
	await(c, func(r *events.Receipt) bool {
		return r.Type == types.ReceiptTypeDelivered && r.MessageIDs[0] == "BB01" && !r.IsFromMe
	})
	if err := phone.MarkRead(t.Context(), "BB01"); err != nil {
		t.Fatalf("MarkRead = %v", err)
	}
	await(c, func(r *events.Receipt) bool { return r.Type == types.ReceiptTypeRead && r.MessageIDs[0] == "BB01" })
	if r := phone.awaitID(t, "BB01"); !r.Read {
		t.Error("Received().Read = false after MarkRead")
	}
}

func TestAMessageForAnInactiveCompanionIsReportedInactive(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000203", "5511900000204"
	c, other := w.paired(t, pn), w.paired(t, contact)
	c.mustText("BB02", pnJID(contact), "are you there")
	other.awaitText("are you there")
	r := await(c, func(r *events.Receipt) bool { return r.MessageIDs[0] == "BB02" && r.Sender.Device != 0 })
	if r.Type != types.ReceiptTypeInactive {
		t.Errorf("receipt of a companion that is not available = %q, want inactive", r.Type)
	}
	w.awaitLog(t, 1, Query{Session: contact, Dir: DirIn, Kind: KindReceipt, ID: "BB02"})
}

func TestAutoReadAndAutoReplyAnswerNewMessagesOnly(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000205", "5511900000206"
	c, phone := w.paired(t, pn), w.srv.Phone(contact)
	phone.AutoRead(true)
	phone.AutoReply(func(r Received) string { return "echo " + r.Text })
	c.mustText("BB03", pnJID(contact), "one")
	c.awaitText("echo one")
	w.awaitLog(t, 1, Query{Session: pn, Dir: DirOut, Kind: KindReceipt, ID: "BB03"})
	c.mustText("BB03", pnJID(contact), "one")
	phone.await(t, func(r Received) bool { return r.ID == "BB03" && r.Duplicate })
	c.mustText("BB04", pnJID(contact), "two")
	if m := await(c, func(m *events.Message) bool { return strings.HasPrefix(m.Message.GetConversation(), "echo") }); m.Message.GetConversation() != "echo two" {
		t.Errorf("after a duplicate the next reply is %q, want %q", m.Message.GetConversation(), "echo two")
	}
}

func TestARepeatedIDIsTwiceInTheLogAndOnceForTheUser(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000207", "5511900000208"
	c, phone := w.paired(t, pn), w.srv.Phone(contact)
	c.mustText("BB05", pnJID(contact), "only once")
	c.mustText("BB05", pnJID(contact), "only once")
	phone.await(t, func(r Received) bool { return r.ID == "BB05" && r.Duplicate })
	fresh := 0
	for _, r := range phone.Received() {
		if r.ID == "BB05" && !r.Duplicate {
			fresh++
		}
	}
	if fresh != 1 {
		t.Errorf("the phone shows the message %d times, want once", fresh)
	}
	in := w.srv.Log(Query{Session: pn, Recipient: contact, Dir: DirIn, Kind: KindMessage, ID: "BB05"})
	if len(in) != 2 || !in[0].Relayed || !in[1].Relayed {
		t.Errorf("log of the message = %+v, want two entries, both relayed", in)
	}
}

func TestAPhoneThatIsOffGetsWhatWasSentToItOnceItIsOn(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000241", "5511900000242"
	c, phone := w.paired(t, pn), w.srv.Phone(contact)
	phone.Power(false)
	c.mustText("BB41", pnJID(contact), "for later") // returns with the ack
	c.mustText("BB41", pnJID(contact), "for later")
	if got := phone.Received(); len(got) != 0 {
		t.Fatalf("a phone that is off received %+v, want nothing", got)
	}
	phone.Power(true)
	if r := phone.awaitID(t, "BB41"); r.Duplicate || r.Text != "for later" {
		t.Errorf("the first message after the phone is on = %+v, want the text", r)
	}
	phone.await(t, func(r Received) bool { return r.ID == "BB41" && r.Duplicate })
	await(c, func(r *events.Receipt) bool {
		return r.Type == types.ReceiptTypeDelivered && r.MessageIDs[0] == "BB41" && !r.IsFromMe
	})
}

func TestARepeatedStanzaIsDeliveredTwiceAndHandledOnceByTheClient(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000209", "5511900000210"
	c, phone := w.paired(t, pn), w.srv.Phone(contact)
	if _, err := phone.SendText(t.Context(), pn, "say it again"); err != nil {
		t.Fatal(err)
	}
	m := c.awaitText("say it again")
	if !w.srv.Repeat(pn, 1) {
		t.Fatal("Repeat = false for a companion that is online and got a message")
	}
	w.awaitLog(t, 2, Query{Session: pn, Dir: DirOut, Kind: KindMessage, ID: m.Info.ID})
	if _, err := phone.SendText(t.Context(), pn, "something else"); err != nil {
		t.Fatal(err)
	}
	next := await(c, func(m *events.Message) bool { return m.Message.GetConversation() != "" })
	if got := next.Message.GetConversation(); got != "something else" {
		t.Errorf("event after the repeated stanza = %q, want %q", got, "something else")
	}
}

func TestStanzasForAnOfflineCompanionWaitForItsNextLogin(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000211", "5511900000212"
	c, phone := w.paired(t, pn), w.srv.Phone(contact)
	c.Disconnect()
	w.awaitLog(t, 1, Query{Session: pn, Kind: KindClose})
	texts := []string{"one", "two", "three"}
	for _, text := range texts {
		if _, err := phone.SendText(t.Context(), pn, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Connect(); err != nil {
		t.Fatal(err)
	}
	await(c, func(p *events.OfflineSyncPreview) bool { return p.Messages >= len(texts) })
	for _, text := range texts {
		c.awaitText(text)
	}
	await(c, func(e *events.OfflineSyncCompleted) bool { return e.Count >= len(texts) })
}

func TestALostSignalSessionIsHealedByARetryReceipt(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000213", "5511900000214"
	c, phone := w.paired(t, pn), w.srv.Phone(contact)
	if _, err := phone.SendText(t.Context(), pn, "first"); err != nil {
		t.Fatal(err)
	}
	c.awaitText("first")
	if _, err := phone.SendText(t.Context(), pn, "confirm the session"); err != nil {
		t.Fatal(err)
	}
	c.awaitText("confirm the session")
	c.mustText("BB06", pnJID(contact), "makes the phone stop sending pre-key messages")
	phone.awaitID(t, "BB06")
	if err := c.Store.Sessions.DeleteAllSessions(t.Context(), phone.LID().SignalAddressUser()); err != nil {
		t.Fatal(err)
	}
	id, err := phone.SendText(t.Context(), pn, "needs a retry")
	if err != nil {
		t.Fatal(err)
	}
	if m := c.awaitText("needs a retry"); m.RetryCount == 0 {
		t.Error("RetryCount = 0, want the message sent again")
	}
	if es := w.awaitLog(t, 2, Query{Session: pn, Dir: DirOut, Kind: KindMessage, ID: id}); es[1].Retry != 1 {
		t.Errorf("second copy in the log has retry %d, want 1", es[1].Retry)
	}
}

func TestARetryReceiptOfAPhoneMakesTheClientSendAgain(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000215", "5511900000216"
	c, phone := w.paired(t, pn), w.srv.Phone(contact)
	c.mustText("BB07", pnJID(contact), "once more please")
	phone.awaitID(t, "BB07")
	if err := phone.AskRetry("BB07"); err != nil {
		t.Fatalf("AskRetry = %v", err)
	}
	r := phone.await(t, func(r Received) bool { return r.ID == "BB07" && r.Duplicate })
	if r.Text != "once more please" {
		t.Errorf("text of the second copy = %q", r.Text)
	}
	es := w.awaitLog(t, 2, Query{Session: pn, Dir: DirIn, Kind: KindMessage, ID: "BB07"})
	if es[0].Retry != 0 || es[1].Retry != 1 {
		t.Errorf("retry counts in the log = %d, %d, want 0, 1", es[0].Retry, es[1].Retry)
	}
	if err := phone.AskRetry("never seen"); err == nil {
		t.Error("AskRetry of an unknown message = nil, want an error")
	}
}

func TestMessagesAreRelayedWhateverFormTheAddressHas(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000217", "5511900000218"
	c, phone := w.paired(t, pn), w.srv.Phone(contact)
	c.mustText("BB08", pnJID(contact), "to your number")
	c.mustText("BB09", phone.LID(), "to your lid")
	for _, id := range []string{"BB08", "BB09"} {
		if r := phone.awaitID(t, id); r.Sender != pn {
			t.Errorf("sender of %s = %s, want %s", id, r.Sender, pn)
		}
		if es := w.awaitLog(t, 1, Query{ID: id, Kind: KindMessage, Dir: DirIn}); es[0].Recipient != contact {
			t.Errorf("recipient of %s in the log = %s, want %s", id, es[0].Recipient, contact)
		}
	}
	if _, err := phone.SendText(t.Context(), w.srv.Phone(pn).LID().String(), "from lid to lid"); err != nil {
		t.Fatal(err)
	}
	if m := c.awaitText("from lid to lid"); m.Info.Sender.Server != types.HiddenUserServer || m.Info.SenderAlt.User != contact {
		t.Errorf("sender = %s, other form = %s; want a LID and the number %s", m.Info.Sender, m.Info.SenderAlt, contact)
	}
}

func TestACopyOfWhatACompanionSendsReachesTheOwnPhoneAndItsOtherCompanions(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000219", "5511900000220"
	c, second := w.paired(t, pn), w.paired(t, pn)
	w.srv.Phone(contact)
	c.mustText("BB11", pnJID(contact), "hello contact")
	own := w.srv.Phone(pn).awaitID(t, "BB11")
	if !own.FromMe || own.Chat != contact || own.Text != "hello contact" {
		t.Errorf("the own phone got %+v, want a copy in the chat with %s", own, contact)
	}
	m := second.awaitText("hello contact")
	if !m.Info.IsFromMe {
		t.Errorf("the other companion got %+v, want IsFromMe", m.Info)
	}
	if _, err := w.srv.Phone(pn).SendText(t.Context(), contact, "typed on the phone"); err != nil {
		t.Fatal(err)
	}
	if m = c.awaitText("typed on the phone"); !m.Info.IsFromMe {
		t.Errorf("a message typed on the phone arrives as %+v, want IsFromMe", m.Info)
	}
}

func TestMessagesOfABlockedNumberAreAcknowledgedAndNeverDelivered(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000221", "5511900000222"
	c, phone := w.paired(t, pn), w.srv.Phone(contact)
	phone.Block(pn)
	c.mustText("BB12", pnJID(contact), "swallowed")
	if es := w.awaitLog(t, 1, Query{ID: "BB12", Kind: KindMessage, Dir: DirIn}); es[0].Relayed {
		t.Error("the log says that a blocked message was relayed")
	}
	phone.Unblock(pn)
	c.mustText("BB13", pnJID(contact), "heard")
	phone.awaitID(t, "BB13")
	for _, r := range phone.Received() {
		if r.ID == "BB12" {
			t.Errorf("a message of a blocked number was delivered: %+v", r)
		}
	}
}

func TestPushNamesArriveFromAppStateMessagesAndHistory(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000223", "5511900000224"
	phone := w.srv.Phone(pn)
	if err := phone.SetPushName("Front desk"); err != nil {
		t.Fatal(err)
	}
	phone.SetContact(contact, "Old friend")
	if err := w.srv.Phone(contact).SetPushName("Visitor"); err != nil {
		t.Fatal(err)
	}
	c := w.newClient(t, pn)
	c.pair()
	if c.Store.PushName != "Front desk" {
		t.Errorf("own push name after pairing = %q, want %q", c.Store.PushName, "Front desk")
	}
	await(c, func(e *events.HistorySync) bool {
		names := e.Data.GetPushnames()
		return len(names) == 1 && names[0].GetPushname() == "Old friend"
	})
	if err := phone.SetPushName("Night desk"); err != nil {
		t.Fatal(err)
	}
	await(c, func(e *events.PushNameSetting) bool { return e.Action.GetName() == "Night desk" })
	if _, err := w.srv.Phone(contact).SendText(t.Context(), pn, "hi"); err != nil {
		t.Fatal(err)
	}
	if m := c.awaitText("hi"); m.Info.PushName != "Visitor" {
		t.Errorf("push name of the sender = %q, want %q", m.Info.PushName, "Visitor")
	}
}

func TestPresenceAndTypingReachWhoSubscribed(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000225", "5511900000226"
	c, other := w.paired(t, pn), w.paired(t, contact)
	if err := c.SubscribePresence(t.Context(), pnJID(contact)); err != nil {
		t.Fatal(err)
	}
	if err := other.SendPresence(t.Context(), types.PresenceAvailable); err != nil {
		t.Fatal(err)
	}
	await(c, func(e *events.Presence) bool { return !e.Unavailable })
	if err := other.SendChatPresence(t.Context(), pnJID(pn), types.ChatPresenceComposing, types.ChatPresenceMediaText); err != nil {
		t.Fatal(err)
	}
	await(c, func(e *events.ChatPresence) bool { return e.State == types.ChatPresenceComposing })
}

func TestUsersAreFoundByNumberOnlyIfTheyExist(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000227", "5511900000228"
	c := w.paired(t, pn)
	w.srv.Phone(contact)
	answers, err := c.IsOnWhatsApp(t.Context(), []string{"+" + contact, "+5511900009999"})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range answers {
		if want := strings.Contains(a.Query, contact); a.IsIn != want {
			t.Errorf("IsOnWhatsApp(%s) = %v, want %v", a.Query, a.IsIn, want)
		}
	}
	if len(answers) != 2 {
		t.Errorf("got %d answers, want 2", len(answers))
	}
}

func TestTheServerSaysWhichDigitsANumberHas(t *testing.T) {
	w := newWorld(t)
	const pn, contact, form = "5511900000251", "551100000252", "5511900000252"
	c := w.paired(t, pn)
	phone := w.srv.Phone(contact)
	if err := phone.AlsoWrittenAs(form); err != nil {
		t.Fatal(err)
	}
	answers, err := c.IsOnWhatsApp(t.Context(), []string{form})
	if err != nil || len(answers) != 1 || !answers[0].IsIn || answers[0].PhoneNumber != pnJID(contact) || answers[0].JID != phone.LID() {
		t.Errorf("IsOnWhatsApp(%s) = %+v, %v, want the account of %s", form, answers, err, contact)
	}
}

func TestAPhoneThatHidesItsNumberShowsItsLIDAlone(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000253", "5511900000254"
	c, phone := w.paired(t, pn), w.srv.Phone(contact)
	phone.HideNumber(true)
	if _, err := phone.SendText(t.Context(), pn, "guess who"); err != nil {
		t.Fatal(err)
	}
	if m := c.awaitText("guess who"); m.Info.Sender.ToNonAD() != phone.LID() || !m.Info.SenderAlt.IsEmpty() {
		t.Errorf("sender = %s, other form = %s, want %s and nothing", m.Info.Sender, m.Info.SenderAlt, phone.LID())
	}
}

func TestANewCompanionIsAnnouncedToWhoKnewTheDeviceList(t *testing.T) {
	w := newWorld(t)
	const pn, contact = "5511900000229", "5511900000230"
	c := w.paired(t, pn)
	w.srv.Phone(contact)
	c.mustText("BB14", pnJID(contact), "to the phone alone")
	other := w.paired(t, contact)
	w.awaitLog(t, 1, Query{Session: pn, Dir: DirIn, Kind: KindAck, Sender: pn, Recipient: contact})
	c.mustText("BB15", pnJID(contact), "to both")
	other.awaitText("to both")
}

func TestAClientIsAskedForMoreKeysBeforeTheyRunOut(t *testing.T) {
	w := newWorld(t)
	const pn = "5511900000231"
	c := w.paired(t, pn)
	c.Disconnect()
	w.awaitLog(t, 1, Query{Session: pn, Kind: KindClose})
	s := w.srv
	s.mu.Lock()
	d := s.companion(pn, 1)
	for len(d.preKeys) > lowPreKeys-1 {
		d.bundle()
	}
	s.mu.Unlock()
	if err := c.Connect(); err != nil {
		t.Fatal(err)
	}
	await[*events.Connected](c, nil)
	s.mu.Lock()
	left := len(d.preKeys)
	s.mu.Unlock()
	if left < whatsmeow.WantedPreKeyCount {
		t.Errorf("%d one-time keys after login, want at least %d", left, whatsmeow.WantedPreKeyCount)
	}
}
