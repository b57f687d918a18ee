package wa

import (
	"context"
	"testing"

	"go.mau.fi/whatsmeow/proto/waE2E"
	"go.mau.fi/whatsmeow/types"
	"go.mau.fi/whatsmeow/types/events"
	"google.golang.org/protobuf/proto"

	"github.com/wafleet/wafleet/internal/fleet"
)

func TestBuildTextRefusesWhatCanNotBeKept(t *testing.T) {
	for _, bad := range []string{"", "a\x00b", "a\xff"} {
		if _, err := BuildText(bad); err == nil {
			t.Errorf("BuildText(%q) = nil error, want an error", bad)
		}
	}
	raw, err := BuildText("olá\n👋")
	if err != nil {
		t.Fatalf("BuildText = %v", err)
	}
	m := new(waE2E.Message)
	if err := proto.Unmarshal(raw, m); err != nil || m.GetConversation() != "olá\n👋" {
		t.Errorf("BuildText round trip = %q, %v", m.GetConversation(), err)
	}
}

func TestOnlyPeopleAreHeard(t *testing.T) {
	j := func(s string) types.JID {
		p, err := types.ParseJID(s)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, tt := range []struct {
		chat         string
		fromMe, grup bool
		want         string
	}{
		{"5511900000001@s.whatsapp.net", false, false, ""},
		{"5511900000001@s.whatsapp.net", true, false, "own"},
		{"120363000000000001@g.us", false, true, "group"},
		{"status@broadcast", false, true, "status"},
		{"1234567890@broadcast", false, true, "broadcast"},
		{"120363000000000002@newsletter", false, false, "newsletter"},
		{"867051314767696@bot", false, false, "other"},
		{"5511900000001@msgr", false, false, "other"},
	} {
		i := types.MessageInfo{MessageSource: types.MessageSource{Chat: j(tt.chat), Sender: j("5511900000001@s.whatsapp.net"), IsFromMe: tt.fromMe, IsGroup: tt.grup}}
		if got := foreign(&i); got != tt.want {
			t.Errorf("foreign(%s, fromMe %v) = %q, want %q", tt.chat, tt.fromMe, got, tt.want)
		}
		// What is not heard reaches no handler, so nothing of it is stored, and WhatsApp gets its ack.
		heard := 0
		s := NewSocket(Options{Handler: Handler{Message: func(context.Context, fleet.Inbound) error { heard++; return nil }}})
		acked := s.message(&life{ctx: t.Context()}, &events.Message{Info: i, RawMessage: say("hello")})
		if !acked || heard == 1 != (tt.want == "") {
			t.Errorf("a message in %s (fromMe %v): heard %d times, acked %v, want it heard only from people and always acked", tt.chat, tt.fromMe, heard, acked)
		}
	}
}

func TestAPersonIsKnownByNumberAndLID(t *testing.T) {
	pn, lid := types.NewJID("5511900000001", types.DefaultUserServer), types.NewJID("123456789012345", types.HiddenUserServer)
	for _, tt := range []struct {
		a, b       types.JID
		phone, lid string
	}{
		{pn, lid, pn.User, lid.User},
		{lid, pn, pn.User, lid.User},
		{pn, types.EmptyJID, pn.User, ""},
		{lid, types.EmptyJID, "", lid.User},
		{types.NewJID("status", types.DefaultUserServer), types.EmptyJID, "", ""},
		{types.NewJID("120363000000000001", types.GroupServer), pn, pn.User, ""},
	} {
		if phone, l := identity(tt.a, tt.b); phone != tt.phone || l != tt.lid {
			t.Errorf("identity(%s, %s) = %q, %q, want %q, %q", tt.a, tt.b, phone, l, tt.phone, tt.lid)
		}
	}
}
