package wasim

import (
	"context"
	"strconv"
	"time"

	"go.mau.fi/whatsmeow/proto/waE2E"
)

// maxRetries is how often a phone asks for a message that it cannot decrypt.
const maxRetries = 5

// receive queues a stanza for the phone's goroutine. The caller holds the server's lock.
func (p *Phone) receive(n node) {
	if p.srv.opts.PhonesOff {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inbox = append(p.inbox, n)
	p.wake()
}

// wake starts the phone's goroutine if there is work. The caller holds the server's lock and the phone's.
func (p *Phone) wake() {
	if !p.working && !p.off && len(p.inbox) > 0 {
		p.working = p.srv.spawn(p.work)
	}
}

// work handles what is in the inbox and ends when it is empty.
func (p *Phone) work() {
	ctx := p.srv.life
	for {
		p.mu.Lock()
		if len(p.inbox) == 0 || p.off || ctx.Err() != nil {
			p.working = false
			p.mu.Unlock()
			return
		}
		n := p.inbox[0]
		p.inbox = p.inbox[1:]
		p.mu.Unlock()
		if n.Tag == KindReceipt {
			if attrString(&n, "type") == "retry" {
				p.sendAgain(ctx, &n)
			}
			continue
		}
		p.open(ctx, &n)
	}
}

// open decrypts a message, notes it, and answers with receipts as a phone does.
func (p *Phone) open(ctx context.Context, n *node) {
	from, id, own := attrJID(n, "from"), attrString(n, "id"), attrJID(n, "recipient")
	sender := p.byNumber(from)
	msg, err := p.decrypt(ctx, sender, n)
	text := ""
	if err == nil {
		if inner := msg.GetDeviceSentMessage().GetMessage(); inner != nil {
			msg = inner
		}
		text = textOf(msg)
	}
	r := Received{
		ID: id, Sender: sender.User, Device: sender.Device, From: from, Name: attrString(n, "notify"),
		Chat: sender.User, Text: text, At: time.Now(), Message: msg, FromMe: sender.User == p.account.pn,
	}
	if !own.IsEmpty() {
		r.Chat = p.byNumber(own).User
	}
	r, known := p.note(r, err)
	if !known {
		p.warn("message not decryptable", err)
		p.askRetry(from, id, own, true)
		return
	}
	p.srv.oracle.add(Entry{
		Kind: KindDecrypted, Session: p.account.pn, Sender: r.Sender, Recipient: p.recipientOf(r), ID: id,
		Text: r.Text, Duplicate: r.Duplicate, Type: attrString(n, "type"),
	})
	receipt := node{Tag: KindReceipt, Attrs: attrs{"id": id, "to": from}}
	if !own.IsEmpty() {
		receipt.Attrs["recipient"], receipt.Attrs["type"] = own, "sender"
	}
	p.sendReceipt(receipt)
	if r.FromMe {
		if msg.GetProtocolMessage().GetAppStateSyncKeyRequest() != nil {
			p.shareKeys(ctx, from.Device)
		}
		return
	}
	p.react(ctx, r)
}

// note adds a message to what was received. Receivers deduplicate by sender and id: one that comes again is a
// duplicate even if its ciphertext was used up. It returns false for one that could be neither read nor recognised.
func (p *Phone) note(r Received, failed error) (Received, bool) {
	key := r.Sender + " " + r.ID
	p.mu.Lock()
	defer p.mu.Unlock()
	first, seen := p.seen[key]
	switch {
	case seen:
		r.Duplicate = true
		if failed != nil {
			r.Text, r.Message = p.received[first].Text, p.received[first].Message
		}
	case failed != nil:
		return r, false
	default:
		p.seen[key] = len(p.received)
	}
	if !r.FromMe && r.Name != "" {
		p.contacts[r.Sender] = r.Name
	}
	p.received = append(p.received, r)
	close(p.changed)
	p.changed = make(chan struct{})
	return r, true
}

func (p *Phone) recipientOf(r Received) string {
	if r.FromMe {
		return r.Chat
	}
	return p.account.pn
}

// react does what the user has asked the phone to do by itself.
func (p *Phone) react(ctx context.Context, r Received) {
	p.mu.Lock()
	read, reply := p.autoRead, p.autoReply
	p.mu.Unlock()
	if r.Duplicate {
		return
	}
	if read {
		if err := p.MarkRead(ctx, r.ID); err != nil {
			p.warn("automatic read", err)
		}
	}
	if reply == nil || r.Text == "" {
		return
	}
	if text := reply(r); text != "" {
		if _, err := p.SendText(ctx, r.From.ToNonAD().String(), text); err != nil {
			p.warn("automatic reply", err)
		}
	}
}

// askRetry sends a retry receipt to the device that a message came from, with fresh keys if its session is of no
// use.
func (p *Phone) askRetry(from jid, id string, recipient jid, withKeys bool) {
	key := from.String() + " " + id
	p.mu.Lock()
	p.retries[key]++
	count := p.retries[key]
	p.mu.Unlock()
	if count > maxRetries {
		return
	}
	content := []node{
		{Tag: "retry", Attrs: attrs{"count": strconv.Itoa(count), "id": id, "t": unixNow(), "v": "1"}},
		{Tag: "registration", Content: bigEndian(p.signal.RegistrationID, 4)},
	}
	if withKeys {
		content = append(content, node{Tag: "keys", Content: p.bundle()[1:]}) // all but the registration
	}
	receipt := node{Tag: KindReceipt, Attrs: attrs{"id": id, "to": from, "type": "retry"}, Content: content}
	if !recipient.IsEmpty() {
		receipt.Attrs["recipient"] = recipient
	}
	p.sendReceipt(receipt)
}

// textOf is what a user would read.
func textOf(m *waE2E.Message) string {
	switch {
	case m.GetConversation() != "":
		return m.GetConversation()
	case m.GetExtendedTextMessage() != nil:
		return m.GetExtendedTextMessage().GetText()
	}
	return ""
}
