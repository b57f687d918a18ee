package wa

import (
	"strings"
	"testing"

	"go.mau.fi/whatsmeow/proto/waCommon"
	"go.mau.fi/whatsmeow/proto/waE2E"
	"go.mau.fi/whatsmeow/types"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

func say(text string) *waE2E.Message { return &waE2E.Message{Conversation: proto.String(text)} }

func wrap(m *waE2E.Message) *waE2E.FutureProofMessage { return &waE2E.FutureProofMessage{Message: m} }

func protocol(typ waE2E.ProtocolMessage_Type) *waE2E.Message {
	return &waE2E.Message{ProtocolMessage: &waE2E.ProtocolMessage{Type: typ.Enum()}}
}

func TestWhatAMessageSaysToAPerson(t *testing.T) {
	key := &waCommon.MessageKey{ID: proto.String("3EB0A1")}
	unknown := &waE2E.Message{}
	unknown.ProtoReflect().SetUnknown(protoreflect.RawFields{0x82, 0x7d, 0x01, 'x'}) // field 2000
	deep := say("deep")
	for range 100 {
		deep = &waE2E.Message{EphemeralMessage: wrap(deep)}
	}
	for _, tt := range []struct {
		name       string
		msg        *waE2E.Message
		kind, text string
	}{
		{"a text", say("hello"), kindText, "hello"},
		{"a text with a preview", &waE2E.Message{ExtendedTextMessage: &waE2E.ExtendedTextMessage{Text: proto.String("look")}}, kindText, "look"},
		{"a disappearing text", &waE2E.Message{EphemeralMessage: wrap(say("soon gone"))}, kindText, "soon gone"},
		{"a text to be seen once", &waE2E.Message{ViewOnceMessageV2: wrap(say("once"))}, kindText, "once"},
		{"disappearing and once", &waE2E.Message{EphemeralMessage: wrap(&waE2E.Message{ViewOnceMessage: wrap(say("both"))})}, kindText, "both"},
		{"once and disappearing", &waE2E.Message{ViewOnceMessage: wrap(&waE2E.Message{EphemeralMessage: wrap(say("both"))})}, kindText, "both"},
		{"a copy from another device", &waE2E.Message{DeviceSentMessage: &waE2E.DeviceSentMessage{Message: say("mine")}}, kindText, "mine"},
		{"a text beside key material", &waE2E.Message{Conversation: proto.String("hi"), SenderKeyDistributionMessage: &waE2E.SenderKeyDistributionMessage{}}, kindText, "hi"},
		{"NUL inside", say("a\x00b\x00"), kindText, "ab"},
		{"bytes that are not UTF-8", say("a\xffb"), kindText, "a\uFFFDb"},
		{"an image", &waE2E.Message{ImageMessage: &waE2E.ImageMessage{}}, kindUnsupported, ""},
		{"a document with caption", &waE2E.Message{DocumentWithCaptionMessage: wrap(&waE2E.Message{DocumentMessage: &waE2E.DocumentMessage{}})}, kindUnsupported, ""},
		{"a reaction", &waE2E.Message{ReactionMessage: &waE2E.ReactionMessage{Text: proto.String("+")}}, kindUnsupported, ""},
		{"an edit", &waE2E.Message{EditedMessage: wrap(&waE2E.Message{ProtocolMessage: &waE2E.ProtocolMessage{
			Type: waE2E.ProtocolMessage_MESSAGE_EDIT.Enum(), Key: key, EditedMessage: say("new"),
		}})}, kindUnsupported, ""},
		{"a revocation", &waE2E.Message{ProtocolMessage: &waE2E.ProtocolMessage{Type: waE2E.ProtocolMessage_REVOKE.Enum(), Key: key}}, kindUnsupported, ""},
		{"a field that this version doesn't know", unknown, kindUnsupported, ""},
		{"more envelopes than anybody needs", deep, kindUnsupported, ""},
		{"no message at all", nil, "", ""},
		{"an empty message", &waE2E.Message{}, "", ""},
		{"an empty text", say(""), "", ""},
		{"key material only", &waE2E.Message{SenderKeyDistributionMessage: &waE2E.SenderKeyDistributionMessage{}}, "", ""},
		{"context only", &waE2E.Message{MessageContextInfo: &waE2E.MessageContextInfo{}}, "", ""},
		{"an app state key share", protocol(waE2E.ProtocolMessage_APP_STATE_SYNC_KEY_SHARE), "", ""},
		{"a history notification", protocol(waE2E.ProtocolMessage_HISTORY_SYNC_NOTIFICATION), "", ""},
		{"a disappearing timer", protocol(waE2E.ProtocolMessage_EPHEMERAL_SETTING), "", ""},
		{"a protocol message without anything", &waE2E.Message{ProtocolMessage: &waE2E.ProtocolMessage{}}, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := read(tt.msg)
			if err != nil || got.Kind != tt.kind || got.Text != tt.text {
				t.Errorf("read = %q %q, %v, want %q %q", got.Kind, got.Text, err, tt.kind, tt.text)
			}
			if (len(got.Raw) > 0) != (tt.kind == kindUnsupported) {
				t.Errorf("read kept %d raw bytes for kind %q", len(got.Raw), got.Kind)
			}
		})
	}
}

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
		{"123456789012345@lid", false, false, ""},
		{"5511900000001@s.whatsapp.net", true, false, "own"},
		{"120363000000000001@g.us", false, true, "group"},
		{"status@broadcast", false, true, "status"},
		{"1234567890@broadcast", false, true, "broadcast"},
		{"120363000000000002@newsletter", false, false, "newsletter"},
		{"867051314767696@bot", false, false, "other"},
		{"5511900000001@msgr", false, false, "other"},
	} {
		i := &types.MessageInfo{MessageSource: types.MessageSource{Chat: j(tt.chat), IsFromMe: tt.fromMe, IsGroup: tt.grup}}
		if got := foreign(i); got != tt.want {
			t.Errorf("foreign(%s, fromMe %v) = %q, want %q", tt.chat, tt.fromMe, got, tt.want)
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

func FuzzReadNeverPanics(f *testing.F) {
	for _, m := range []*waE2E.Message{say("hello"), {EphemeralMessage: wrap(say("x"))}, protocol(waE2E.ProtocolMessage_REVOKE)} {
		raw, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte{0xff})
	f.Fuzz(func(t *testing.T, raw []byte) {
		m := new(waE2E.Message)
		if proto.Unmarshal(raw, m) != nil {
			return
		}
		c, err := read(m)
		if err == nil && (strings.ContainsRune(c.Text, 0) || strings.ToValidUTF8(c.Text, "") != c.Text) {
			t.Errorf("read(%x) = text %q with what must not be kept", raw, c.Text)
		}
	})
}
