package fleet

import "time"

// AuditEntry is one change that an operator, or somebody with an operator's link, made.
type AuditEntry struct {
	N       int64 // ascending, not gapless
	At      time.Time
	Actor   string // id of an admin key or an invite, or the command that did it
	Action  string // "session.update"
	OrgID   OrgID  // "" = concerns no organization
	Subject string // id of what was changed
	Before  string // JSON; "" = did not exist
	After   string // JSON; "" = does not exist any more
}
