package wa

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mau.fi/whatsmeow/proto/waCommon"
	"go.mau.fi/whatsmeow/proto/waE2E"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/wafleet/wafleet/internal/fleet"
)

func say(text string) *waE2E.Message { return &waE2E.Message{Conversation: proto.String(text)} }

func wrap(m *waE2E.Message) *waE2E.FutureProofMessage { return &waE2E.FutureProofMessage{Message: m} }

func protocol(typ waE2E.ProtocolMessage_Type) *waE2E.Message {
	return &waE2E.Message{ProtocolMessage: &waE2E.ProtocolMessage{Type: typ.Enum()}}
}

func edit(id string, to *waE2E.Message) *waE2E.Message {
	return &waE2E.Message{EditedMessage: wrap(&waE2E.Message{ProtocolMessage: &waE2E.ProtocolMessage{
		Type: waE2E.ProtocolMessage_MESSAGE_EDIT.Enum(), Key: &waCommon.MessageKey{ID: proto.String(id)},
		EditedMessage: to, TimestampMS: proto.Int64(1_700_000_000_123),
	}})}
}

func TestTextIsFoundInEveryEnvelope(t *testing.T) {
	for _, tt := range []struct {
		name string
		msg  *waE2E.Message
		want string
	}{
		{"a text", say("hello"), "hello"},
		{"a text with a preview", &waE2E.Message{ExtendedTextMessage: &waE2E.ExtendedTextMessage{Text: proto.String("look")}}, "look"},
		{"a disappearing text", &waE2E.Message{EphemeralMessage: wrap(say("soon gone"))}, "soon gone"},
		{"a text to be seen once", &waE2E.Message{ViewOnceMessage: wrap(say("once"))}, "once"},
		{"a text to be seen once, second form", &waE2E.Message{ViewOnceMessageV2: wrap(say("once"))}, "once"},
		{"a text to be seen once, third form", &waE2E.Message{ViewOnceMessageV2Extension: wrap(say("once"))}, "once"},
		{"disappearing and once", &waE2E.Message{EphemeralMessage: wrap(&waE2E.Message{ViewOnceMessage: wrap(say("both"))})}, "both"},
		{"once and disappearing", &waE2E.Message{ViewOnceMessage: wrap(&waE2E.Message{EphemeralMessage: wrap(say("both"))})}, "both"},
		{"a document's caption", &waE2E.Message{DocumentWithCaptionMessage: wrap(say("caption"))}, "caption"},
		{"a text that mentions groups", &waE2E.Message{GroupMentionedMessage: wrap(say("see there"))}, "see there"},
		{"a copy from another device", &waE2E.Message{DeviceSentMessage: &waE2E.DeviceSentMessage{Message: say("mine")}}, "mine"},
		{"a text in an edit's envelope", &waE2E.Message{EditedMessage: wrap(say("odd"))}, "odd"},
		{"a text beside key material", &waE2E.Message{Conversation: proto.String("hi"), SenderKeyDistributionMessage: &waE2E.SenderKeyDistributionMessage{}}, "hi"},
		{"what a business shows with buttons", &waE2E.Message{ButtonsMessage: &waE2E.ButtonsMessage{ContentText: proto.String("yes or no")}}, "yes or no"},
		{"what a business shows with a list", &waE2E.Message{ListMessage: &waE2E.ListMessage{Title: proto.String("menu"), Description: proto.String("choose")}}, "choose"},
		{"a list without a description", &waE2E.Message{ListMessage: &waE2E.ListMessage{Title: proto.String("menu")}}, "menu"},
		{"a template", &waE2E.Message{TemplateMessage: &waE2E.TemplateMessage{HydratedTemplate: &waE2E.TemplateMessage_HydratedFourRowTemplate{HydratedContentText: proto.String("dear customer")}}}, "dear customer"},
		{"an interactive message", &waE2E.Message{InteractiveMessage: &waE2E.InteractiveMessage{Body: &waE2E.InteractiveMessage_Body{Text: proto.String("tap")}}}, "tap"},
		{"NUL inside", say("a\x00b\x00"), "ab"},
		{"bytes that are not UTF-8", say("a\xffb"), "a\uFFFDb"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := read(tt.msg)
			if diff := cmp.Diff(content{Kind: fleet.KindText, Text: tt.want}, got); diff != "" || err != nil {
				t.Errorf("read (-want +got), %v:\n%s", err, diff)
			}
		})
	}
}

