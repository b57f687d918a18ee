package wasim

import (
	"net/http"
	"time"
)

// faultView is a fault in JSON; times are in milliseconds.
type faultView struct {
	LatencyMs      int64 `json:"latencyMs,omitempty"`
	DropAcks       bool  `json:"dropAcks,omitempty"`
	DropNextAcks   int   `json:"dropNextAcks,omitempty"`
	CloseBeforeAck int   `json:"closeBeforeAck,omitempty"`
	AckError       int   `json:"ackError,omitempty"`
	AckErrorNext   int   `json:"ackErrorNext,omitempty"`
	KeyFetch       int   `json:"keyFetch,omitempty"`
	LinkCode       int   `json:"linkCode,omitempty"`
	KeyLatencyMs   int64 `json:"keyLatencyMs,omitempty"`
	ConnectFailure int   `json:"connectFailure,omitempty"`
	BanCode        int   `json:"banCode,omitempty"`
	BanExpireMs    int64 `json:"banExpireMs,omitempty"`
	BadPatches     int   `json:"badPatches,omitempty"`
	RefuseDials    bool  `json:"refuseDials,omitempty"`
	MutePings      bool  `json:"mutePings,omitempty"`
	Silent         bool  `json:"silent,omitempty"`
}

type scopedFaultView struct {
	Session   string    `json:"session"`
	Recipient string    `json:"recipient"`
	Fault     faultView `json:"fault"`
}

// maxFaultTime bounds the times of a fault set over HTTP.
const maxFaultTime = 366 * 24 * time.Hour

func (v *faultView) fault() (Fault, error) {
	for name, n := range map[string]int{"dropNextAcks": v.DropNextAcks, "closeBeforeAck": v.CloseBeforeAck, "ackErrorNext": v.AckErrorNext, "banCode": v.BanCode} {
		if n < 0 {
			return Fault{}, badInput(name + ": negative")
		}
	}
	for name, ms := range map[string]int64{"latencyMs": v.LatencyMs, "keyLatencyMs": v.KeyLatencyMs, "banExpireMs": v.BanExpireMs} {
		if ms < 0 || ms > maxFaultTime.Milliseconds() {
			return Fault{}, badInput(name + ": out of range")
		}
	}
	code := func(n int) bool { return n == 0 || (n >= 400 && n <= 599) }
	switch {
	case !code(v.AckError):
		return Fault{}, badInput("ackError: a code from 400 to 599")
	case v.AckErrorNext > 0 && v.AckError == 0:
		return Fault{}, badInput("ackErrorNext: needs ackError")
	case v.KeyFetch != -1 && !code(v.KeyFetch):
		return Fault{}, badInput("keyFetch: a code from 400 to 599, or -1 for no answer")
	case !code(v.LinkCode):
		return Fault{}, badInput("linkCode: a code from 400 to 599")
	case v.BadPatches < -1:
		return Fault{}, badInput("badPatches: a count, or -1 for every one")
	case !code(v.ConnectFailure):
		return Fault{}, badInput("connectFailure: a reason from 400 to 599")
	}
	return Fault{
		Latency: time.Duration(v.LatencyMs) * time.Millisecond, DropAcks: v.DropAcks, DropNextAcks: v.DropNextAcks,
		CloseBeforeAck: v.CloseBeforeAck, AckError: v.AckError, AckErrorNext: v.AckErrorNext, KeyFetch: v.KeyFetch, LinkCode: v.LinkCode,
		KeyLatency:     time.Duration(v.KeyLatencyMs) * time.Millisecond,
		ConnectFailure: v.ConnectFailure, BanCode: v.BanCode, BanExpire: time.Duration(v.BanExpireMs) * time.Millisecond,
		BadPatches: v.BadPatches, RefuseDials: v.RefuseDials, MutePings: v.MutePings, Silent: v.Silent,
	}, nil
}

