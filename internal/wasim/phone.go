package wasim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mau.fi/whatsmeow/appstate"
	"go.mau.fi/whatsmeow/proto/waE2E"
	"go.mau.fi/whatsmeow/store"
	"go.mau.fi/whatsmeow/types"
	"go.mau.fi/whatsmeow/util/keys"
	"google.golang.org/protobuf/proto"
)

// Errors of phones that a caller may branch on.
var (
	ErrNoSuchUser    = errors.New("no such number in the simulator")
	ErrNoSuchMessage = errors.New("the phone has not received this message")
	ErrNoSuchDevice  = errors.New("no such linked device")
	ErrBadAddress    = errors.New("not a number and not an address")
)

// Received is one message that a phone decrypted, or recognised as one it has already.
type Received struct {
	ID      string         `json:"id"`
	Chat    string         `json:"chat"`   // the other party's number (digits)
	Sender  string         `json:"sender"` // number (digits)
	Device  uint16         `json:"device"` // of the sender
	From    types.JID      `json:"from"`   // as addressed on the wire: by number or by LID
	Name    string         `json:"name"`   // push name of the sender
	Text    string         `json:"text"`   // "" for what has none
	At      time.Time      `json:"at"`
	FromMe  bool           `json:"fromMe"` // a copy of what a linked device of this number sent
	Read    bool           `json:"read"`   // the read receipt was sent
	Message *waE2E.Message `json:"-"`
	// Duplicate says that a message with this id came from this sender before. A user would not see it.
	Duplicate bool `json:"duplicate"`
}

// Phone is the primary device of a number: it decrypts what the number gets, sends, and owns the account.
// Everything it does in reaction to a stanza happens in order, in one goroutine that lives while there is work.
type Phone struct {
	srv      *Server
	account  *account
	identity *keys.KeyPair // signs companions; their clients trust it
	signal   *store.Device

	// cipher serialises Signal operations, whose sessions change with each. It is taken before the server's lock.
	cipher sync.Mutex

	mu        sync.Mutex
	inbox     []node
	working   bool
	off       bool
	received  []Received
	seen      map[string]int // index in received by sender and id
	changed   chan struct{}  // closed and replaced when received grows
	sent      map[string]sentMessage
	sentOrder []string
	retries   map[string]int    // retry receipts asked for, by sender and id
	contacts  map[string]string // push names by number
	autoRead  bool
	autoReply func(Received) string
	passkey   bool // under the server's lock: linking a device asks for the account's passkey
}

// sentMessage is kept for retry receipts.
type sentMessage struct {
	to      jid
	message *waE2E.Message
}

// keepSent is how many sent messages a phone can send again.
const keepSent = 1024

func newPhone(s *Server, a *account) *Phone {
	dev := newPhoneDevice()
	return &Phone{
		srv: s, account: a, identity: dev.IdentityKey, signal: dev, seen: map[string]int{}, changed: make(chan struct{}),
		sent: map[string]sentMessage{}, retries: map[string]int{}, contacts: map[string]string{},
	}
}

// Number is the phone's own number (digits).
func (p *Phone) Number() string { return p.account.pn }

// LID is the phone's address that does not show the number.
func (p *Phone) LID() types.JID { return p.account.jid(true, 0) }

// Received lists everything the phone decrypted, in order. The slice is the caller's.
func (p *Phone) Received() []Received {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.received)
}

// Wait returns the first received message for which ok is true, now or later.
func (p *Phone) Wait(ctx context.Context, ok func(Received) bool) (Received, error) {
	for next := 0; ; {
		p.mu.Lock()
		fresh, changed := slices.Clone(p.received[next:]), p.changed
		p.mu.Unlock()
		for _, r := range fresh {
			if ok(r) {
				return r, nil
			}
		}
		next += len(fresh)
		select {
		case <-changed:
		case <-ctx.Done():
			return Received{}, fmt.Errorf("phone %s: no such message came: %w", lastDigits(p.account.pn), ctx.Err())
		}
	}
}

// AutoRead makes the phone send a read receipt for everything it gets from now on.
func (p *Phone) AutoRead(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.autoRead = on
}

// AskPasskey makes WhatsApp ask for a passkey when a device scans in to be linked, as it does for accounts that have one.
// No client here can answer, so the pairing ends with that.
func (p *Phone) AskPasskey(on bool) {
	p.srv.mu.Lock()
	defer p.srv.mu.Unlock()
	p.passkey = on
}

// Power switches the phone off: what comes for it stays unread, and unanswered by receipts, until it is on again.
func (p *Phone) Power(on bool) {
	p.srv.mu.Lock()
	defer p.srv.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off = !on
	p.wake()
}

// AutoReply makes the phone answer what it gets from now on: with the text that f returns, or not at all if that
// is empty. f runs in the phone's goroutine, for new messages of others only; nil ends it.
func (p *Phone) AutoReply(f func(Received) string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.autoReply = f
}

// Block swallows messages from a number from now on: the server still acknowledges them, and no device of this
// account gets them.
func (p *Phone) Block(pn string) { p.setBlocked(pn, true) }

// Unblock lets messages from a number through again. What was swallowed stays lost.
func (p *Phone) Unblock(pn string) { p.setBlocked(pn, false) }

func (p *Phone) setBlocked(pn string, blocked bool) {
	p.srv.mu.Lock()
	defer p.srv.mu.Unlock()
	if blocked {
		p.account.blocked[pn] = true
	} else {
		delete(p.account.blocked, pn)
	}
}

