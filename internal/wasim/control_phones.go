package wasim

import (
	"net/http"
	"strconv"
)

// phoneView is how the control API shows a phone.
type phoneView struct {
	PN       string       `json:"pn"`
	LID      string       `json:"lid"` // user part
	PushName string       `json:"pushName"`
	Devices  []deviceView `json:"devices"`
	Blocked  []string     `json:"blocked"`
	Received int          `json:"received"` // messages so far, duplicates included
}

type deviceView struct {
	ID      uint16 `json:"id"`
	Online  bool   `json:"online"`
	Pending int    `json:"pending"` // stanzas it has not acknowledged
}

func (p *Phone) view() phoneView {
	p.srv.mu.Lock()
	a := p.account
	v := phoneView{PN: a.pn, LID: a.lid, PushName: a.pushName, Devices: []deviceView{}, Blocked: append([]string{}, sortedKeys(a.blocked)...)}
	for _, d := range a.companions() {
		v.Devices = append(v.Devices, deviceView{d.id, d.conn != nil, len(d.queue)})
	}
	p.srv.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	v.Received = len(p.received)
	return v
}

// existing finds a phone without making it.
func (s *Server) existing(r *http.Request) (*Phone, error) {
	pn, err := pathNumber(r)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.byPN[pn]; a != nil {
		return a.phone, nil
	}
	return nil, notFound("no such phone")
}

func (s *Server) getPhones(*http.Request) (any, error) {
	views := []phoneView{}
	for _, pn := range s.Phones() {
		views = append(views, s.Phone(pn).view())
	}
	return map[string]any{"phones": views}, nil
}

func (s *Server) getPhone(r *http.Request) (any, error) {
	p, err := s.existing(r)
	if err != nil {
		return nil, err
	}
	return p.view(), nil
}

func (s *Server) postPhone(r *http.Request) (any, error) {
	var in struct {
		PN       string `json:"pn"`
		PushName string `json:"pushName"`
	}
	if err := readBody(r, &in); err != nil {
		return nil, err
	}
	if !validNumber(in.PN) {
		return nil, badInput("pn: 5 to 15 digits without plus, not starting with 0")
	}
	p := s.Phone(in.PN)
	if in.PushName != "" {
		if err := p.SetPushName(in.PushName); err != nil {
			return nil, err
		}
	}
	return created{p.view()}, nil
}

// getMessages lists what a phone received; after skips that many.
func (s *Server) getMessages(r *http.Request) (any, error) {
	p, err := s.existing(r)
	if err != nil {
		return nil, err
	}
	after, err := queryInt(r, "after")
	if err != nil {
		return nil, err
	}
	all := p.Received()
	return map[string]any{"messages": append([]Received{}, all[min(after, int64(len(all))):]...), "next": len(all)}, nil
}

// phoneAction is the body of every action on a phone; each uses some of it.
type phoneAction struct {
	QR       string `json:"qr"`
	Code     string `json:"code"`
	To       string `json:"to"`
	Text     string `json:"text"`
	ID       string `json:"id"`
	PN       string `json:"pn"`
	Device   uint16 `json:"device"`
	PushName string `json:"pushName"`
	On       bool   `json:"on"`
}

// postPhoneAction does something with a phone. As in the Go API, a number that was not used yet gets its phone.
func (s *Server) postPhoneAction(r *http.Request) (any, error) {
	pn, err := pathNumber(r)
	if err != nil {
		return nil, err
	}
	act := phoneActions[r.PathValue("action")]
	if act == nil {
		return nil, notFound("no such action")
	}
	var in phoneAction
	if err = readBody(r, &in); err != nil {
		return nil, err
	}
	return act(r, func() *Phone { return s.Phone(pn) }, in)
}

