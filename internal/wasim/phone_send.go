package wasim

import (
	"context"
	"fmt"

	"go.mau.fi/whatsmeow/proto/waE2E"
	"go.mau.fi/whatsmeow/types"
	"google.golang.org/protobuf/proto"
)

// Send sends a message to a user, and copies of it to the own linked devices.
func (p *Phone) Send(ctx context.Context, to types.JID, msg *waE2E.Message) (id string, err error) {
	s := p.srv
	s.mu.Lock()
	target := s.lookup(to)
	if target == nil {
		s.mu.Unlock()
		return "", fmt.Errorf("%w: %s", ErrNoSuchUser, to.Server)
	}
	lid := isLID(to)
	receivers := target.addresses(lid)
	var own []jid
	for _, d := range p.account.companions() {
		own = append(own, d.jid(lid))
	}
	s.mu.Unlock()
	if target == p.account {
		receivers = nil // a note to self goes to the own devices only
	}
	copied := &waE2E.Message{DeviceSentMessage: &waE2E.DeviceSentMessage{DestinationJID: proto.String(to.String()), Message: msg}}
	var list []node
	add := func(j jid, m *waE2E.Message) error {
		enc, err := p.encrypt(ctx, j, m, false)
		if err != nil {
			return err
		}
		list = append(list, node{Tag: "to", Attrs: attrs{"jid": j}, Content: []node{enc}})
		return nil
	}
	for _, j := range receivers {
		if err = add(j, msg); err != nil {
			return "", fmt.Errorf("encrypt for recipient: %w", err)
		}
	}
	for _, j := range own {
		if err = add(j, copied); err != nil {
			return "", fmt.Errorf("encrypt for own device: %w", err)
		}
	}
	id = stanzaID()
	p.remember(id, sentMessage{to, msg})
	s.mu.Lock()
	defer s.mu.Unlock()
	target.hear(p.account)
	s.relay(p.account, 0, &node{
		Tag: KindMessage, Attrs: attrs{"to": to.ToNonAD(), "id": id, "type": "text"},
		Content: []node{{Tag: "participants", Content: list}},
	})
	return id, nil
}

// remember keeps a message for retry receipts, and forgets the oldest.
func (p *Phone) remember(id string, m sentMessage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent[id] = m
	p.sentOrder = append(p.sentOrder, id)
	if len(p.sentOrder) > keepSent {
		delete(p.sent, p.sentOrder[0])
		p.sentOrder = p.sentOrder[1:]
	}
}

// sendToCompanion sends a message between devices of the account. then runs under the server's lock, once the
// message is on its way.
func (p *Phone) sendToCompanion(ctx context.Context, dev uint16, msg *waE2E.Message, then func()) error {
	to := p.account.jid(false, dev)
	enc, err := p.encrypt(ctx, to, msg, false)
	if err != nil {
		return err
	}
	id := stanzaID()
	p.remember(id, sentMessage{to, msg})
	p.srv.mu.Lock()
	defer p.srv.mu.Unlock()
	p.srv.relay(p.account, 0, &node{
		Tag:     KindMessage,
		Attrs:   attrs{"to": to, "id": id, "type": "protocol", "category": "peer", "push_priority": "high"},
		Content: []node{{Tag: "meta", Attrs: attrs{"appdata": "default"}}, enc},
	})
	if then != nil {
		then()
	}
	return nil
}

// sendAgain answers a retry receipt: the same message under the same id in a new session.
func (p *Phone) sendAgain(ctx context.Context, receipt *node) {
	from, id := attrJID(receipt, "from"), attrString(receipt, "id")
	p.mu.Lock()
	m, ok := p.sent[id]
	p.mu.Unlock()
	if !ok {
		return
	}
	msg := m.message
	at := attrs{"to": from, "id": id, "type": "text"}
	switch {
	case msg.GetProtocolMessage() != nil:
		at["type"], at["category"] = "protocol", "peer"
	case p.byNumber(from).User == p.account.pn:
		msg = &waE2E.Message{DeviceSentMessage: &waE2E.DeviceSentMessage{DestinationJID: proto.String(m.to.String()), Message: msg}}
		at["recipient"] = m.to
	}
	enc, err := p.encrypt(ctx, from, msg, true)
	if err != nil {
		p.warn("send again", err)
		return
	}
	retry := receipt.GetChildByTag("retry")
	enc.Attrs["count"] = attrString(&retry, "count")
	p.srv.mu.Lock()
	defer p.srv.mu.Unlock()
	p.srv.relay(p.account, 0, &node{Tag: KindMessage, Attrs: at, Content: []node{enc}})
}
