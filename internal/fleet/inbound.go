package fleet

import "time"

// KindUnprocessable marks an inbound message that this version can't read; Raw has its bytes.
const KindUnprocessable = "unprocessable"

// Inbound is one message that somebody sent to a session.
type Inbound struct {
	ID             InboundID
	OrgID          OrgID
	SessionID      SessionID
	ConversationID ConversationID

	Chat        string // JID of the chat
	Sender      string // JID of the sender, without device
	SenderPhone string // E.164 digits, "" when only a LID is known
	SenderLID   string // digits, "" when unknown
	PushName    string
	WAID        string
	Kind        string // "text", "unsupported", KindUnprocessable
	Version     int    // 0; edits count up
	Text        string
	Raw         []byte // marshalled message, for kinds this version can't name
	Offline     bool   // WhatsApp held it while we were away

	SentAt     time.Time // WhatsApp's time
	ReceivedAt time.Time
}

// ContactKey is the match key: the phone when known, else the LID.
func (m *Inbound) ContactKey() string { return ContactKey(m.SenderPhone, m.SenderLID) }

// ContactKey builds a match key from what is known of a person: E.164 digits, else "lid:<n>", else "".
func ContactKey(phone, lid string) string {
	switch {
	case phone != "":
		return phone
	case lid != "":
		return "lid:" + lid
	default:
		return ""
	}
}
