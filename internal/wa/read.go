package wa

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"go.mau.fi/whatsmeow/proto/waCommon"
	"go.mau.fi/whatsmeow/proto/waE2E"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/wafleet/wafleet/internal/fleet"
)

// Bounds of what strangers write beside the text, so that every event fits a webhook's body.
const (
	maxName     = 1024     // code points of a name, an address, an id
	maxOptions  = 64       // of a poll
	maxContacts = 48 << 10 // bytes of all cards of one message
)

// content is what a message carries for a person.
type content struct {
	Kind    string // of package fleet; "" = nothing for a person
	Version int    // of an edit
	Text    string
	More    *fleet.Content
	Raw     []byte // the whole message as it came, for media and fleet.KindUnsupported
}

// read finds the content of a message as it came, wrappers and all.
func read(raw *waE2E.Message) (content, error) {
	m := unwrap(raw)
	if m == nil {
		return content{}, nil
	}
	c := interpret(m)
	switch {
	case c.Kind != "" && (c.More == nil || c.More.Media == nil):
		return c, nil
	case c.Kind == "" && !forPeople(m):
		return content{}, nil
	case c.Kind == "":
		c.Kind = fleet.KindUnsupported
	}
	b, err := proto.Marshal(raw)
	if err != nil {
		return content{}, fmt.Errorf("marshal inbound message: %w", err)
	}
	c.Raw = b
	return c, nil
}

// interpret puts an unwrapped message into the words of package fleet; Kind "" if there are none for it.
func interpret(m *waE2E.Message) content {
	for _, try := range []func(*waE2E.Message) (content, bool){text, change, reply, shared, media} {
		if c, ok := try(m); ok {
			c.Text = clean(c.Text)
			return c
		}
	}
	return content{}
}

// text reads what is nothing but text to whoever gets it: also what businesses show with buttons below it.
func text(m *waE2E.Message) (content, bool) {
	extended, buttons, list, inter := m.GetExtendedTextMessage(), m.GetButtonsMessage(), m.GetListMessage(), m.GetInteractiveMessage()
	template := m.GetTemplateMessage().GetHydratedTemplate()
	if template == nil {
		template = m.GetTemplateMessage().GetHydratedFourRowTemplate()
	}
	for _, t := range []struct {
		text  string
		quote *waE2E.ContextInfo
	}{
		{m.GetConversation(), nil},
		{extended.GetText(), extended.GetContextInfo()},
		{buttons.GetContentText(), buttons.GetContextInfo()},
		{list.GetDescription(), list.GetContextInfo()},
		{list.GetTitle(), list.GetContextInfo()},
		{template.GetHydratedContentText(), m.GetTemplateMessage().GetContextInfo()},
		{inter.GetBody().GetText(), inter.GetContextInfo()},
	} {
		if t.text != "" {
			return content{Kind: fleet.KindText, Text: t.text, More: about(t.quote.GetStanzaID())}, true
		}
	}
	return content{}, false
}

// change reads what changes a message that came before: edits, revocations, reactions, pins.
func change(m *waE2E.Message) (content, bool) {
	system := func(key *waCommon.MessageKey, action string) (content, bool) {
		return content{Kind: fleet.KindSystem, More: &fleet.Content{About: word(key.GetID()), Action: action}}, true
	}
	protocol, pin, keep := m.GetProtocolMessage(), m.GetPinInChatMessage(), m.GetKeepInChatMessage()
	switch {
	case protocol.GetType() == waE2E.ProtocolMessage_MESSAGE_EDIT && protocol.GetKey() != nil:
		c := interpret(unwrap(protocol.GetEditedMessage()))
		if c.Kind == "" || c.Kind == fleet.KindEdited {
			return content{}, false
		}
		return content{
			Kind: fleet.KindEdited, Version: int(protocol.GetTimestampMS()), Text: c.Text,
			More: about(protocol.GetKey().GetID()),
		}, true
	case protocol != nil && protocol.GetType() == waE2E.ProtocolMessage_REVOKE && protocol.GetKey() != nil: // REVOKE is the zero value, too
		return content{Kind: fleet.KindRevoked, More: about(protocol.GetKey().GetID())}, true
	case m.GetReactionMessage() != nil:
		return content{Kind: fleet.KindReaction, Text: m.GetReactionMessage().GetText(), More: about(m.GetReactionMessage().GetKey().GetID())}, true
	case pin.GetType() == waE2E.PinInChatMessage_PIN_FOR_ALL:
		return system(pin.GetKey(), "pin")
	case pin.GetType() == waE2E.PinInChatMessage_UNPIN_FOR_ALL:
		return system(pin.GetKey(), "unpin")
	case keep.GetKeepType() == waE2E.KeepType_KEEP_FOR_ALL:
		return system(keep.GetKey(), "keep")
	case keep.GetKeepType() == waE2E.KeepType_UNDO_KEEP_FOR_ALL:
		return system(keep.GetKey(), "unkeep")
	default:
		return content{}, false
	}
}