// phoneActions check their input before they make the phone.
var phoneActions = map[string]func(*http.Request, func() *Phone, phoneAction) (any, error){
	"scan": func(r *http.Request, phone func() *Phone, in phoneAction) (any, error) {
		if in.QR == "" {
			return nil, badInput("qr: missing")
		}
		return done, phone().ScanQR(r.Context(), in.QR)
	},
	"code": func(r *http.Request, phone func() *Phone, in phoneAction) (any, error) {
		if in.Code == "" {
			return nil, badInput("code: missing")
		}
		return done, phone().EnterCode(r.Context(), in.Code)
	},
	"send": func(r *http.Request, phone func() *Phone, in phoneAction) (any, error) {
		if in.Text == "" {
			return nil, badInput("text: missing")
		}
		if _, err := parseAddress(in.To); err != nil {
			return nil, err
		}
		id, err := phone().SendText(r.Context(), in.To, in.Text)
		return map[string]string{"id": id}, err
	},
	"read": func(r *http.Request, phone func() *Phone, in phoneAction) (any, error) {
		if in.ID == "" {
			return nil, badInput("id: missing")
		}
		return done, phone().MarkRead(r.Context(), in.ID)
	},
	"retry": func(_ *http.Request, phone func() *Phone, in phoneAction) (any, error) {
		if in.ID == "" {
			return nil, badInput("id: missing")
		}
		return done, phone().AskRetry(in.ID)
	},
	"block": func(_ *http.Request, phone func() *Phone, in phoneAction) (any, error) {
		if !validNumber(in.PN) {
			return nil, badInput("pn: whom to block, in digits")
		}
		phone().Block(in.PN)
		return done, nil
	},
	"unblock": func(_ *http.Request, phone func() *Phone, in phoneAction) (any, error) {
		if !validNumber(in.PN) {
			return nil, badInput("pn: whom to unblock, in digits")
		}
		phone().Unblock(in.PN)
		return done, nil
	},
	"unlink": func(_ *http.Request, phone func() *Phone, in phoneAction) (any, error) {
		if in.Device == 0 {
			return nil, badInput("device: number of the linked device, from 1")
		}
		return done, phone().Unlink(in.Device)
	},
	"name": func(_ *http.Request, phone func() *Phone, in phoneAction) (any, error) {
		if in.PushName == "" {
			return nil, badInput("pushName: missing")
		}
		return done, phone().SetPushName(in.PushName)
	},
	"hide": func(_ *http.Request, phone func() *Phone, in phoneAction) (any, error) {
		phone().HideNumber(in.On)
		return done, nil
	},
	"form": func(_ *http.Request, phone func() *Phone, in phoneAction) (any, error) {
		if !validNumber(in.PN) {
			return nil, badInput("pn: other digits that the server takes for this number")
		}
		return done, phone().AlsoWrittenAs(in.PN)
	},
	"autoread": func(_ *http.Request, phone func() *Phone, in phoneAction) (any, error) {
		phone().AutoRead(in.On)
		return done, nil
	},
	"passkey": func(_ *http.Request, phone func() *Phone, in phoneAction) (any, error) {
		phone().AskPasskey(in.On)
		return done, nil
	},
	"power": func(_ *http.Request, phone func() *Phone, in phoneAction) (any, error) {
		phone().Power(in.On)
		return done, nil
	},
	"autoreply": func(_ *http.Request, phone func() *Phone, in phoneAction) (any, error) {
		if in.Text == "" {
			phone().AutoReply(nil)
			return done, nil
		}
		phone().AutoReply(func(Received) string { return in.Text })
		return done, nil
	},
}

// postSessionAction does something to the present connection of a linked device.
func (s *Server) postSessionAction(r *http.Request) (any, error) {
	p, err := s.existing(r)
	if err != nil {
		return nil, err
	}
	dev, err := strconv.ParseUint(r.PathValue("device"), 10, 16)
	if err != nil || dev == 0 {
		return nil, badInput("device: number of the linked device, from 1")
	}
	act := map[string]func(string, uint16) bool{"drop": s.Drop, "replace": s.Replace, "mute": s.Mute, "repeat": s.Repeat}[r.PathValue("action")]
	if act == nil {
		return nil, notFound("no such action")
	}
	s.mu.Lock()
	known := s.companion(p.Number(), uint16(dev)) != nil
	s.mu.Unlock()
	if !known {
		return nil, ErrNoSuchDevice
	}
	if !act(p.Number(), uint16(dev)) {
		return nil, &problem{http.StatusConflict, "not_possible_now", "the device is not online, or there is nothing to repeat"}
	}
	return done, nil
}
