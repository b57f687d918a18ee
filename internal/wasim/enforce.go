package wasim

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"go.mau.fi/whatsmeow/types"
)

// Codes of refused messages.
const (
	codeStranger = 463 // the sender may not write to people who never wrote to it
	codeCapped   = 475 // the sender has opened as many chats as it may
)

// Enforcement is how WhatsApp limits a number. The zero value limits nothing. What the real server does is assumed.
type Enforcement struct {
	// Tokens makes people who write to the number give it a trusted-contact token, one in seven days. Its linked devices
	// get it as a notification ahead of the message, and must show it when they write to them: who wrote and whose token
	// is not shown counts as a stranger. Without Tokens, who ever wrote is none.
	Tokens bool
	// TimeLock refuses messages to strangers with 463; nil refuses none.
	TimeLock *TimeLock
	// NewChats refuses first messages to people, with 475, once there were so many; nil refuses none.
	NewChats *NewChatCap
	// Throttle takes so many messages and no more; nil takes all.
	Throttle *Throttle
}

// TimeLock is a reach-out time-lock.
type TimeLock struct {
	Kind  string    // WhatsApp's word for it: "DEFAULT" if empty
	Ends  time.Time // zero: until it is lifted, and nobody is told an end
	Quiet bool      // the linked devices are not told
}

// NewChatCap bounds how many people a number may write to first, counted from when it is set.
type NewChatCap struct {
	Quota int
	Ends  time.Time // of the cycle; then it counts for nothing more. Zero: it doesn't end
	Quiet bool      // the linked devices are not told
}

// Throttle is how a number goes bad: so many messages are taken in any time of this length, and all others are not.
type Throttle struct {
	Accepts int
	Per     time.Duration // 0: ever
	// Code refuses the others; 0 acknowledges them and delivers nothing, so that no receipt ever comes.
	Code int
}

// enforced is an Enforcement and what it has counted. The server's lock guards it.
type enforced struct {
	Enforcement
	opened   map[string]bool // people written to first since the cap was set
	status   string          // of the cap, as last told
	accepted []time.Time     // messages that the throttle took
}

// trust is a token that somebody gave a number.
type trust struct {
	token []byte
	at    time.Time
}

// tokenTime is how long the bucket is in which nobody gives a second token.
const tokenTime = 7 * 24 * time.Hour

// SetEnforcement sets how a number is limited from now on, in place of what was set before, and tells its linked devices
// what changed for them: a time-lock that begins or ends, the state of a cap. Counts begin anew.
func (s *Server) SetEnforcement(pn string, e Enforcement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.account(pn)
	before := a.limits.TimeLock
	a.limits = enforced{Enforcement: e, opened: map[string]bool{}}
	switch {
	case e.TimeLock != nil && (before == nil || *before != *e.TimeLock):
		if !e.TimeLock.Quiet {
			a.tell("NotificationUserReachoutTimelockUpdate", "xwa2_notify_account_reachout_timelock", e.TimeLock.told())
		}
	case e.TimeLock == nil && before != nil && !before.Quiet:
		a.tell("NotificationUserReachoutTimelockUpdate", "xwa2_notify_account_reachout_timelock", map[string]any{"is_active": false})
	}
	a.tellCap()
}

// EnforcementOf is how a number is limited.
func (s *Server) EnforcementOf(pn string) Enforcement {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.byPN[pn]; a != nil {
		return a.limits.Enforcement
	}
	return Enforcement{}
}

func (l *TimeLock) told() map[string]any {
	told := map[string]any{"is_active": true, "enforcement_type": l.Kind}
	if l.Kind == "" {
		told["enforcement_type"] = "DEFAULT"
	}
	if !l.Ends.IsZero() {
		told["time_enforcement_ends"] = strconv.FormatInt(l.Ends.Unix(), 10)
	}
	return told
}