// One fixture per kind: the type, the text, and what the kind has beside it.
func TestEachKindOfMessageHasItsTypeAndItsContent(t *testing.T) {
	key := &waCommon.MessageKey{ID: proto.String("3EB0A1")}
	quote := &waE2E.ContextInfo{StanzaID: proto.String("3EB0A1")}
	poll := &waE2E.PollCreationMessage{Name: proto.String("lunch?"), Options: []*waE2E.PollCreationMessage_Option{{OptionName: proto.String("yes")}, {OptionName: proto.String("no")}}}
	asked := &fleet.Content{Options: []string{"yes", "no"}}
	ana := &waE2E.ContactMessage{DisplayName: proto.String("Ana"), Vcard: proto.String("BEGIN:VCARD\nEND:VCARD")}
	card := fleet.ContactCard{Name: "Ana", VCard: "BEGIN:VCARD\nEND:VCARD"}
	file := func(m fleet.Media) *fleet.Content { return &fleet.Content{Media: &m} }
	about := &fleet.Content{About: "3EB0A1"}
	for _, tt := range []struct {
		name string
		msg  *waE2E.Message
		want content
	}{
		{"a text that quotes", &waE2E.Message{ExtendedTextMessage: &waE2E.ExtendedTextMessage{Text: proto.String("this"), ContextInfo: quote}}, content{Kind: fleet.KindText, Text: "this", More: about}},
		{"an edit", edit("3EB0A1", say("new")), content{Kind: fleet.KindEdited, Version: 1_700_000_000_123, Text: "new", More: about}},
		{"an edit of a caption", edit("3EB0A1", &waE2E.Message{ImageMessage: &waE2E.ImageMessage{Caption: proto.String("new")}}), content{Kind: fleet.KindEdited, Version: 1_700_000_000_123, Text: "new", More: about}},
		{"an edit that disappears", edit("3EB0A1", &waE2E.Message{EphemeralMessage: wrap(say("new"))}), content{Kind: fleet.KindEdited, Version: 1_700_000_000_123, Text: "new", More: about}},
		{"a revocation", &waE2E.Message{ProtocolMessage: &waE2E.ProtocolMessage{Type: waE2E.ProtocolMessage_REVOKE.Enum(), Key: key}}, content{Kind: fleet.KindRevoked, More: about}},
		{"a reaction", &waE2E.Message{ReactionMessage: &waE2E.ReactionMessage{Text: proto.String("👍🏽"), Key: key}}, content{Kind: fleet.KindReaction, Text: "👍🏽", More: about}},
		{"a reaction that is taken back", &waE2E.Message{ReactionMessage: &waE2E.ReactionMessage{Text: proto.String(""), Key: key}}, content{Kind: fleet.KindReaction, More: about}},
		{"a button", &waE2E.Message{ButtonsResponseMessage: &waE2E.ButtonsResponseMessage{
			SelectedButtonID: proto.String("b1"), Response: &waE2E.ButtonsResponseMessage_SelectedDisplayText{SelectedDisplayText: "Yes"}, ContextInfo: quote,
		}}, content{Kind: fleet.KindButtonReply, Text: "Yes", More: &fleet.Content{About: "3EB0A1", Choice: "b1"}}},
		{"a template's button", &waE2E.Message{TemplateButtonReplyMessage: &waE2E.TemplateButtonReplyMessage{
			SelectedID: proto.String("b2"), SelectedDisplayText: proto.String("No"), ContextInfo: quote,
		}}, content{Kind: fleet.KindButtonReply, Text: "No", More: &fleet.Content{About: "3EB0A1", Choice: "b2"}}},
		{"an interactive button", &waE2E.Message{InteractiveResponseMessage: &waE2E.InteractiveResponseMessage{
			Body: &waE2E.InteractiveResponseMessage_Body{Text: proto.String("Later")}, ContextInfo: quote,
			InteractiveResponseMessage: &waE2E.InteractiveResponseMessage_NativeFlowResponseMessage_{
				NativeFlowResponseMessage: &waE2E.InteractiveResponseMessage_NativeFlowResponseMessage{ParamsJSON: proto.String(`{"id":"b3"}`)},
			},
		}}, content{Kind: fleet.KindButtonReply, Text: "Later", More: &fleet.Content{About: "3EB0A1", Choice: "b3"}}},
		{"a row of a list", &waE2E.Message{ListResponseMessage: &waE2E.ListResponseMessage{
			Title: proto.String("Pizza"), SingleSelectReply: &waE2E.ListResponseMessage_SingleSelectReply{SelectedRowID: proto.String("r7")}, ContextInfo: quote,
		}}, content{Kind: fleet.KindListReply, Text: "Pizza", More: &fleet.Content{About: "3EB0A1", Choice: "r7"}}},
		{"a poll", &waE2E.Message{PollCreationMessage: poll}, content{Kind: fleet.KindPoll, Text: "lunch?", More: asked}},
		{"a poll, third form", &waE2E.Message{PollCreationMessageV3: poll}, content{Kind: fleet.KindPoll, Text: "lunch?", More: asked}},
		{"a poll, fourth form", &waE2E.Message{PollCreationMessageV4: wrap(&waE2E.Message{PollCreationMessage: poll})}, content{Kind: fleet.KindPoll, Text: "lunch?", More: asked}},
		{"a person", &waE2E.Message{ContactMessage: ana}, content{Kind: fleet.KindContact, Text: "Ana", More: &fleet.Content{Contacts: []fleet.ContactCard{card}}}},
		{"people", &waE2E.Message{ContactsArrayMessage: &waE2E.ContactsArrayMessage{DisplayName: proto.String("2 contacts"), Contacts: []*waE2E.ContactMessage{ana, ana}}}, content{Kind: fleet.KindContact, Text: "2 contacts", More: &fleet.Content{Contacts: []fleet.ContactCard{card, card}}}},
		{"a place", &waE2E.Message{LocationMessage: &waE2E.LocationMessage{
			DegreesLatitude: proto.Float64(-23.5), DegreesLongitude: proto.Float64(-46.6), Name: proto.String("Sé"), Address: proto.String("Praça da Sé"),
		}}, content{Kind: fleet.KindLocation, Text: "Sé", More: &fleet.Content{Location: &fleet.Location{Latitude: -23.5, Longitude: -46.6, Name: "Sé", Address: "Praça da Sé"}}}},
		{"a place that moves", &waE2E.Message{LiveLocationMessage: &waE2E.LiveLocationMessage{
			DegreesLatitude: proto.Float64(1), DegreesLongitude: proto.Float64(2), Caption: proto.String("on my way"),
		}}, content{Kind: fleet.KindLocation, Text: "on my way", More: &fleet.Content{Location: &fleet.Location{Latitude: 1, Longitude: 2, Live: true}}}},
		{"a pin", &waE2E.Message{PinInChatMessage: &waE2E.PinInChatMessage{Key: key, Type: waE2E.PinInChatMessage_PIN_FOR_ALL.Enum()}}, content{Kind: fleet.KindSystem, More: &fleet.Content{About: "3EB0A1", Action: "pin"}}},
		{"no pin any more", &waE2E.Message{PinInChatMessage: &waE2E.PinInChatMessage{Key: key, Type: waE2E.PinInChatMessage_UNPIN_FOR_ALL.Enum()}}, content{Kind: fleet.KindSystem, More: &fleet.Content{About: "3EB0A1", Action: "unpin"}}},
		{"kept", &waE2E.Message{KeepInChatMessage: &waE2E.KeepInChatMessage{Key: key, KeepType: waE2E.KeepType_KEEP_FOR_ALL.Enum()}}, content{Kind: fleet.KindSystem, More: &fleet.Content{About: "3EB0A1", Action: "keep"}}},
		{"kept no more", &waE2E.Message{KeepInChatMessage: &waE2E.KeepInChatMessage{Key: key, KeepType: waE2E.KeepType_UNDO_KEEP_FOR_ALL.Enum()}}, content{Kind: fleet.KindSystem, More: &fleet.Content{About: "3EB0A1", Action: "unkeep"}}},
		{"an image", &waE2E.Message{ImageMessage: &waE2E.ImageMessage{Caption: proto.String("us"), Mimetype: proto.String("image/jpeg"), FileLength: proto.Uint64(9)}}, content{Kind: fleet.KindImage, Text: "us", More: file(fleet.Media{MIME: "image/jpeg", Size: 9})}},
		{"a video to be seen once", &waE2E.Message{ViewOnceMessageV2: wrap(&waE2E.Message{VideoMessage: &waE2E.VideoMessage{Seconds: proto.Uint32(3)}})}, content{Kind: fleet.KindVideo, More: file(fleet.Media{Seconds: 3})}},
		{"a round video", &waE2E.Message{PtvMessage: &waE2E.VideoMessage{Seconds: proto.Uint32(3)}}, content{Kind: fleet.KindVideo, More: file(fleet.Media{Seconds: 3})}},
		{"a sound", &waE2E.Message{AudioMessage: &waE2E.AudioMessage{Seconds: proto.Uint32(4)}}, content{Kind: fleet.KindAudio, More: file(fleet.Media{Seconds: 4})}},
		{"a voice note", &waE2E.Message{AudioMessage: &waE2E.AudioMessage{Seconds: proto.Uint32(4), PTT: proto.Bool(true)}}, content{Kind: fleet.KindVoice, More: file(fleet.Media{Seconds: 4})}},
		{"a document with caption", &waE2E.Message{DocumentWithCaptionMessage: wrap(&waE2E.Message{DocumentMessage: &waE2E.DocumentMessage{
			Caption: proto.String("the bill"), FileName: proto.String("bill.pdf"), FileLength: proto.Uint64(math.MaxUint64),
		}})}, content{Kind: fleet.KindDocument, Text: "the bill", More: file(fleet.Media{FileName: "bill.pdf", Size: math.MaxInt64})}},
		{"a sticker", &waE2E.Message{StickerMessage: &waE2E.StickerMessage{Mimetype: proto.String("image/webp")}}, content{Kind: fleet.KindSticker, More: file(fleet.Media{MIME: "image/webp"})}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := read(tt.msg)
			if media := tt.want.More != nil && tt.want.More.Media != nil; media != (len(got.Raw) > 0) {
				t.Errorf("read kept %d raw bytes; want them for media and for nothing else here", len(got.Raw))
			}
			got.Raw = nil
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("read (-want +got), %v:\n%s", err, diff)
			}
		})
	}
}

