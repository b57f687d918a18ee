package wasim

import (
	"net/http"
	"time"
)

// enforcementView is an Enforcement in JSON. Times are in unix milliseconds, lengths in milliseconds; what is missing
// limits nothing.
type enforcementView struct {
	Tokens   bool          `json:"tokens,omitempty"`
	TimeLock *timeLockView `json:"timeLock,omitempty"`
	NewChats *newChatsView `json:"newChats,omitempty"`
	Throttle *throttleView `json:"throttle,omitempty"`
}

type timeLockView struct {
	Kind   string `json:"kind,omitempty"`
	EndsMs int64  `json:"endsMs,omitempty"`
	Quiet  bool   `json:"quiet,omitempty"`
}

type newChatsView struct {
	Quota  int   `json:"quota"`
	EndsMs int64 `json:"endsMs,omitempty"`
	Quiet  bool  `json:"quiet,omitempty"`
}

type throttleView struct {
	Accepts int   `json:"accepts"`
	PerMs   int64 `json:"perMs,omitempty"`
	Code    int   `json:"code,omitempty"`
}

func fromMs(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

func toMs(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func (v *enforcementView) enforcement() (Enforcement, error) {
	e := Enforcement{Tokens: v.Tokens}
	if l := v.TimeLock; l != nil {
		if l.EndsMs < 0 {
			return e, badInput("timeLock.endsMs: negative")
		}
		e.TimeLock = &TimeLock{Kind: l.Kind, Ends: fromMs(l.EndsMs), Quiet: l.Quiet}
	}
	if c := v.NewChats; c != nil {
		if c.Quota < 0 || c.EndsMs < 0 {
			return e, badInput("newChats: quota and endsMs can't be negative")
		}
		e.NewChats = &NewChatCap{Quota: c.Quota, Ends: fromMs(c.EndsMs), Quiet: c.Quiet}
	}
	if t := v.Throttle; t != nil {
		switch {
		case t.Accepts < 0 || t.PerMs < 0 || t.PerMs > maxFaultTime.Milliseconds():
			return e, badInput("throttle: accepts and perMs are out of range")
		case t.Code != 0 && (t.Code < 400 || t.Code > 599):
			return e, badInput("throttle.code: a code from 400 to 599, or 0 to swallow what is too much")
		}
		e.Throttle = &Throttle{Accepts: t.Accepts, Per: time.Duration(t.PerMs) * time.Millisecond, Code: t.Code}
	}
	return e, nil
}

func viewOfEnforcement(e Enforcement) enforcementView {
	v := enforcementView{Tokens: e.Tokens}
	if l := e.TimeLock; l != nil {
		v.TimeLock = &timeLockView{l.Kind, toMs(l.Ends), l.Quiet}
	}
	if c := e.NewChats; c != nil {
		v.NewChats = &newChatsView{c.Quota, toMs(c.Ends), c.Quiet}
	}
	if t := e.Throttle; t != nil {
		v.Throttle = &throttleView{t.Accepts, t.Per.Milliseconds(), t.Code}
	}
	return v
}

func (s *Server) getEnforcement(r *http.Request) (any, error) {
	p, err := s.existing(r)
	if err != nil {
		return nil, err
	}
	return viewOfEnforcement(s.EnforcementOf(p.Number())), nil
}

// putEnforcement sets how a number is limited, wholly: an empty object lifts everything.
func (s *Server) putEnforcement(r *http.Request) (any, error) {
	p, err := s.existing(r)
	if err != nil {
		return nil, err
	}
	var in enforcementView
	if err := readBody(r, &in); err != nil {
		return nil, err
	}
	e, err := in.enforcement()
	if err != nil {
		return nil, err
	}
	s.SetEnforcement(p.Number(), e)
	return viewOfEnforcement(e), nil
}
