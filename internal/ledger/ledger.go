package ledger

import (
	"context"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
)

// Ledger is what both implementations do. Methods are safe for use by several goroutines and have a
// deadline of their own beside the context's.
//
// Every method fails with an error that wraps fleet.ErrUnavailable when the ledger can't be asked
// now; that is a *fleet.CodedError LEDGER_COLD while it is being rebuilt. After such an error of
// Reserve or Settle it isn't known whether it was done: the call must not be repeated for the same
// reservation. What was taken and never told then lapses.
type Ledger interface {
	// Reserve picks one of the candidates and takes from it and from the limits, all or nothing.
	// A refusal is an Answer and no error.
	Reserve(ctx context.Context, r Request) (Answer, error)
	// Look decides as Reserve would and takes nothing. With no Key and no Limits it is a plain view
	// of the candidates.
	Look(ctx context.Context, r Request) (View, error)
	// Settle tells what became of reservations, of frames that had none, and of numbers' health.
	// Each reservation is settled once.
	Settle(ctx context.Context, s ...Settlement) error

	// Pin makes the session the one that the person hears from, unless a pin lives already. It
	// returns whose pin lives now.
	Pin(ctx context.Context, org fleet.OrgID, key string, to fleet.SessionSlug, ttl time.Duration) (fleet.SessionSlug, error)
	// Merge gives two keys that turned out to be one person the newer of their pins, under into.
	Merge(ctx context.Context, org fleet.OrgID, from, into string) error
	// Unpin forgets every pin of the organization to this session, which was detached.
	Unpin(ctx context.Context, org fleet.OrgID, from fleet.SessionSlug) error

	// Version says which configuration of an organization is current. A router reads it before it
	// reads rows and sends it with each Request; one read under another version gets Stale.
	Version(ctx context.Context, org fleet.OrgID) (Version, error)
	// Bump makes what was read before stale. Call it before and after the commit of a change.
	Bump(ctx context.Context, org fleet.OrgID) (Version, error)
	// Rebase tells how long projects' backlogs are by their rows. What the ledger has above that is
	// taken off once two calls in a row have seen it; let a minute pass between them.
	Rebase(ctx context.Context, rows map[fleet.ProjectID]int64) error

	// Admit takes one request from every limit, or from none. Buckets begin full: what was counted of requests is
	// not worth a rebuild.
	Admit(ctx context.Context, limits ...CallLimit) (Admission, error)

	// Warm rebuilds a cold ledger and does nothing to a warm one. Reserve does so by itself, in one
	// caller at a time, while all others are refused with LEDGER_COLD.
	Warm(ctx context.Context) error
	// Cool makes a ledger of this generation cold; a newer one it leaves alone. It is for the INSERT
	// that found the generation of its reservation not to be the one in SQL, which happens when a
	// rebuild ended between loading and committing.
	Cool(ctx context.Context, generation int64) error
	// Close gives up what is held. Calls after it fail.
	Close()
}

// Version marks one state of an organization's configuration; 0 is checked against nothing.
type Version int64

// Budget is the effective budget of a session in frames. 0 means none.
type Budget struct {
	PerMinute, PerHour, PerDay, NewChatsPerDay int
}

// Rate is a token bucket: so many per second on average, so many at once. PerSecond 0 is no limit.
type Rate struct {
	PerSecond float64
	Burst     float64 // at least 1
}

// Candidate is a session that may send as far as its rows say.
type Candidate struct {
	Slug   fleet.SessionSlug
	Budget Budget
	Rate   Rate
	// NewChat says that this would be the first message from that number to this person.
	NewChat bool
}

// Limits are a project's entitlements. 0 is no limit; what is used is counted all the same.
type Limits struct {
	Project                         fleet.ProjectID
	ProjectRate, OrgRate, FleetRate Rate
	Backlog                         int64  // messages that wait to be sent
	Quota                           int64  // messages in Month
	Month                           string // of the organization's zone: "2026-11"; "" = no quota is counted
}

// Request is one message that wants a number.
type Request struct {
	Org fleet.OrgID
	// Key is the match key of the recipient: what pins go by. "" looks at no pin and makes none.
	Key         string
	AffinityTTL time.Duration // 0 = a day
	Candidates  []Candidate   // in list order; none with Limits takes only from these (a scheduled message)
	Strategy    fleet.Strategy
	// Rand is the dice of a weighted choice, in [0, 1).
	Rand float64
	// Hold is how long the message may wait for its frame at most; then it lapses. 0 = 15 minutes.
	Hold time.Duration
	// Version of the configuration that the candidates were read under.
	Version Version
	Limits  *Limits // nil = none are checked and none taken
	// Bound says that the message belongs to its one candidate (a reaction, a group): neither health
	// nor pins are asked.
	Bound bool
	// Move is the reservation of the same message on another number, or of a scheduled message that
	// has none yet. With a taken Answer it is given back in the same step, except for what it holds
	// of limits: that passes on to the new reservation.
	Move Reservation
}

// Verdict is how a Request ended.
type Verdict string

