package wa_test

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.mau.fi/whatsmeow/store"
	"go.mau.fi/whatsmeow/types"

	"github.com/wafleet/wafleet/internal/wa"
)

// watchedStore keeps the contract of the fenced store around whatsmeow's own: an error inside a send cancels that send,
// any other cancels the generation, both before whatsmeow sees it. Each Put or Get can be made to fail.
type watchedStore struct {
	failing atomic.Pointer[func(ctx context.Context, op string) error]
}

func (w *watchedStore) failWith(f func(ctx context.Context, op string) error) { w.failing.Store(&f) }

// failOn makes one operation fail, inside sends only or outside of them only.
func (w *watchedStore) failOn(op string, inSend bool, err error) {
	w.failWith(func(ctx context.Context, o string) error {
		if o == op && (ctx.Value(sendMark{}) != nil) == inSend {
			return err
		}
		return nil
	})
}

func (w *watchedStore) heal() { w.failing.Store(nil) }

type (
	sendMark struct{}
	genMark  struct{}
)

type watch struct {
	jid    types.JID
	cancel context.CancelCauseFunc
	saved  atomic.Bool
	err    atomic.Pointer[error]
}

func (w *watch) Saved() bool { return w.saved.Load() }
func (w *watch) End()        { w.cancel(context.Canceled) }
func (w *watch) Err() error {
	if e := w.err.Load(); e != nil {
		return *e
	}
	return nil
}

func (w *watch) fail(err error) {
	w.err.CompareAndSwap(nil, &err)
	w.cancel(err)
}

func (w *watchedStore) bind(ctx context.Context, cancel context.CancelCauseFunc) context.Context {
	return context.WithValue(ctx, genMark{}, cancel)
}

func (w *watchedStore) beginSend(ctx context.Context, jid string, _ func(context.Context, any) error) (context.Context, wa.SendWatch) {
	j, err := types.ParseJID(jid)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	s := &watch{jid: j, cancel: cancel}
	return context.WithValue(ctx, sendMark{}, s), s
}

func (w *watchedStore) check(ctx context.Context, op string) error {
	f := w.failing.Load()
	if f == nil {
		return nil
	}
	err := (*f)(ctx, op)
	if err == nil {
		return nil
	}
	if s, ok := ctx.Value(sendMark{}).(*watch); ok {
		s.fail(err)
	} else if cancel, ok := ctx.Value(genMark{}).(context.CancelCauseFunc); ok {
		cancel(err)
	}
	return err
}

func (w *watchedStore) wrap(d *store.Device) {
	s := &watchedSessions{d.Sessions, w, d}
	d.Sessions = s
	d.Identities = &watchedIdentities{d.Identities, w}
	d.PrivacyTokens = &watchedTokens{d.PrivacyTokens, w}
	d.EventBuffer = &watchedBuffer{d.EventBuffer, w}
}

type watchedSessions struct {
	store.SessionStore
	w *watchedStore
	d *store.Device
}

func (s *watchedSessions) GetManySessions(ctx context.Context, addrs []string) (map[string][]byte, error) {
	if err := s.w.check(ctx, "GetManySessions"); err != nil {
		return nil, err
	}
	return s.SessionStore.GetManySessions(ctx, addrs)
}

var errSkipped = errors.New("the recipient's phone is not among the devices")

func (s *watchedSessions) PutManySessions(ctx context.Context, m map[string][]byte) error {
	if err := s.w.check(ctx, "PutManySessions"); err != nil {
		return err
	}
	send, _ := ctx.Value(sendMark{}).(*watch)
	if send != nil {
		lid := send.jid
		if lid.Server == types.DefaultUserServer {
			var err error
			if lid, err = s.d.LIDs.GetLIDForPN(ctx, lid); err != nil {
				return err
			}
		}
		if _, ok := m[lid.SignalAddress().String()]; !ok {
			send.fail(errSkipped)
			return errSkipped
		}
	}
	if err := s.SessionStore.PutManySessions(ctx, m); err != nil {
		return err
	}
	if send != nil {
		send.saved.Store(true)
	}
	return nil
}

type watchedIdentities struct {
	store.IdentityStore
	w *watchedStore
}

func (s *watchedIdentities) PutIdentity(ctx context.Context, addr string, key [32]byte) error {
	if err := s.w.check(ctx, "PutIdentity"); err != nil {
		return err
	}
	return s.IdentityStore.PutIdentity(ctx, addr, key)
}

type watchedTokens struct {
	store.PrivacyTokenStore
	w *watchedStore
}

func (s *watchedTokens) GetPrivacyToken(ctx context.Context, user types.JID) (*store.PrivacyToken, error) {
	if err := s.w.check(ctx, "GetPrivacyToken"); err != nil {
		return nil, err
	}
	// whatsmeow saves nothing when it could encrypt for nobody; this is its last step before the frame.
	// By phone number it is also looked for before.
	if send, ok := ctx.Value(sendMark{}).(*watch); ok && user.Server == types.HiddenUserServer && !send.Saved() {
		send.fail(errSkipped)
		return nil, errSkipped
	}
	return s.PrivacyTokenStore.GetPrivacyToken(ctx, user)
}

type watchedBuffer struct {
	store.EventBuffer
	w *watchedStore
}

func (s *watchedBuffer) PutBufferedEvent(ctx context.Context, hash [32]byte, plaintext []byte, at time.Time) error {
	if err := s.w.check(ctx, "PutBufferedEvent"); err != nil {
		return err
	}
	return s.EventBuffer.PutBufferedEvent(ctx, hash, plaintext, at)
}
