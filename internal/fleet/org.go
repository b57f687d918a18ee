package fleet

import "time"

// Strategy is how the router orders an organization's eligible sessions.
type Strategy string

// The three strategies of the specification.
const (
	StrategyWeighted   Strategy = "weighted"
	StrategyPriority   Strategy = "priority"
	StrategyRoundRobin Strategy = "round-robin"
)

// Valid reports whether s is one of the three.
func (s Strategy) Valid() bool {
	return s == StrategyWeighted || s == StrategyPriority || s == StrategyRoundRobin
}

// Rate bounds how fast messages may be asked for. The zero value is no limit.
type Rate struct {
	PerMinute int `json:"perMinute"`
	Burst     int `json:"burst"` // at once; 0 = a minute's worth
}

// DefaultAffinityTTL is how long a person keeps the number that wrote to them last.
const DefaultAffinityTTL = 24 * time.Hour

// Organization is the tenant an API key speaks for.
type Organization struct {
	ID            OrgID
	Label         string
	Strategy      Strategy
	HeadSessionID SessionID // what consumers see as sessionId; "" before the first attach
	TimeZone      string    // IANA name: a project's month begins there
	AffinityTTL   time.Duration
	Rate          Rate
	CreatedAt     time.Time
}

// DefaultProject is the name of the project that every organization has and keeps.
const DefaultProject = "default"

// Project is a slice of an organization with limits of its own. A key belongs to one.
type Project struct {
	ID    ProjectID
	OrgID OrgID
	Name  string
	Entitlements
	CreatedAt time.Time
}

// Entitlements are what a project may do. 0 is no limit.
type Entitlements struct {
	MonthlyQuota int64 // messages in a month of the organization's time zone
	MaxBacklog   int64 // messages that wait to be sent
	RateMinute   int64 // messages accepted in a minute, on average
	RateBurst    int64 // of these, at once; 0 = a minute's worth
	Requests     int64 // requests to the API of any kind in a minute, on average
}

// Month is the calendar month that a time is in, in a time zone by its IANA name, and when it began: "2026-11".
// A zone that is not known here is taken for UTC.
func Month(t time.Time, zone string) (month string, from time.Time) {
	where, err := time.LoadLocation(zone)
	if err != nil {
		where = time.UTC
	}
	t = t.In(where)
	return t.Format("2006-01"), time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, where)
}

// APIKey is what is stored of a key: never the key itself.
type APIKey struct {
	ID         KeyID
	OrgID      OrgID // "" for an admin key
	ProjectID  ProjectID
	Admin      bool
	Label      string
	Prefix     string // the first characters of the key, for people to tell keys apart
	LookupHash []byte // HMAC-SHA256 under LOOKUP_KEY: finds the row
	VerifyHash string // argon2id PHC string: proves the key
	CreatedAt  time.Time
	RevokedAt  time.Time // zero = live
}

// Principal is who a request speaks for, after authentication.
type Principal struct {
	KeyID     KeyID
	Admin     bool
	OrgID     OrgID // "" for an admin
	ProjectID ProjectID
	Requests  int64 // of its project in a minute; 0 = no limit
}