// HideNumber makes what the phone sends from now on show its LID alone: receivers that don't know which number
// belongs to it are not told.
func (p *Phone) HideNumber(on bool) {
	p.srv.mu.Lock()
	defer p.srv.mu.Unlock()
	p.account.hidden = on
}

// AlsoWrittenAs makes the server take other digits for this number when it is asked who has an account. Messages
// go to the number's own digits only.
func (p *Phone) AlsoWrittenAs(digits string) error {
	if !validNumber(digits) {
		return fmt.Errorf("%w: %q", ErrBadAddress, digits)
	}
	p.srv.mu.Lock()
	defer p.srv.mu.Unlock()
	p.srv.forms[digits] = p.account.pn
	return nil
}

// Blocked lists the blocked numbers in order.
func (p *Phone) Blocked() []string {
	p.srv.mu.Lock()
	defer p.srv.mu.Unlock()
	return sortedKeys(p.account.blocked)
}

// Devices lists the linked devices (companions) in order.
func (p *Phone) Devices() []uint16 {
	p.srv.mu.Lock()
	defer p.srv.mu.Unlock()
	return sortedKeys(p.account.devices)
}

// Unlink removes a linked device, as the user does on the phone: it is logged out.
func (p *Phone) Unlink(dev uint16) error {
	s := p.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	d := p.account.devices[dev]
	if d == nil {
		return fmt.Errorf("%w: %d", ErrNoSuchDevice, dev)
	}
	s.unlink(d, "phone")
	return nil
}

// PushName is the name that goes along with what the account sends.
func (p *Phone) PushName() string {
	p.srv.mu.Lock()
	defer p.srv.mu.Unlock()
	return p.account.pushName
}

// SetPushName changes the name that goes along with what the account sends, and tells the linked devices.
func (p *Phone) SetPushName(name string) error {
	p.srv.mu.Lock()
	p.account.pushName = name
	p.srv.mu.Unlock()
	if p.srv.opts.PhonesOff {
		return nil
	}
	return p.pushAppState(appstate.BuildSettingPushName(name))
}

// SetContact puts a number into the phone's address book; companions that are linked later learn its name and
// LID from history.
func (p *Phone) SetContact(pn, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.contacts[pn] = name
}

// SendText sends a text to a number (digits, with or without plus) or an address ("…@lid", "…@s.whatsapp.net").
func (p *Phone) SendText(ctx context.Context, to, text string) (id string, err error) {
	j, err := parseAddress(to)
	if err != nil {
		return "", err
	}
	return p.Send(ctx, j, &waE2E.Message{Conversation: proto.String(text)})
}

func parseAddress(to string) (jid, error) {
	if user, server, ok := strings.Cut(to, "@"); ok {
		if user == "" || (server != types.HiddenUserServer && server != types.DefaultUserServer) {
			return jid{}, fmt.Errorf("%w: %q", ErrBadAddress, to)
		}
		return types.NewJID(user, server), nil
	}
	pn := strings.TrimPrefix(to, "+")
	if !validNumber(pn) {
		return jid{}, fmt.Errorf("%w: %q", ErrBadAddress, to)
	}
	return types.NewJID(pn, types.DefaultUserServer), nil
}

// Forget drops the phone's Signal sessions with a number, as a phone does that was set up anew: its next message opens a
// session of its own, and what was encrypted for the old one can't be read.
func (p *Phone) Forget(pn string) {
	p.cipher.Lock()
	defer p.cipher.Unlock()
	_ = p.signal.Sessions.DeleteAllSessions(p.srv.life, pn) // in memory: never fails, never waits
}

// find returns the first receipt of a message.
func (p *Phone) find(id string) (Received, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.received {
		if r.ID == id {
			return r, nil
		}
	}
	return Received{}, fmt.Errorf("%w: %s", ErrNoSuchMessage, id)
}

// MarkRead sends the read receipt for a message that the phone has received.
func (p *Phone) MarkRead(ctx context.Context, id string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r, err := p.find(id)
	if err != nil {
		return err
	}
	p.sendReceipt(node{Tag: KindReceipt, Attrs: attrs{"id": id, "to": r.From.ToNonAD(), "type": "read"}})
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.received {
		if p.received[i].ID == id {
			p.received[i].Read = true
		}
	}
	return nil
}

// AskRetry sends a retry receipt for a message that the phone has received, as if it could not decrypt it. The
// sender encrypts it again under the same id, and it arrives as a duplicate.
func (p *Phone) AskRetry(id string) error {
	r, err := p.find(id)
	if err != nil {
		return err
	}
	p.askRetry(r.From, id, jid{}, false)
	return nil
}

// sendReceipt forwards a receipt of the phone. Phones talk to the server without a connection.
func (p *Phone) sendReceipt(n node) {
	p.srv.mu.Lock()
	defer p.srv.mu.Unlock()
	p.srv.forwardReceipt(p.account, 0, &n)
}

func (p *Phone) warn(msg string, err error) {
	p.srv.log.LogAttrs(p.srv.life, slog.LevelWarn, msg, slog.String("phone", lastDigits(p.account.pn)), slog.Any("err", err)) //nolint:sloglint // every caller gives a constant
}

// lastDigits is what logs may show of a number.
func lastDigits(pn string) string { return pn[max(0, len(pn)-4):] }
