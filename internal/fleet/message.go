package fleet

import (
	"slices"
	"time"
)

// Status is where a message is in its life.
//
//	queued ─► sending ─► sent ─► delivered ─► read | played
//	  │          │
//	  │          ├─► failed        WhatsApp refused it
//	  │          ├─► queued        surely nothing left: same id, later
//	  │          └─► unconfirmed   unknown for 24 h; a late receipt may raise it
//	  └─► expired | cancelled | suppressed | failed
//
// sending means "a frame may have left".
type Status string

// Message states.
const (
	StatusQueued      Status = "queued"
	StatusSending     Status = "sending"
	StatusSent        Status = "sent"
	StatusDelivered   Status = "delivered"
	StatusRead        Status = "read"
	StatusPlayed      Status = "played"
	StatusFailed      Status = "failed"
	StatusExpired     Status = "expired"
	StatusCancelled   Status = "cancelled"
	StatusSuppressed  Status = "suppressed"
	StatusUnconfirmed Status = "unconfirmed"
)

// Rank orders the states that receipts move through; 0 for the others.
func (s Status) Rank() int {
	switch s {
	case StatusSent:
		return 1
	case StatusDelivered:
		return 2
	case StatusRead:
		return 3
	case StatusPlayed:
		return 4
	default:
		return 0
	}
}

// Settled reports whether the gateway will do nothing more for the message. Receipts may still
// raise sent, delivered, read and unconfirmed.
func (s Status) Settled() bool { return s != StatusQueued && s != StatusSending }

// Statuses lists every state a message can be in.
func Statuses() []Status {
	return []Status{
		StatusQueued, StatusSending, StatusSent, StatusDelivered, StatusRead, StatusPlayed,
		StatusFailed, StatusExpired, StatusCancelled, StatusSuppressed, StatusUnconfirmed,
	}
}

// Valid reports whether s is a known state.
func (s Status) Valid() bool { return slices.Contains(Statuses(), s) }

// CanBecome reports whether a message may go from s to next. Receipts only move forward, and a
// refused, expired, cancelled or suppressed message stays what it is.
func (s Status) CanBecome(next Status) bool {
	if next.Rank() >= 2 { // a receipt: proof that the message arrived
		switch s {
		case StatusQueued, StatusSending, StatusUnconfirmed:
			return true
		default:
			return s.Rank() >= 1 && s.Rank() < next.Rank()
		}
	}
	switch s {
	case StatusQueued:
		return next == StatusSending || next == StatusExpired || next == StatusCancelled || next == StatusSuppressed || next == StatusFailed
	case StatusSending:
		return next == StatusSent || next == StatusFailed || next == StatusQueued || next == StatusUnconfirmed
	default:
		return false
	}
}

// Outcome is what is known of a send. Unknown is never folded into refused.
type Outcome string

// The outcomes of a send. OutcomeNothing means that surely no frame left.
const (
	OutcomeNone    Outcome = ""
	OutcomeSent    Outcome = "sent"
	OutcomeRefused Outcome = "refused"
	OutcomeUnknown Outcome = "unknown"
	OutcomeNothing Outcome = "nothing"
)

// MaxTextLength bounds a text message, in Unicode code points.
const MaxTextLength = 65_536

// DefaultTTL is how long an immediate message may wait for its frame before it expires.
const DefaultTTL = 600 * time.Second

// RepeatAfter says when an unknown outcome is settled by repeating, counted from T0, the moment it
// became unknown (after a takeover: the end of the offline queue). The same id is sent on the same session, never
// more often than this.
var RepeatAfter = [...]time.Duration{15 * time.Second, 5 * time.Minute}

// UnconfirmedAfter closes a message whose outcome stayed unknown.
const UnconfirmedAfter = 24 * time.Hour

// UnknownNotice is how long a send stays unknown before an event tells of it.
const UnknownNotice = 60 * time.Second

// PayloadRetention is how long the marshalled message is kept to answer retry receipts.
const PayloadRetention = 72 * time.Hour

// MaxRetryFrames bounds the frames that answer retry receipts for one message.
const MaxRetryFrames = 5

// CodeUndecryptable is the error code of a message that left, but whose recipient asked for it
// MaxRetryFrames times: they see that a message waits, and not what it says.
const CodeUndecryptable = "UNDECRYPTABLE_BY_RECIPIENT"

// Message is one outbound send and its whole life.
type Message struct {
	ID             MessageID
	Seq            int64 // database sequence: lane order
	OrgID          OrgID
	ProjectID      ProjectID
	SessionID      SessionID
	ConversationID ConversationID
	ContactKey     string // match key of the recipient: E.164 digits, or "lid:<n>"
	To             string // as the caller wrote it
	ToJID          string // where the frame goes
	Kind           string // "text"
	Text           string
	ClientRef      string // the caller's own reference, echoed
	WAID           string

	Reservation string    // what the ledger gave for its frame; "" = none, or given back
	Generation  int64     // of the ledger that gave it
	Opened      bool      // it opened the chat with this person on its session
	Parked      bool      // no session has it now: it waits to be routed
	Hops        int       // sessions that WhatsApp refused it on because the recipient is a stranger there
	SendAt      time.Time // when the caller wants it sent; zero = at once

	Status      Status
	Outcome     Outcome
	ErrorCode   string // stable code of a refusal: "RECIPIENT_REFUSED", "EXPIRED", …
	ErrorDetail string
	Attempts    int
	Repeats     int
	ClaimEpoch  int64

	Unresolved bool // WhatsApp is asked where it goes before its first frame
	Exempt     bool // it confirms an opt-out, which doesn't hold it back

	DueAt        time.Time
	ExpiresAt    time.Time
	UnknownSince time.Time // T0
	NextRepeatAt time.Time
	CreatedAt    time.Time
	SentAt       time.Time
	DeliveredAt  time.Time
	ReadAt       time.Time
	PlayedAt     time.Time
}

// AttemptKind says why a frame was sent.
type AttemptKind string

// Attempt kinds.
const (
	AttemptSend   AttemptKind = "send"
	AttemptRepeat AttemptKind = "repeat"
	AttemptRetry  AttemptKind = "retry" // answer to a retry receipt
)

// Receipt is what WhatsApp told about messages that a session sent.
type Receipt struct {
	SessionID SessionID
	WAIDs     []string
	Status    Status // delivered, read or played
	Chat      string // JID
	From      string // JID of the person
	At        time.Time
}