func viewOf(f ScopedFault) scopedFaultView {
	x := f.Fault
	return scopedFaultView{f.Scope.Session, f.Scope.Recipient, faultView{
		LatencyMs: x.Latency.Milliseconds(), DropAcks: x.DropAcks, DropNextAcks: x.DropNextAcks, CloseBeforeAck: x.CloseBeforeAck,
		AckError: x.AckError, AckErrorNext: x.AckErrorNext, KeyFetch: x.KeyFetch, LinkCode: x.LinkCode, KeyLatencyMs: x.KeyLatency.Milliseconds(), ConnectFailure: x.ConnectFailure,
		BanCode: x.BanCode, BanExpireMs: x.BanExpire.Milliseconds(), BadPatches: x.BadPatches, RefuseDials: x.RefuseDials, MutePings: x.MutePings, Silent: x.Silent,
	}}
}

func (s *Server) getFaults(*http.Request) (any, error) {
	views := []scopedFaultView{}
	for _, f := range s.Faults() {
		views = append(views, viewOf(f))
	}
	return map[string]any{"faults": views}, nil
}

// putFault sets the fault of a scope; an empty fault clears it. It answers with all faults in force.
func (s *Server) putFault(r *http.Request) (any, error) {
	var in scopedFaultView
	if err := readBody(r, &in); err != nil {
		return nil, err
	}
	for name, pn := range map[string]string{"session": in.Session, "recipient": in.Recipient} {
		if pn != "" && !validNumber(pn) {
			return nil, badInput(name + ": a number in digits, or empty for everyone")
		}
	}
	f, err := in.Fault.fault()
	if err != nil {
		return nil, err
	}
	s.SetFault(Scope{Session: in.Session, Recipient: in.Recipient}, f)
	return s.getFaults(r)
}

const (
	defaultLogPage = 1000
	maxLogPage     = 10_000
)

// getLog answers a query of the log. "next" is what to pass as "after" to go on; with "tail" only the newest so
// many come.
func (s *Server) getLog(r *http.Request) (any, error) {
	v := r.URL.Query()
	known := map[string]bool{
		"session": true, "sender": true, "recipient": true, "id": true, "kind": true, "type": true, "dir": true,
		"worker": true, "sessionId": true, "after": true, "limit": true, "tail": true,
	}
	for key := range v {
		if !known[key] {
			return nil, badInput("unknown parameter " + key)
		}
	}
	q := Query{
		Session: v.Get("session"), Sender: v.Get("sender"), Recipient: v.Get("recipient"), ID: v.Get("id"),
		Kind: v.Get("kind"), Type: v.Get("type"), Dir: v.Get("dir"), Worker: v.Get("worker"), SessionID: v.Get("sessionId"), Limit: defaultLogPage,
	}
	numbers := map[string]int64{}
	for _, key := range []string{"after", "limit", "tail"} {
		n, err := queryInt(r, key)
		if err != nil {
			return nil, err
		}
		numbers[key] = n
	}
	q.After = numbers["after"]
	if numbers["limit"] > maxLogPage || numbers["tail"] > maxLogPage {
		return nil, badInput("limit, tail: at most 10000")
	}
	if numbers["limit"] > 0 {
		q.Limit = int(numbers["limit"])
	}
	if q.Tail = int(numbers["tail"]); q.Tail > 0 {
		q.Limit = 0
	}
	entries := append([]Entry{}, s.Log(q)...)
	next := q.After
	if len(entries) > 0 {
		next = entries[len(entries)-1].Seq
	}
	return map[string]any{"entries": entries, "next": next}, nil
}

// postLease notes a change of a lease.
func (s *Server) postLease(r *http.Request) (any, error) {
	var e Entry
	if err := readBody(r, &e); err != nil {
		return nil, err
	}
	if e.Kind != "" && e.Kind != KindLease {
		return nil, badInput("kind: only \"lease\" can be noted")
	}
	s.NoteLease(e)
	return created{done}, nil
}