// tell gives every linked device a notification of the kind that carries JSON.
func (a *account) tell(op, field string, what map[string]any) {
	content, _ := json.Marshal(map[string]any{"data": map[string]any{field: what}}) // strings and numbers
	for _, d := range a.companions() {
		d.deliver(notification(types.ServerJID, "mex", node{Tag: "update", Attrs: attrs{"op_name": op}, Content: content}))
	}
}

// tellCap tells the state of the cap when it is another one. Half of the quota is the first warning and nine tenths the
// second: WhatsApp does not say where they lie.
func (a *account) tellCap() {
	c := a.limits.NewChats
	if c == nil || c.Quiet {
		return
	}
	used, status := len(a.limits.opened), "NONE"
	switch {
	case used >= c.Quota:
		status = "CAPPED"
	case 10*used >= 9*c.Quota:
		status = "SECOND_WARNING"
	case 2*used >= c.Quota:
		status = "FIRST_WARNING"
	}
	if status == a.limits.status || status == "NONE" && a.limits.status == "" {
		return
	}
	a.limits.status = status
	told := map[string]any{
		"capping_status": status, "total_quota": c.Quota, "used_quota": used, "server_sent_timestamp": unixNow(),
		"ote_status": "NOT_ELIGIBLE",
	}
	if !c.Ends.IsZero() {
		told["cycle_end_timestamp"] = strconv.FormatInt(c.Ends.Unix(), 10)
	}
	a.tell("MessageCappingInfoNotification", "xwa2_notify_new_chat_messages_capping_info_update", told)
}

// enforce decides about a message of a number to a person: the code of a refusal, or that it is swallowed. A message that
// passes is counted.
func (s *Server) enforce(from, to *account, n *node) (code int, swallow bool) {
	l, now := &from.limits, time.Now()
	if to == nil || to == from {
		return 0, false
	}
	if t := l.Throttle; t != nil {
		if t.Per > 0 {
			l.accepted = slices.DeleteFunc(l.accepted, func(at time.Time) bool { return now.Sub(at) >= t.Per })
		}
		if len(l.accepted) >= t.Accepts {
			return t.Code, t.Code == 0
		}
	}
	if lock := l.TimeLock; lock != nil && (lock.Ends.IsZero() || now.Before(lock.Ends)) && from.stranger(to, n) {
		return codeStranger, false
	}
	if c := l.NewChats; c != nil && (c.Ends.IsZero() || now.Before(c.Ends)) && !from.wrote[to.pn] && from.heard[to.pn].IsZero() {
		if len(l.opened) >= c.Quota {
			return codeCapped, false
		}
		l.opened[to.pn] = true
		from.tellCap()
	}
	if l.Throttle != nil {
		l.accepted = append(l.accepted, now)
	}
	from.wrote[to.pn] = true
	return 0, false
}

// stranger reports whether a person counts as one who never wrote to the number.
func (a *account) stranger(to *account, n *node) bool {
	if !a.limits.Tokens {
		return a.heard[to.pn].IsZero()
	}
	shown := n.GetChildByTag("tctoken")
	token, _ := shown.Content.([]byte)
	given, ok := a.trusted[to.pn]
	return !ok || !bytes.Equal(token, given.token)
}

// hear notes that somebody's phone wrote to a number, and gives it their token if it is due.
func (a *account) hear(from *account) {
	if a == from {
		return
	}
	now := time.Now()
	a.heard[from.pn] = now
	if given, ok := a.trusted[from.pn]; !a.limits.Tokens || ok && now.Sub(given.at) < tokenTime {
		return
	}
	token := make([]byte, 16)
	_, _ = rand.Read(token) // never fails
	a.trusted[from.pn] = trust{token, now}
	for _, d := range a.companions() {
		note := notification(from.jid(false, 0), "privacy_token", node{Tag: "tokens", Content: []node{{
			Tag: "token", Attrs: attrs{"type": "trusted_contact", "t": strconv.FormatInt(now.Unix(), 10)}, Content: token,
		}}})
		note.Attrs["sender_lid"] = from.jid(true, 0)
		d.deliver(note)
	}
}