func TestWhatHasNoWordIsKeptRawAndProtocolIsNoMessage(t *testing.T) {
	unknown := &waE2E.Message{}
	unknown.ProtoReflect().SetUnknown(protoreflect.RawFields{0x82, 0x7d, 0x01, 'x'}) // field 2000
	deep := say("deep")
	for range 100 {
		deep = &waE2E.Message{EphemeralMessage: wrap(deep)}
	}
	nowhere := &waE2E.Message{LocationMessage: &waE2E.LocationMessage{DegreesLatitude: proto.Float64(math.NaN())}}
	for _, tt := range []struct {
		name, kind string
		msg        *waE2E.Message
	}{
		{"a field that this version doesn't know", fleet.KindUnsupported, unknown},
		{"more envelopes than anybody needs", fleet.KindUnsupported, deep},
		{"a place that is nowhere", fleet.KindUnsupported, nowhere},
		{"an edit to nothing", fleet.KindUnsupported, edit("3EB0A1", nil)},
		{"an edit to an edit", fleet.KindUnsupported, edit("3EB0A1", edit("3EB0A1", say("x")))},
		{"a product", fleet.KindUnsupported, &waE2E.Message{ProductMessage: &waE2E.ProductMessage{}}},
		{"no message at all", "", nil},
		{"an empty message", "", &waE2E.Message{}},
		{"an empty text", "", say("")},
		{"key material only", "", &waE2E.Message{SenderKeyDistributionMessage: &waE2E.SenderKeyDistributionMessage{}}},
		{"context only", "", &waE2E.Message{MessageContextInfo: &waE2E.MessageContextInfo{}}},
		{"an app state key share", "", protocol(waE2E.ProtocolMessage_APP_STATE_SYNC_KEY_SHARE)},
		{"a history notification", "", protocol(waE2E.ProtocolMessage_HISTORY_SYNC_NOTIFICATION)},
		{"a disappearing timer", "", protocol(waE2E.ProtocolMessage_EPHEMERAL_SETTING)},
		{"a protocol message without anything", "", &waE2E.Message{ProtocolMessage: &waE2E.ProtocolMessage{}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := read(tt.msg)
			if err != nil || got.Kind != tt.kind || got.Text != "" || (len(got.Raw) > 0) != (tt.kind == fleet.KindUnsupported) {
				t.Errorf("read = %q %q with %d raw bytes, %v, want kind %q without text", got.Kind, got.Text, len(got.Raw), err, tt.kind)
			}
		})
	}
}

