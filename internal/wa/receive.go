package wa

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.mau.fi/whatsmeow/proto/waE2E"
	"go.mau.fi/whatsmeow/types"
	"go.mau.fi/whatsmeow/types/events"
	"google.golang.org/protobuf/proto"

	"github.com/wafleet/wafleet/internal/fleet"
)

// message gives one message to the handler. What is not from a person to this number is acknowledged and counted.
func (s *Socket) message(l *life, e *events.Message) bool {
	if why := foreign(&e.Info); why != "" {
		s.m.dropped.WithLabelValues(why).Inc()
		return true
	}
	m, ok := s.inbound(l, e)
	if !ok {
		return l.ctx.Err() == nil
	}
	s.m.inbound.WithLabelValues(m.Kind).Inc()
	h := s.opts.Handler.Message
	if h == nil {
		return true
	}
	return s.did(l, "message", &m, func() error { return h(l.ctx, m) })
}

// foreign says why a message is none of ours, "" if it is.
func foreign(i *types.MessageInfo) string {
	switch i.Chat.Server {
	case types.DefaultUserServer, types.HiddenUserServer:
	case types.GroupServer:
		return "group"
	case types.BroadcastServer:
		if i.Chat.User == types.StatusBroadcastJID.User {
			return "status"
		}
		return "broadcast"
	case types.NewsletterServer:
		return "newsletter"
	default:
		return "other"
	}
	switch {
	case i.IsFromMe: // a copy of what the phone or another companion sent, or a message between own devices
		return "own"
	case i.IsGroup:
		return "group"
	default:
		return ""
	}
}

// inbound converts a message; false if it carries nothing for a person, or the generation ended meanwhile.
func (s *Socket) inbound(l *life, e *events.Message) (m fleet.Inbound, ok bool) {
	i := &e.Info
	m = fleet.Inbound{
		SessionID: s.opts.Term.SessionID,
		Chat:      i.Chat.ToNonAD().String(),
		Sender:    i.Sender.ToNonAD().String(),
		PushName:  pushName(i.PushName),
		WAID:      clean(i.ID),
		Offline:   s.offline.Load(),
		SentAt:    i.Timestamp, ReceivedAt: time.Now(),
	}
	m.SenderPhone, m.SenderLID = identity(i.Sender, i.SenderAlt)
	if m.SenderPhone == "" && m.SenderLID != "" {
		pn, err := l.client.Store.LIDs.GetPNForLID(l.ctx, i.Sender.ToNonAD())
		if err != nil {
			s.finish(End{Reason: ReasonStore, Err: fmt.Errorf("look up the number of a sender: %w", err)})
			return m, false
		}
		m.SenderPhone, _ = identity(pn, types.EmptyJID)
	}
	// The content comes from a stranger: a panic on it would come again with every delivery, so it is passed on raw.
	var c content
	err, _ := caught(func() (err error) { c, err = read(e.RawMessage); return err })
	if err != nil {
		s.log.LogAttrs(l.ctx, slog.LevelError, "message can't be read, passed on raw", slog.String("err", err.Error()))
		c = content{Kind: fleet.KindUnprocessable, Raw: marshalled(e.RawMessage)}
	}
	if c.Kind == "" {
		s.m.dropped.WithLabelValues("protocol").Inc()
		return m, false
	}
	m.Kind, m.Version, m.Text, m.Content, m.Raw = c.Kind, c.Version, c.Text, c.More, c.Raw
	return m, true
}

func marshalled(m *waE2E.Message) []byte {
	var raw []byte
	_, _ = caught(func() (err error) { raw, err = proto.Marshal(m); return err })
	return raw
}

// identity finds the phone number and the LID in the two addresses of a person.
func identity(a, b types.JID) (phone, lid string) {
	for _, j := range []types.JID{a, b} {
		if !digits(j.User) {
			continue
		}
		switch {
		case j.Server == types.DefaultUserServer && phone == "":
			phone = j.User
		case j.Server == types.HiddenUserServer && lid == "":
			lid = j.User
		}
	}
	return phone, lid
}

func digits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// pushName: WhatsApp writes "-" for "not known".
func pushName(s string) string {
	if s == "-" {
		return ""
	}
	return clean(s)
}

var receiptStatus = map[types.ReceiptType]fleet.Status{
	types.ReceiptTypeDelivered: fleet.StatusDelivered,
	types.ReceiptTypeInactive:  fleet.StatusDelivered, // delivered to a device that is not in the foreground
	types.ReceiptTypeRead:      fleet.StatusRead,
	types.ReceiptTypePlayed:    fleet.StatusPlayed,
}

// receipt gives a receipt for one of our messages to the handler. Retry receipts are whatsmeow's; the rest is about
// own devices.
func (s *Socket) receipt(l *life, e *events.Receipt) bool {
	status, ok := receiptStatus[e.Type]
	person := e.Chat.Server == types.DefaultUserServer || e.Chat.Server == types.HiddenUserServer
	if !ok || e.IsFromMe || e.IsGroup || !person {
		return true
	}
	r := fleet.Receipt{
		SessionID: s.opts.Term.SessionID, Status: status,
		Chat: e.Chat.ToNonAD().String(), From: e.Sender.ToNonAD().String(), At: e.Timestamp,
	}
	for _, id := range e.MessageIDs {
		r.WAIDs = append(r.WAIDs, clean(id))
	}
	s.m.receipts.WithLabelValues(string(status)).Inc()
	h := s.opts.Handler.Receipt
	if h == nil {
		return true
	}
	return s.did(l, "receipt", nil, func() error { return h(l.ctx, r) })
}

// payloadForRetry is whatsmeow's GetMessageForRetry: it asks when its own memory, which a takeover empties, has nothing.
// It is asked with LID or number; the id alone is enough for us.
func (s *Socket) payloadForRetry(_, _ types.JID, id types.MessageID) *waE2E.Message {
	l := s.life.Load()
	h := s.opts.Handler.Payload
	if h == nil || !s.calls.enter() {
		return nil
	}
	defer s.calls.leave()
	var raw []byte
	ok := s.did(l, "payload", nil, func() (err error) {
		raw, err = h(l.ctx, id)
		if errors.Is(err, fleet.ErrNotFound) {
			return nil
		}
		return err
	})
	if !ok || raw == nil {
		return nil
	}
	m := new(waE2E.Message)
	if err := proto.Unmarshal(raw, m); err != nil {
		s.log.LogAttrs(l.ctx, slog.LevelError, "stored message can't be read", slog.String("err", err.Error()))
		return nil
	}
	return m
}

// allowRetry is whatsmeow's PreRetryCallback.
func (s *Socket) allowRetry(_ *events.Receipt, id types.MessageID, _ int, _ *waE2E.Message) bool {
	l := s.life.Load()
	h := s.opts.Handler.AllowRetry
	if h == nil {
		return true
	}
	if !s.calls.enter() {
		return false
	}
	defer s.calls.leave()
	allowed := false
	return s.did(l, "allow_retry", nil, func() error { allowed = h(l.ctx, id); return nil }) && allowed
}
