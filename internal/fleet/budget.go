package fleet

import "time"

// Budget is how much one number may send. In a session's configuration a negative part stands for the
// default; 0 means no sends.
type Budget struct {
	PerMinute      int `json:"perMinute"`
	PerHour        int `json:"perHour"`
	PerDay         int `json:"perDay"`
	NewChatsPerDay int `json:"newChatsPerDay"` // first messages to people who never wrote
}

// DefaultBudget is deliberately conservative: a guess at limits that WhatsApp does not publish.
var DefaultBudget = Budget{PerMinute: 20, PerHour: 200, PerDay: 1_000, NewChatsPerDay: 50}

// NoBudget has every part at its default.
var NoBudget = Budget{PerMinute: -1, PerHour: -1, PerDay: -1, NewChatsPerDay: -1}

// MaxBudget bounds every part of a budget.
const MaxBudget = 10_000_000

// Or fills the parts that are not set from another budget.
func (b Budget) Or(other Budget) Budget {
	return b.each(other, func(part, or int) int {
		if part < 0 {
			return or
		}
		return part
	})
}

// Effective is what a number may send at its age, the time since it was first paired. A new number
// begins with a tenth of its budget and has all of it after two weeks:
//
//	age    ≤ 1 day   7 days   ≥ 14 days
//	share    10 %      50 %       100 %
//
// Between these it is linear. It never falls as age goes up, and never is 0 where the budget is not.
func (b Budget) Effective(age time.Duration) Budget {
	num, den := ramp(age)
	return b.each(b, func(part, _ int) int {
		if part < 1 {
			return part
		}
		return max(1, int(int64(part)*num/den))
	})
}

func (b Budget) each(other Budget, f func(part, other int) int) Budget {
	return Budget{
		f(b.PerMinute, other.PerMinute), f(b.PerHour, other.PerHour), f(b.PerDay, other.PerDay), f(b.NewChatsPerDay, other.NewChatsPerDay),
	}
}

// ramp is the share of its budget that a number of an age has, as a fraction of whole numbers. Seconds
// are fine enough, and the product with the largest budget fits.
func ramp(age time.Duration) (num, den int64) {
	const day = 86_400
	line := func(fromDay, toDay, fromShare, toShare int64) (int64, int64) {
		length := (toDay - fromDay) * day
		return fromShare*length + (toShare-fromShare)*(int64(age/time.Second)-fromDay*day), 100 * length
	}
	switch {
	case age <= 24*time.Hour:
		return 10, 100
	case age <= 7*24*time.Hour:
		return line(1, 7, 10, 50)
	case age <= 14*24*time.Hour:
		return line(7, 14, 50, 100)
	default:
		return 1, 1
	}
}

// WarmFor is how long somebody who wrote to a number counts as warm there, if no setting says less: as long
// as WhatsApp's token for that chat can be good. Strangers' gates don't hold back messages to warm people.
const WarmFor = 28 * 24 * time.Hour

// ColdFor is how long a number does not write to strangers when WhatsApp locked it without saying until when.
const ColdFor = 6 * time.Hour

// CappedFor is how long a number opens no new chats when WhatsApp capped it without saying until when.
const CappedFor = 24 * time.Hour

// Chat is what one session and one person have written to each other.
type Chat struct {
	SessionID  SessionID
	FirstOutAt time.Time // zero: we never wrote
	LastOutAt  time.Time // accurate to an hour
	FirstInAt  time.Time // zero: they never wrote
	LastInAt   time.Time // accurate to an hour
	TokenAt    time.Time // stamp of their trusted-contact token
}

// Warm reports whether the person wrote to this session, or gave it a token, within this time. A chat
// that we opened and nobody answered is not warm.
func (c *Chat) Warm(now time.Time, within time.Duration) bool {
	return !c.LastInAt.IsZero() && now.Sub(c.LastInAt) < within || !c.TokenAt.IsZero() && now.Sub(c.TokenAt) < within
}