// Verdicts. Only Taken took anything.
const (
	Taken      Verdict = "taken"
	Stale      Verdict = "stale"      // the configuration changed: read it again
	Rated      Verdict = "rated"      // a token bucket of project, organization or fleet is empty
	Overdrawn  Verdict = "overdrawn"  // the month's quota is used up
	Backlog    Verdict = "backlog"    // too many of the project's messages wait
	Exhausted  Verdict = "exhausted"  // no candidate can send now, one will after Wait
	Ineligible Verdict = "ineligible" // no candidate can send, and none will by waiting for a window
)

// Why says why one candidate was passed over.
type Why byte

// Reasons, the first that holds in this order.
const (
	Free     Why = 0 // it could send
	Unwell   Why = 1 // its health is below the floor
	Minute   Why = 2
	Hour     Why = 3
	Day      Why = 4
	NewChats Why = 5
	Tokens   Why = 6 // its own token bucket
)

// Answer of Reserve.
type Answer struct {
	Verdict     Verdict
	Winner      int         // index of the candidate taken, -1 if none
	Pinned      bool        // affinity chose it
	Reservation Reservation // zero unless taken
	Why         []Why       // one per candidate with Exhausted and Ineligible, else nil
	// Wait is the time until the limit that refused reopens: with Exhausted the soonest of the
	// candidates. 0 = not known (Overdrawn, Backlog) or never (Ineligible).
	Wait    time.Duration
	Version Version // with Stale the current one
}

// View of Look: the answer without a reservation, and each candidate's account.
type View struct {
	Answer
	Accounts []Account // one per candidate
}

// Account is what one candidate has used, exactly, outstanding ones included.
type Account struct {
	Why         Why
	Used        Budget // in the current windows
	Outstanding int    // of it, frames that have not left
	Health      int    // 0 to 100
}

// Health is what an outcome says about the number that had it.
type Health int8

// Only failures about the number itself count against it, never those about a recipient.
const (
	HealthSame Health = iota
	HealthGood        // WhatsApp took a message
	HealthBad         // WhatsApp refused one because of the number
)

// Settlement is one thing that happened on a session.
type Settlement struct {
	// Session is needed without a Reservation only: a repeat, or a frame for a retry receipt.
	Session     fleet.SessionSlug
	Reservation Reservation
	// Frames that left. With a Reservation, 0 gives it back and 1 counts it.
	Frames int
	// Ago is how long ago that was, by this process's monotonic clock; too short is safe.
	Ago time.Duration
	// Unstored says that no committed row ever had the reservation.
	Unstored bool
	Health   Health
}

// Rebuild makes a lost ledger anew. The function holds a lock that lets one process at a time do so
// and keeps messages from being inserted; under it it asks cold, since another may have been faster;
// raises the generation, so that messages that reserved before can't be inserted; reads State; and
// calls load. It commits after load only.
type Rebuild func(ctx context.Context, cold func(context.Context) (bool, error), load func(context.Context, State) error) error

// State is what a ledger is rebuilt from.
type State struct {
	Generation int64
	// Frames that left in the last 25 hours and whose message is not outstanding, with one entry per
	// session and moment or any coarser sum: At then is the latest moment of the sum.
	Frames []FrameCount
	// Outstanding are the reservations of messages whose frame has not left for certain: queued, and
	// sending without an outcome.
	Outstanding []Reservation
	Health      map[fleet.SessionSlug]int // those below 100 by what happened in the last 6 hours
	Pins        []PinState
	Backlog     map[fleet.ProjectID]int64 // all messages that wait, scheduled ones too
	Quota       []QuotaCount
}

// FrameCount is a number of frames of one session.
type FrameCount struct {
	Session  fleet.SessionSlug
	At       time.Time
	Frames   int
	NewChats int // of them, first messages to somebody
}

// PinState is who a person hears from.
type PinState struct {
	Org     fleet.OrgID
	Key     string
	Session fleet.SessionSlug
	Until   time.Time
}

// QuotaCount is what a project used in a month.
type QuotaCount struct {
	Project fleet.ProjectID
	Month   string
	Used    int64
}

// Options of both implementations. The zero value has the defaults.
type Options struct {
	Rebuild       Rebuild // nil: an empty ledger of generation 1 (tests, tools)
	HealthMin     int     // a session below it is passed over; 0 = 30
	HealthPenalty int     // 0 = 20
	HealthReward  int     // 0 = 5
	// Now is for tests that compare two ledgers; nil = the ledger's own clock, which is Redis' between
	// processes.
	Now func() time.Time
}

const (
	fullHealth  = 100
	healthTTL   = 6 * time.Hour
	defaultHold = 15 * time.Minute
	defaultPin  = 24 * time.Hour
	coldRetry   = time.Second
	settleSoon  = 5 // seconds that a frame which hasn't left is expected to take when Wait is worked out
)

func (o Options) or() Options {
	if o.HealthMin == 0 {
		o.HealthMin = 30
	}
	if o.HealthPenalty == 0 {
		o.HealthPenalty = 20
	}
	if o.HealthReward == 0 {
		o.HealthReward = 5
	}
	return o
}

func errCold() error {
	return &fleet.CodedError{
		Code: "LEDGER_COLD", Detail: "what numbers have sent is being read again; try again in a moment",
		RetryAfter: coldRetry, Err: fleet.ErrUnavailable,
	}
}
