package wastore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"go.mau.fi/whatsmeow/types"
)

// ErrRecipientSkipped says that whatsmeow is about to send a message that the recipient's phone can't read,
// because a pre-key fetch was refused or timed out. It does not call that an error.
var ErrRecipientSkipped = errors.New("the recipient's phone is not among the devices encrypted for")

// ErrWithdrawn is what a claim returns when the frame may not leave and nothing is wrong: the message was
// cancelled meanwhile, or has to wait.
var ErrWithdrawn = errors.New("the frame may not leave any more")

// Claim asks for the right to let the frame leave that was encrypted with keys (store.Keys), which are
// stored when it returns nil. Any error ends the send.
type Claim = func(ctx context.Context, keys any) error

// SendWatch watches the store calls of one send.
type SendWatch struct {
	f      *Fence
	jid    types.JID
	direct bool // one recipient: their device 0 must be encrypted for
	cancel context.CancelCauseFunc
	claim  atomic.Pointer[Claim] // until it is called
	saved  atomic.Bool
	ended  atomic.Bool
	err    atomic.Pointer[error]

	mu       sync.Mutex
	versions map[string]uint64 // of the Signal sessions when they were read
}

type sendKey struct{}

// BeginSend marks a context for one message to jid. Any store error under it cancels it before
// whatsmeow sees the error, and so does an encryption that left out the recipient's phone: whatsmeow
// sends no frame under a cancelled context. A claim, if there is one, is asked once, with the keys and
// before they are stored. Call End when the send is over.
func (f *Fence) BeginSend(ctx context.Context, jid string, claim Claim) (context.Context, *SendWatch) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &SendWatch{f: f, cancel: cancel}
	if claim != nil {
		w.claim.Store(&claim)
	}
	var err error
	if w.jid, err = types.ParseJID(jid); err == nil && w.jid.User == "" {
		err = errors.New("no user")
	}
	if err != nil {
		w.fail(fmt.Errorf("begin send: recipient is not a JID: %w", err))
	}
	w.direct = w.jid.Server == types.DefaultUserServer || w.jid.Server == types.HiddenUserServer
	return context.WithValue(ctx, sendKey{}, w), w
}

// Saved reports whether the sessions encrypted with are stored, the recipient's phone among them.
// Before that no frame of the message has left; after it nobody can tell from here.
func (w *SendWatch) Saved() bool { return w.saved.Load() }

// takeClaim returns the claim, once.
func (w *SendWatch) takeClaim() Claim {
	if claim := w.claim.Swap(nil); claim != nil {
		return *claim
	}
	return nil
}

// Err is the first store error of the send, nil if there was none.
func (w *SendWatch) Err() error {
	if err := w.err.Load(); err != nil {
		return *err
	}
	return nil
}

// End stops watching and frees the send's context.
func (w *SendWatch) End() {
	w.ended.Store(true)
	w.cancel(context.Canceled)
}

func (w *SendWatch) fail(err error) {
	w.err.CompareAndSwap(nil, &err)
	w.cancel(err)
}

// sendOf returns the send that ctx belongs to and that is not over.
func (f *Fence) sendOf(ctx context.Context) *SendWatch {
	if w, ok := ctx.Value(sendKey{}).(*SendWatch); ok && w.f == f && !w.ended.Load() {
		return w
	}
	return nil
}

// covers reports whether the recipient's device 0 is in the batch, as the phone number or as the
// LID that stands for it.
func (w *SendWatch) covers(ctx context.Context, sessions map[string][]byte) (bool, error) {
	if _, ok := sessions[w.jid.ToNonAD().SignalAddress().String()]; ok {
		return true, nil
	}
	other, err := w.f.c.lids.other(ctx, w.jid.ToNonAD())
	if err != nil || other.IsEmpty() {
		return false, err
	}
	_, ok := sessions[other.SignalAddress().String()]
	return ok, nil
}

// gate refuses to go on to the frame of a direct message that was not encrypted for its recipient.
// whatsmeow stores nothing when it could encrypt for no device at all, so the look for the
// recipient's token, its last step before the frame, is where that shows.
func (f *Fence) gate(ctx context.Context) error {
	if w := f.sendOf(ctx); w != nil && w.direct && !w.Saved() {
		return f.fail(ctx, ErrRecipientSkipped)
	}
	return nil
}
