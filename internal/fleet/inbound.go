package fleet

import "time"

// Kinds of inbound messages: what a person did, whatever envelope it came in. Kinds are only ever added.
const (
	KindText        = "text"
	KindEdited      = "edited"       // Text is the new text of the message that Content.About names
	KindRevoked     = "revoked"      // the sender took back the message that Content.About names
	KindReaction    = "reaction"     // Text is the emoji, "" when it was taken back
	KindButtonReply = "button_reply" // Text as shown, Content.Choice is the button's id
	KindListReply   = "list_reply"   // Text as shown, Content.Choice is the row's id
	KindPoll        = "poll"         // Text is the question
	KindContact     = "contact"      // Text is the shown name
	KindLocation    = "location"     // Text is the name of the place or the caption
	KindSystem      = "system"       // Content.Action says what
	KindImage       = "image"        // of media Text is the caption; the file itself is not fetched
	KindVideo       = "video"
	KindAudio       = "audio"
	KindVoice       = "voice"
	KindDocument    = "document"
	KindSticker     = "sticker"
	KindUnsupported = "unsupported" // something for a person that this version has no word for; Raw has its bytes
	// KindUnprocessable marks a message that this version can't read; Raw has its bytes.
	KindUnprocessable = "unprocessable"
)

// Content is what a message carries beside its text. Only what its kind has is set.
type Content struct {
	About    string        `json:"about,omitempty"`   // WhatsApp id of the message that it changes, answers or quotes
	Choice   string        `json:"choice,omitempty"`  // id of the button or row that was chosen
	Options  []string      `json:"options,omitempty"` // of a poll
	Location *Location     `json:"location,omitempty"`
	Contacts []ContactCard `json:"contacts,omitempty"`
	Media    *Media        `json:"media,omitempty"`
	Action   string        `json:"action,omitempty"` // of KindSystem: "pin", "unpin", "keep", "unkeep"
}

// Location is a point on earth, in degrees.
type Location struct {
	Latitude  float64 `json:"latitude"`
	Longitude float64 `json:"longitude"`
	Name      string  `json:"name,omitempty"`
	Address   string  `json:"address,omitempty"`
	Live      bool    `json:"live,omitempty"` // it moves; this is where it began
}

// ContactCard is a person that was passed on.
type ContactCard struct {
	Name  string `json:"name"`
	VCard string `json:"vcard"`
}

// Media describes a file as its sender did; nothing of it is checked.
type Media struct {
	MIME     string `json:"mime,omitempty"`
	Size     int64  `json:"size,omitempty"` // bytes
	FileName string `json:"fileName,omitempty"`
	Seconds  int    `json:"seconds,omitempty"` // of audio and video
}

// Inbound is one message that somebody sent to a session.
type Inbound struct {
	ID             InboundID
	OrgID          OrgID
	SessionID      SessionID
	ConversationID ConversationID
	ContactID      ContactID

	Chat        string // JID of the chat
	Sender      string // JID of the sender, without device
	SenderPhone string // E.164 digits, "" when only a LID is known
	SenderLID   string // digits, "" when unknown
	PushName    string
	WAID        string
	Kind        string // KindText and so on
	Version     int    // 0; of an edit its time in unix ms, so a later one is greater
	Text        string
	Content     *Content // nil: nothing but the text
	Raw         []byte   // marshalled message, for media and for kinds this version can't name
	Offline     bool     // WhatsApp held it while we were away

	SentAt     time.Time // WhatsApp's time
	ReceivedAt time.Time
}

// Person is what WhatsApp calls the sender.
func (m *Inbound) Person() Person { return Person{Phone: m.SenderPhone, LID: m.SenderLID} }
