package fleet

import "time"

// CommandClass groups commands that share a queue and a concurrency limit.
type CommandClass string

// Command classes.
const (
	ClassControl CommandClass = "control"
	ClassMedia   CommandClass = "media"
	ClassAvatar  CommandClass = "avatar"
)

// Command kinds of this version. An unknown kind is left alone and counted, never thrown away:
// a newer process may know it.
const (
	CommandPair    = "pair"    // payload PairPayload
	CommandConnect = "connect" // dial now: also leaves conflict, failed and temp_banned
	CommandLogout  = "logout"  // unlink the device at WhatsApp
	CommandRead    = "read"    // payload ReadPayload
	CommandCheck   = "check"   // payload CheckPayload: ask WhatsApp who people are
)

// CommandStatus is where a command is.
type CommandStatus string

// Command states.
const (
	CommandPending CommandStatus = "pending"
	CommandRunning CommandStatus = "running"
	CommandDone    CommandStatus = "done"
	CommandFailed  CommandStatus = "failed"
	CommandExpired CommandStatus = "expired"
)

// Command is anything but a message that a session must do.
type Command struct {
	ID         CommandID
	N          int64
	SessionID  SessionID
	Class      CommandClass
	Kind       string
	Payload    string // JSON
	Status     CommandStatus
	Result     string // JSON
	ErrorCode  string
	Error      string
	Attempts   int
	CreatedAt  time.Time
	ExpiresAt  time.Time
	FinishedAt time.Time
}

// PairPayload asks for a pairing attempt.
type PairPayload struct {
	Method string `json:"method"`          // PairQR or PairCode
	Phone  string `json:"phone,omitempty"` // E.164 digits, for PairCode
}

// CheckPayload asks WhatsApp who has an account, and where. The answer is in the contacts.
type CheckPayload struct {
	People []Person `json:"people"`
}

// ReadPayload asks to mark one inbound message as read.
type ReadPayload struct {
	InboundID InboundID `json:"inboundId"`
}
