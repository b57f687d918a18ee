package wasim

import (
	"sync"
	"time"
)

// Scope says whom a fault concerns. The zero Scope is everyone.
type Scope struct {
	// Session is the own number (digits) of the connections that suffer.
	Session string
	// Recipient limits the fault to messages to this number (digits), and to key requests that name it. Faults
	// of the connection itself (latency, pings, logins, dials) only look at scopes without one, except Latency,
	// which then delays the acks of messages to this recipient.
	Recipient string
}

// Fault is what goes wrong. Fields left zero go well.
type Fault struct {
	// Latency delays what the server sends.
	Latency time.Duration
	// DropAcks loses every message ack, DropNextAcks so many of the next ones. The message is relayed.
	DropAcks     bool
	DropNextAcks int
	// CloseBeforeAck relays so many of the next messages and then drops the connection in place of the ack.
	CloseBeforeAck int
	// AckError refuses messages: they are not relayed and the ack carries this code (403, 463, 475, 479, 429
	// and so on). AckErrorNext, if not 0, limits it to so many of the next messages.
	AckError     int
	AckErrorNext int
	// KeyFetch answers requests for pre-keys with this error code; -1 never answers.
	KeyFetch int
	// LinkCode refuses requests for a pairing code with this error code.
	LinkCode int
	// KeyLatency delays the answers to requests for pre-keys, and nothing else: what comes later overtakes them.
	KeyLatency time.Duration
	// ConnectFailure refuses logins with this reason (401, 402, 403, 405, 406, 503). With 402, BanCode and
	// BanExpire go along. Unpaired connections only look at the scope of everyone.
	ConnectFailure int
	BanCode        int
	BanExpire      time.Duration
	// BadPatches makes so many of the next answers with app state end in a patch that does not verify; -1: every one.
	BadPatches int
	// RefuseDials fails connections before anything is said. See [Server.SetFault] for how a dial is matched.
	RefuseDials bool
	// MutePings leaves keepalives unanswered while everything else works and TCP stays open.
	MutePings bool
	// Silent reads and neither answers nor delivers anything.
	Silent bool
}

// ScopedFault is a fault in force. Counters show what is left of them.
type ScopedFault struct {
	Scope Scope
	Fault Fault
}

// faultTable holds the faults in force. It has its own lock, and nothing is called while it is held.
type faultTable struct {
	mu    sync.Mutex
	rules map[Scope]*Fault
}

// SetFault sets what goes wrong for a scope from now on, replacing what was set for exactly this scope before;
// the zero Fault clears it. Counters (…Next, CloseBeforeAck) count down in place.
//
// A dial is matched for RefuseDials before its number is known: by the X-Wafleet-Session header, once that
// session has logged in or paired; without this header, by the remote address if it is the name of an in-memory
// dialer that has logged in before; and always by the scope of everyone. Such a dial fails before the websocket
// opens. If none of these tells the number, the login is refused with 503 as soon as its payload names it.
func (s *Server) SetFault(scope Scope, f Fault) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	if f == (Fault{}) {
		delete(s.faults.rules, scope)
		return
	}
	s.faults.rules[scope] = &f
}

// Faults lists the faults in force, ordered by scope.
func (s *Server) Faults() []ScopedFault {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	var out []ScopedFault
	for _, scope := range sortedKeysFunc(s.faults.rules, func(a, b Scope) int {
		if a.Session != b.Session {
			return compareStrings(a.Session, b.Session)
		}
		return compareStrings(a.Recipient, b.Recipient)
	}) {
		out = append(out, ScopedFault{scope, *s.faults.rules[scope]})
	}
	return out
}

// find returns a copy of the narrowest fault for which has is true, and lets spend change the one in force
// (to count down). An empty recipient matches only scopes without one.
func (t *faultTable) find(session, recipient string, has func(*Fault) bool, spend func(*Fault)) (Fault, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.rules) == 0 {
		return Fault{}, false
	}
	for _, scope := range []Scope{{session, recipient}, {"", recipient}, {session, ""}, {}} {
		f := t.rules[scope]
		if f == nil || !has(f) {
			continue
		}
		found := *f
		if spend != nil {
			spend(f)
		}
		if *f == (Fault{}) {
			delete(t.rules, scope)
		}
		return found, true
	}
	return Fault{}, false
}

func (t *faultTable) has(session, recipient string, has func(*Fault) bool) bool {
	_, ok := t.find(session, recipient, has, nil)
	return ok
}

func (t *faultTable) latency(session, recipient string) time.Duration {
	f, _ := t.find(session, recipient, func(f *Fault) bool { return f.Latency > 0 }, nil)
	return f.Latency
}

// ackFate is what happens to a message instead of relay and ack.
type ackFate int

const (
	ackNormal ackFate = iota
	ackRefused
	ackLost
	ackClosed
)

// forMessage decides about one message and counts it.
func (t *faultTable) forMessage(session, recipient string) (ackFate, int) {
	refuses := func(f *Fault) bool { return f.AckError != 0 }
	if f, ok := t.find(session, recipient, refuses, func(f *Fault) {
		if f.AckErrorNext == 1 { // the last one; what is left means "all" no longer
			f.AckError = 0
		}
		f.AckErrorNext = max(0, f.AckErrorNext-1)
	}); ok {
		return ackRefused, f.AckError
	}
	if _, ok := t.find(session, recipient, func(f *Fault) bool { return f.CloseBeforeAck > 0 },
		func(f *Fault) { f.CloseBeforeAck-- }); ok {
		return ackClosed, 0
	}
	if _, ok := t.find(session, recipient, func(f *Fault) bool { return f.DropNextAcks > 0 },
		func(f *Fault) { f.DropNextAcks-- }); ok {
		return ackLost, 0
	}
	if t.has(session, recipient, func(f *Fault) bool { return f.DropAcks }) {
		return ackLost, 0
	}
	return ackNormal, 0
}