// reply reads the choice among buttons or rows.
func reply(m *waE2E.Message) (content, bool) {
	chose := func(kind, text, id string, quote *waE2E.ContextInfo) (content, bool) {
		return content{Kind: kind, Text: text, More: &fleet.Content{About: word(quote.GetStanzaID()), Choice: word(id)}}, true
	}
	button, template, list := m.GetButtonsResponseMessage(), m.GetTemplateButtonReplyMessage(), m.GetListResponseMessage()
	flow := m.GetInteractiveResponseMessage()
	switch {
	case button != nil:
		return chose(fleet.KindButtonReply, button.GetSelectedDisplayText(), button.GetSelectedButtonID(), button.GetContextInfo())
	case template != nil:
		return chose(fleet.KindButtonReply, template.GetSelectedDisplayText(), template.GetSelectedID(), template.GetContextInfo())
	case list != nil:
		return chose(fleet.KindListReply, list.GetTitle(), list.GetSingleSelectReply().GetSelectedRowID(), list.GetContextInfo())
	case flow.GetNativeFlowResponseMessage() != nil:
		var params struct{ ID string }
		_ = json.Unmarshal([]byte(flow.GetNativeFlowResponseMessage().GetParamsJSON()), &params) // whatever it is, the text stands
		return chose(fleet.KindButtonReply, flow.GetBody().GetText(), params.ID, flow.GetContextInfo())
	default:
		return content{}, false
	}
}

// shared reads polls, people and places.
func shared(m *waE2E.Message) (content, bool) {
	for _, poll := range []*waE2E.PollCreationMessage{
		m.GetPollCreationMessage(), m.GetPollCreationMessageV2(), m.GetPollCreationMessageV3(),
		m.GetPollCreationMessageV5(), m.GetPollCreationMessageV6(),
	} {
		if poll == nil {
			continue
		}
		more := &fleet.Content{About: word(poll.GetContextInfo().GetStanzaID())}
		for _, o := range poll.GetOptions()[:min(len(poll.GetOptions()), maxOptions)] {
			more.Options = append(more.Options, word(o.GetOptionName()))
		}
		return content{Kind: fleet.KindPoll, Text: word(poll.GetName()), More: more}, true
	}
	place, live := m.GetLocationMessage(), m.GetLiveLocationMessage()
	switch one, many := m.GetContactMessage(), m.GetContactsArrayMessage(); {
	case one != nil:
		return people(one.GetDisplayName(), []*waE2E.ContactMessage{one}, one.GetContextInfo()), true
	case many != nil:
		return people(many.GetDisplayName(), many.GetContacts(), many.GetContextInfo()), true
	case place != nil && onEarth(place.GetDegreesLatitude(), place.GetDegreesLongitude()):
		return content{Kind: fleet.KindLocation, Text: word(place.GetName()), More: &fleet.Content{
			About: word(place.GetContextInfo().GetStanzaID()),
			Location: &fleet.Location{
				Latitude: place.GetDegreesLatitude(), Longitude: place.GetDegreesLongitude(),
				Name: word(place.GetName()), Address: word(place.GetAddress()), Live: place.GetIsLive(),
			},
		}}, true
	case live != nil && onEarth(live.GetDegreesLatitude(), live.GetDegreesLongitude()):
		return content{Kind: fleet.KindLocation, Text: live.GetCaption(), More: &fleet.Content{
			About:    word(live.GetContextInfo().GetStanzaID()),
			Location: &fleet.Location{Latitude: live.GetDegreesLatitude(), Longitude: live.GetDegreesLongitude(), Live: true},
		}}, true
	default:
		return content{}, false
	}
}

// onEarth is false for what JSON has no number for, too.
func onEarth(latitude, longitude float64) bool {
	return math.Abs(latitude) <= 90 && math.Abs(longitude) <= 180
}

// people keeps as many cards as fit.
func people(shown string, cards []*waE2E.ContactMessage, quote *waE2E.ContextInfo) content {
	more := &fleet.Content{About: word(quote.GetStanzaID())}
	left := maxContacts
	for _, card := range cards {
		c := fleet.ContactCard{Name: word(card.GetDisplayName()), VCard: clean(card.GetVcard())}
		if left -= len(c.Name) + len(c.VCard); left < 0 {
			break
		}
		more.Contacts = append(more.Contacts, c)
	}
	return content{Kind: fleet.KindContact, Text: word(shown), More: more}
}

