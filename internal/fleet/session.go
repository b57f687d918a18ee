package fleet

import (
	"strings"
	"time"
)

// Desired is what the operator wants of a session. It is kept apart from what is observed, so a
// stopped session stays stopped over every restart and failover.
type Desired string

// Desired states.
const (
	DesiredRunning Desired = "running"
	DesiredStopped Desired = "stopped"
	DesiredDeleted Desired = "deleted"
)

// Observed is what a session's owner last saw of it. One owner writes it, fenced by its epoch.
//
//	needs_pairing ──pair──► pairing ──► connecting ◄──► reconnecting
//	      ▲                    │             │  ▲            │
//	      └── pairing_expired ◄┘             ▼  │            │
//	                                     connected ──────────┘
//	ends that need a person: logged_out, locked, banned, conflict, client_outdated, failed
//	ends that pass: temp_banned (until a time), unavailable (store or network), conflict (backs off first)
type Observed string

// Observed states.
const (
	ObservedNeedsPairing   Observed = "needs_pairing"
	ObservedPairing        Observed = "pairing"
	ObservedPairingExpired Observed = "pairing_expired"
	ObservedConnecting     Observed = "connecting"
	ObservedConnected      Observed = "connected"
	ObservedReconnecting   Observed = "reconnecting"
	ObservedUnavailable    Observed = "unavailable"
	ObservedConflict       Observed = "conflict"
	ObservedLoggedOut      Observed = "logged_out"
	ObservedLocked         Observed = "locked"
	ObservedTempBanned     Observed = "temp_banned"
	ObservedBanned         Observed = "banned"
	ObservedClientOutdated Observed = "client_outdated"
	ObservedFailed         Observed = "failed"
)

// Reasons for which a pairing ended without a login, beside those WhatsApp gives.
const (
	ReasonNumberInUse = "number_in_use"       // another session has the number
	ReasonPasskey     = "passkey_required"    // WhatsApp wants the account's passkey, which only its own pages can ask for
	ReasonInterrupted = "pairing_interrupted" // its worker went down
)

// Reasons that say more of a logout than that it came.
const (
	ReasonAfterSend = "logged_out_after_send" // within seconds of a frame
	ReasonUnhealthy = "unhealthy_identity"    // that for the second time: linking it anew will hardly help
)

// NeedsPerson reports whether only a person can end this state: no automatic dial follows it.
func (o Observed) NeedsPerson() bool {
	switch o {
	case ObservedConflict, ObservedLoggedOut, ObservedLocked, ObservedBanned, ObservedFailed:
		return true
	default:
		return false
	}
}

// Session is one WhatsApp number linked as a companion device: configuration and observed state.
type Session struct {
	ID       SessionID
	Slug     SessionSlug
	OrgID    OrgID
	Label    string
	Position int // list order within the organization
	Desired  Desired
	Paused   bool // the router skips it; inbound goes on
	Detached bool // taken out of the organization's list: the router does not know it; inbound goes on

	Budget      Budget    // as configured: negative parts are the default's
	Rate        Rate      // how fast it may take messages; a cap on bursts, not on volume
	WarmupAt    time.Time // when its ramp began, the first completed pairing of its number; zero = warmed up
	ColdUntil   time.Time // WhatsApp lets the number not write to strangers before this
	CappedUntil time.Time // WhatsApp lets the number open no new chats before this

	Observed
	ObservedSince time.Time
	Epoch         int64 // term that wrote the observed part
	Generation    int64
	Reason        string    // machine word for the last end: "replaced", "logged_out", …
	ReasonCode    int       // WhatsApp's code, 0 if none
	LastError     string    // for people
	Attempts      int       // failed connects in a row
	RetryAt       time.Time // when the next dial is due; zero = none planned
	Until         time.Time // end of a temporary ban

	Phone     string // E.164 digits without "+", fixed at the first pairing; "" before
	DeviceJID string // whatsmeow's device JID; "" before pairing
	LID       string
	PushName  string
	Platform  string
	PairedAt  time.Time // first completed pairing; never restarted by a re-pair
	RevokedAt time.Time // WhatsApp ended the login; the keys are kept but never used again

	Pairing Pairing

	InviteID  InviteID // the pairing link that added it; "" = an operator did
	CreatedAt time.Time

	// The lease, as read beside the row.
	LeaseOwner     string
	LeaseEpoch     int64
	LeaseExpiresAt time.Time
	LeaseLive      bool // somebody owns it, by the database's clock at the time of the read
}

// Ever reports whether the session was ever paired: such a session never pairs by itself.
func (s Session) Ever() bool { return !s.PairedAt.IsZero() }

// CanLogin reports whether there is a login that may be used.
func (s Session) CanLogin() bool { return s.DeviceJID != "" && s.RevokedAt.IsZero() }

// OwnerID is the WORKER_ID of who owns the session now; "" = nobody. An owner's name is that and a
// nonce of its start.
func (s Session) OwnerID() string {
	if !s.LeaseLive {
		return ""
	}
	if i := strings.LastIndexByte(s.LeaseOwner, '/'); i > 0 {
		return s.LeaseOwner[:i]
	}
	return s.LeaseOwner
}

// Age is how long ago the number was first paired; a year if it is not known or did not happen here.
func (s *Session) Age(now time.Time) time.Duration {
	if s.WarmupAt.IsZero() {
		return 365 * 24 * time.Hour
	}
	return now.Sub(s.WarmupAt)
}

// EffectiveBudget is what the session may send at this time.
func (s *Session) EffectiveBudget(now time.Time) Budget {
	return s.Budget.Or(DefaultBudget).Effective(s.Age(now))
}

// Pairing is what a person needs to see to link the session now; zero when none is under way.
type Pairing struct {
	Method    string    // "qr" or "code"
	QR        string    // text of the QR code
	Code      string    // eight characters, "ABCD-EFGH"
	ExpiresAt time.Time // of the QR shown, or of the code
	EndsAt    time.Time // of the whole attempt
}

// PairMethods.
const (
	PairQR   = "qr"
	PairCode = "code"
)
