package wa

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"go.mau.fi/whatsmeow/proto/waE2E"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Kinds of inbound messages.
const (
	kindText        = "text"
	kindUnsupported = "unsupported"
)

// BuildText returns the marshalled message for a text. It fails for text that is empty or not valid UTF-8, and for NUL,
// which no database keeps.
func BuildText(text string) ([]byte, error) {
	switch {
	case text == "":
		return nil, errors.New("text is empty")
	case !utf8.ValidString(text):
		return nil, errors.New("text is not valid UTF-8")
	case strings.ContainsRune(text, 0):
		return nil, errors.New("text has a NUL character")
	}
	raw, err := proto.Marshal(&waE2E.Message{Conversation: proto.String(text)})
	if err != nil {
		return nil, fmt.Errorf("marshal text: %w", err)
	}
	return raw, nil
}

// content is what a message carries for a person.
type content struct {
	Kind string // kindText or kindUnsupported; "" = nothing for a person
	Text string
	Raw  []byte // the whole message as it came, for kindUnsupported
}

// read finds the content of a message as it came, wrappers and all.
func read(raw *waE2E.Message) (content, error) {
	m := unwrap(raw)
	if m == nil {
		return content{}, nil
	}
	if text := m.GetConversation(); text != "" {
		return content{Kind: kindText, Text: clean(text)}, nil
	}
	if text := m.GetExtendedTextMessage().GetText(); text != "" {
		return content{Kind: kindText, Text: clean(text)}, nil
	}
	if !forPeople(m) {
		return content{}, nil
	}
	b, err := proto.Marshal(raw)
	if err != nil {
		return content{}, fmt.Errorf("marshal inbound message: %w", err)
	}
	return content{Kind: kindUnsupported, Raw: b}, nil
}

// unwrap takes off the envelopes: sent from another device, disappearing, view once, with caption and so on. An edit
// stays in its protocol message, because its text is not a new message.
func unwrap(m *waE2E.Message) *waE2E.Message {
	for range 16 { // messages come from strangers: never follow them without a limit
		var inner *waE2E.Message
		switch {
		case m.GetDeviceSentMessage().GetMessage() != nil:
			inner = m.GetDeviceSentMessage().GetMessage()
		case m.GetBotInvokeMessage().GetMessage() != nil:
			inner = m.GetBotInvokeMessage().GetMessage()
		case m.GetEphemeralMessage().GetMessage() != nil:
			inner = m.GetEphemeralMessage().GetMessage()
		case m.GetViewOnceMessage().GetMessage() != nil:
			inner = m.GetViewOnceMessage().GetMessage()
		case m.GetViewOnceMessageV2().GetMessage() != nil:
			inner = m.GetViewOnceMessageV2().GetMessage()
		case m.GetViewOnceMessageV2Extension().GetMessage() != nil:
			inner = m.GetViewOnceMessageV2Extension().GetMessage()
		case m.GetLottieStickerMessage().GetMessage() != nil:
			inner = m.GetLottieStickerMessage().GetMessage()
		case m.GetDocumentWithCaptionMessage().GetMessage() != nil:
			inner = m.GetDocumentWithCaptionMessage().GetMessage()
		case m.GetEditedMessage().GetMessage() != nil:
			inner = m.GetEditedMessage().GetMessage()
		default:
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