// media reads what a file says about itself.
func media(m *waE2E.Message) (content, bool) {
	file := func(kind, caption string, quote *waE2E.ContextInfo, f fleet.Media) (content, bool) {
		f.MIME, f.FileName = word(f.MIME), word(f.FileName)
		return content{Kind: kind, Text: caption, More: &fleet.Content{About: word(quote.GetStanzaID()), Media: &f}}, true
	}
	image, video, audio := m.GetImageMessage(), m.GetVideoMessage(), m.GetAudioMessage()
	document, sticker := m.GetDocumentMessage(), m.GetStickerMessage()
	if video == nil {
		video = m.GetPtvMessage()
	}
	switch {
	case image != nil:
		return file(fleet.KindImage, image.GetCaption(), image.GetContextInfo(), fleet.Media{MIME: image.GetMimetype(), Size: size(image.GetFileLength())})
	case video != nil:
		return file(fleet.KindVideo, video.GetCaption(), video.GetContextInfo(),
			fleet.Media{MIME: video.GetMimetype(), Size: size(video.GetFileLength()), Seconds: int(video.GetSeconds())})
	case audio != nil:
		kind := fleet.KindAudio
		if audio.GetPTT() {
			kind = fleet.KindVoice
		}
		return file(kind, "", audio.GetContextInfo(), fleet.Media{MIME: audio.GetMimetype(), Size: size(audio.GetFileLength()), Seconds: int(audio.GetSeconds())})
	case document != nil:
		return file(fleet.KindDocument, document.GetCaption(), document.GetContextInfo(),
			fleet.Media{MIME: document.GetMimetype(), Size: size(document.GetFileLength()), FileName: document.GetFileName()})
	case sticker != nil:
		return file(fleet.KindSticker, "", sticker.GetContextInfo(), fleet.Media{MIME: sticker.GetMimetype(), Size: size(sticker.GetFileLength())})
	default:
		return content{}, false
	}
}

func size(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// about names the message that this one is about; nil if it stands by itself.
func about(id string) *fleet.Content {
	if id = word(id); id == "" {
		return nil
	}
	return &fleet.Content{About: id}
}

// word makes a stranger's short text safe to keep and no longer than maxName.
func word(s string) string {
	s = clean(s)
	n := 0
	for i := range s {
		if n == maxName {
			return s[:i]
		}
		n++
	}
	return s
}

// envelopes are the messages that only wrap another: sent from another device, disappearing, view once, with caption and
// so on. An edit stays in its protocol message, because its text is not a new message.
func envelopes(m *waE2E.Message) []*waE2E.Message {
	return []*waE2E.Message{
		m.GetDeviceSentMessage().GetMessage(), m.GetBotInvokeMessage().GetMessage(), m.GetEphemeralMessage().GetMessage(),
		m.GetViewOnceMessage().GetMessage(), m.GetViewOnceMessageV2().GetMessage(), m.GetViewOnceMessageV2Extension().GetMessage(),
		m.GetLottieStickerMessage().GetMessage(), m.GetDocumentWithCaptionMessage().GetMessage(), m.GetEditedMessage().GetMessage(),
		m.GetGroupMentionedMessage().GetMessage(), m.GetAssociatedChildMessage().GetMessage(), m.GetSpoilerMessage().GetMessage(),
		m.GetPollCreationMessageV4().GetMessage(),
	}
}

// unwrap takes off the envelopes.
func unwrap(m *waE2E.Message) *waE2E.Message {
	for range 16 { // messages come from strangers: never follow them without a limit
		inner := m
		for _, e := range envelopes(m) {
			if e != nil {
				inner = e
				break
			}
		}
		if inner == m {
			return m
		}
		m = inner
	}
	return m
}

// Fields that never carry anything for a person.
var protocolFields = map[protoreflect.Name]bool{
	"senderKeyDistributionMessage":               true,
	"fastRatchetKeySenderKeyDistributionMessage": true,
	"messageContextInfo":                         true,
	"stickerSyncRmrMessage":                      true,
}

// forPeople reports whether an unwrapped message carries something for a person. Fields that this version of the
// schema doesn't know count as content: it is better to pass on a stranger than to lose it.
func forPeople(m *waE2E.Message) bool {
	r := m.ProtoReflect()
	if len(r.GetUnknown()) > 0 {
		return true
	}
	found := false
	r.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		switch {
		case protocolFields[f.Name()]:
		case f.Name() == "protocolMessage":
			found = protocolForPeople(m.GetProtocolMessage())
		case f.Name() == "conversation": // empty, else it would be text
		default:
			found = true
		}
		return !found
	})
	return found
}

// protocolForPeople: of the protocol messages only an edit and a revocation change what people see.
func protocolForPeople(p *waE2E.ProtocolMessage) bool {
	switch p.GetType() {
	case waE2E.ProtocolMessage_MESSAGE_EDIT:
		return true
	case waE2E.ProtocolMessage_REVOKE: // the zero value, so look for the key of the message that is meant
		return p.GetKey() != nil
	default:
		return false
	}
}

// clean makes text safe to keep: no NUL, valid UTF-8.
func clean(s string) string {
	if strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(s, "\x00", "")
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
