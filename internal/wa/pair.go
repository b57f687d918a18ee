package wa

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mau.fi/whatsmeow"
	"go.mau.fi/whatsmeow/store"
	"go.mau.fi/whatsmeow/types"
	"go.mau.fi/whatsmeow/types/events"
	"google.golang.org/protobuf/proto"
)

// The name under which people see this device on their phone. It is one variable of whatsmeow for the whole process.
func init() { store.DeviceProps.Os = proto.String("wafleet") } //nolint:gochecknoinits // before anything can read it

// How long WhatsApp takes a QR code for: the first one of a socket longer than the rest. When the last one has run out
// it closes the connection, and with it a pairing by phone code.
const (
	firstCode = 60 * time.Second
	nextCode  = 20 * time.Second
)

// What the phone shows for a pairing by phone code. WhatsApp refuses names that are not "Browser (OS)" with 400.
const codeDisplayName = "Chrome (Linux)"

// shown is how long n codes last together.
func shown(n int) time.Duration {
	if n == 0 {
		return 0
	}
	return firstCode + time.Duration(n-1)*nextCode
}

// expiry is when something shown now for d is over: not later than the attempt.
func (p *PairRequest) expiry(d time.Duration) time.Time {
	at := time.Now().Add(d)
	if !p.Until.IsZero() && p.Until.Before(at) {
		return p.Until
	}
	return at
}

// showNext shows the first of the codes and sets the alarm for the next.
func (s *Socket) showNext(l *life, codes []string, rotate alarm) (rest []string) {
	if len(codes) == 0 {
		s.finish(End{Reason: ReasonPairExpired, Err: errors.New("nobody scanned a code of this connection")})
		return nil
	}
	hold := nextCode
	if len(codes) == 6 { // all of them: this is the first
		hold = firstCode
	}
	rotate.Reset(hold)
	if h := s.opts.Handler.QR; h != nil {
		expires := s.opts.Pair.expiry(hold)
		s.told(l, "qr", func() { h(l.ctx, codes[0], expires) })
	}
	return codes[1:]
}

// pairByCode asks for a code to be typed on the phone. It asks WhatsApp, so it is not for the loop.
func (s *Socket) pairByCode(l *life, lasts time.Duration) {
	expires := s.opts.Pair.expiry(lasts)
	ctx, cancel := context.WithTimeout(l.ctx, 30*time.Second)
	defer cancel()
	code, err := l.client.PairPhone(ctx, s.opts.Pair.Phone, true, whatsmeow.PairClientChrome, codeDisplayName)
	if err != nil {
		s.finish(pairFailed(fmt.Errorf("ask for a pairing code: %w", err)))
		return
	}
	if h := s.opts.Handler.Code; h != nil && s.calls.enter() {
		defer s.calls.leave()
		s.told(l, "code", func() { h(l.ctx, code, expires) })
	}
}

// acceptPair is whatsmeow's PrePairCallback: the last moment to say no.
func (s *Socket) acceptPair(jid types.JID, _, _ string) bool {
	l := s.life.Load()
	if !s.calls.enter() {
		return false
	}
	defer s.calls.leave()
	var err error
	if h := s.opts.Handler.AcceptPair; h != nil {
		err = protect("accept_pair", nil, func() error { return h(l.ctx, jid.User) })
	}
	if err == nil {
		s.post(note{accepted: true})
		return l.ctx.Err() == nil
	}
	// whatsmeow tells WhatsApp first, so that the phone says that linking failed.
	s.post(note{decided: &decided{End{Reason: ReasonPairFailed, Err: err}, tidyTime}})
	return false
}

// pairedEvent runs when whatsmeow has stored the device and told WhatsApp so.
func (s *Socket) pairedEvent(l *life, e *events.PairSuccess) {
	p := Paired{
		DeviceJID: e.ID.String(), Phone: e.ID.User, LID: e.LID.User, Platform: e.Platform, PushName: clean(e.BusinessName),
	}
	if h := s.opts.Handler.Paired; h != nil && !s.did(l, "paired", nil, func() error { return h(l.ctx, p) }) {
		return
	}
	s.post(note{paired: true})
}

// errPasskey: a passkey answers to the site that it was made for, in a browser on that site. Neither this process nor a
// page of ours can ask for it.
var errPasskey = errors.New("WhatsApp asks for the account's passkey before it links a device, which works on WhatsApp's own pages only: remove the passkey on the phone, link, and add it again")

func pairFailed(err error) End {
	e := End{Reason: ReasonPairFailed, Err: err}
	if iq, ok := errors.AsType[*whatsmeow.IQError](err); ok {
		e.Code = iq.Code
	}
	return e
}
