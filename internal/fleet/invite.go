package fleet

import "time"

// What an invite gives when its maker says nothing else.
const (
	DefaultInviteSessions = 5
	DefaultInviteTTL      = 7 * 24 * time.Hour
)

// Invite is a pairing link: whoever holds its token may add numbers to one organization.
type Invite struct {
	ID          InviteID
	OrgID       OrgID
	MaxSessions int // numbers it may add
	Used        int // numbers it has added, those being paired now included
	MadeBy      KeyID
	LookupHash  []byte // HMAC-SHA256 of the token under LOOKUP_KEY: finds the row
	VerifyHash  string // argon2id PHC string: proves the token
	CreatedAt   time.Time
	ExpiresAt   time.Time
	RevokedAt   time.Time // zero = not revoked
	Expired     bool      // by the database's clock at the time of the read
}

// State is live, expired or revoked. A full invite is live: the numbers it added are still shown.
func (i Invite) State() InviteState {
	switch {
	case !i.RevokedAt.IsZero():
		return InviteRevoked
	case i.Expired:
		return InviteExpired
	default:
		return InviteLive
	}
}

// InviteState says whether an invite still opens anything.
type InviteState string

// Invite states.
const (
	InviteLive    InviteState = "live"
	InviteExpired InviteState = "expired"
	InviteRevoked InviteState = "revoked"
)

// InviteEnd is why a number that an invite added gave its slot back; "" while it holds one.
type InviteEnd string

// Ends of an attempt to add a number.
const (
	InviteEndExpired     InviteEnd = "expired"       // nobody scanned or typed the code in time
	InviteEndNumberInUse InviteEnd = "number_in_use" // another session has this number
	InviteEndPasskey     InviteEnd = "passkey"       // WhatsApp wanted a passkey
	InviteEndFailed      InviteEnd = "failed"        // WhatsApp or the phone refused
	InviteEndInterrupted InviteEnd = "interrupted"   // the worker went down in the middle
	InviteEndUnavailable InviteEnd = "unavailable"   // no worker took it up in time
	InviteEndCancelled   InviteEnd = "cancelled"     // by the person, or because the link was revoked
)

// InviteNumber is a number that an invite added, beside the last pairing that was asked for.
type InviteNumber struct {
	Session
	End  InviteEnd // "" while it holds a slot
	Over bool      // it never got linked and nothing is under way any more, so its slot is due back
	Pair Command   // the latest pairing command; zero if retention removed it
}

// Why is what to tell of an attempt that is over.
func (n *InviteNumber) Why() InviteEnd {
	switch {
	case n.End != "":
		return n.End
	case n.Observed == ObservedPairingExpired:
		return InviteEndExpired
	case n.Reason == ReasonNumberInUse:
		return InviteEndNumberInUse
	case n.Reason == ReasonPasskey:
		return InviteEndPasskey
	case n.Reason == ReasonInterrupted, n.Observed == ObservedPairing:
		return InviteEndInterrupted
	case n.Pair.Status == CommandPending, n.Pair.Status == CommandExpired:
		return InviteEndUnavailable
	default:
		return InviteEndFailed
	}
}