func TestWhatStrangersWriteBesideTheTextIsBounded(t *testing.T) {
	long := proto.String(strings.Repeat("ü", maxName+1))
	poll := &waE2E.PollCreationMessage{Name: long}
	var cards []*waE2E.ContactMessage
	for range 1000 {
		poll.Options = append(poll.Options, &waE2E.PollCreationMessage_Option{OptionName: long})
		cards = append(cards, &waE2E.ContactMessage{DisplayName: long, Vcard: proto.String(strings.Repeat("x", 1000))})
	}
	for name, m := range map[string]*waE2E.Message{
		"poll":   {PollCreationMessage: poll},
		"people": {ContactsArrayMessage: &waE2E.ContactsArrayMessage{Contacts: cards}},
	} {
		c, err := read(m)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(c.More)
		if err != nil || len(raw) > 160<<10 || len(c.Text) > 2*maxName || len(c.More.Options)+len(c.More.Contacts) == 0 {
			t.Errorf("%s: %d bytes of text, %d of content, %v, want some, bounded", name, len(c.Text), len(raw), err)
		}
	}
}

func FuzzReadNeverPanics(f *testing.F) {
	for _, m := range []*waE2E.Message{say("hello"), {EphemeralMessage: wrap(say("x"))}, protocol(waE2E.ProtocolMessage_REVOKE), {LocationMessage: &waE2E.LocationMessage{DegreesLatitude: proto.Float64(math.NaN())}}} {
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
		if _, bad := json.Marshal(c.More); bad != nil {
			t.Errorf("read(%x) has content that can't be stored: %v", raw, bad)
		}
		if err == nil && (strings.ContainsRune(c.Text, 0) || strings.ToValidUTF8(c.Text, "") != c.Text) {
			t.Errorf("read(%x) = text %q with what must not be kept", raw, c.Text)
		}
	})
}
