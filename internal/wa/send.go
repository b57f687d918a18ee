package wa

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.mau.fi/whatsmeow"
	"go.mau.fi/whatsmeow/proto/waE2E"
	"go.mau.fi/whatsmeow/types"
	"google.golang.org/protobuf/proto"

	"github.com/wafleet/wafleet/internal/fleet"
)

// A send whose caller gave no deadline gets this one.
const defaultSendTimeout = 20 * time.Second

// Outgoing is one message to send. The id was chosen and stored before.
type Outgoing struct {
	JID     string // "5511900000001@s.whatsapp.net" or "<n>@lid"
	WAID    string
	Payload []byte // marshalled waE2E.Message, as BuildText makes it
	// Claim, if set, is called once by the fenced store, after the encryption and before the frame, with the keys that it
	// was encrypted with. The frame leaves only if it returns nil, and then the keys are stored.
	Claim func(ctx context.Context, keys any) error
}

// Sent is an acknowledged send.
type Sent struct {
	At time.Time // WhatsApp's time
}

// Send sends one message and returns when WhatsApp has acknowledged or refused it, or ctx ends. Every error is a
// *SendError. Sends of one socket go one after another. Send returns at the latest a moment after ctx ended, also when
// whatsmeow doesn't: then the generation is ended too, because the lock that whatsmeow holds can't be had back.
func (s *Socket) Send(ctx context.Context, out Outgoing) (Sent, error) {
	start := time.Now()
	sent, serr := s.send(ctx, out)
	outcome := fleet.OutcomeSent
	if serr != nil {
		outcome = serr.Outcome
	}
	s.m.sent(outcome, time.Since(start))
	if serr != nil {
		return Sent{}, serr
	}
	return sent, nil
}

//nolint:contextcheck // what it does runs under the generation's context, which ends with ctx as well
func (s *Socket) send(ctx context.Context, out Outgoing) (Sent, *SendError) {
	to, err := types.ParseJID(out.JID)
	if err != nil || (to.Server != types.DefaultUserServer && to.Server != types.HiddenUserServer) || to.Device != 0 || !digits(to.User) {
		return Sent{}, refused(0, SendInvalid, errors.New("the recipient is not the address of a person"))
	}
	msg := new(waE2E.Message)
	if err := proto.Unmarshal(out.Payload, msg); err != nil {
		return Sent{}, refused(0, SendInvalid, fmt.Errorf("read payload: %w", err))
	}
	if out.WAID == "" || len(out.Payload) == 0 {
		return Sent{}, refused(0, SendInvalid, errors.New("a send needs an id and a payload"))
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultSendTimeout)
		defer cancel()
	}
	c, serr := s.begin(ctx, true)
	if serr != nil {
		return Sent{}, serr
	}

	sctx, watch := c.ctx, SendWatch(nil)
	if s.opts.BeginSend != nil {
		sctx, watch = s.opts.BeginSend(c.ctx, out.JID, out.Claim)
	}
	done := make(chan result, 1)
	go func() {
		defer c.end()
		if watch != nil {
			defer watch.End()
		}
		var r result
		r.err, _ = caught(func() (err error) {
			r.resp, err = c.life.client.SendMessage(sctx, to, msg, whatsmeow.SendRequestExtra{ID: out.WAID, Timeout: -1})
			return err
		})
		r.look(sctx, watch) // before End, which ends the context as well
		done <- r
	}()

	var r result
	select {
	case r = <-done:
	case <-sctx.Done():
		grace := time.NewTimer(sendGrace)
		defer grace.Stop()
		select {
		case r = <-done:
		case <-grace.C:
			// whatsmeow waits for something that its context doesn't end: its send lock, a database, a write. Its context
			// has ended, so a frame that has not left yet won't; but the lock can't be had back.
			r.err = errors.New("the send did not return after its time was over")
			r.look(sctx, watch)
			s.finish(End{Reason: ReasonStuck, Err: r.err})
		}
	}
	if r.err != nil {
		return Sent{}, classifySend(r.err, r.saved, r.cause)
	}
	if !r.saved {
		return Sent{}, &SendError{
			Outcome: fleet.OutcomeUnknown, Reason: SendNobodyReached,
			Err: errors.New("acknowledged, but not encrypted for the recipient's phone"),
		}
	}
	return Sent{At: r.resp.Timestamp}, nil
}

// result is what is known when a send is over.
type result struct {
	resp  whatsmeow.SendResponse
	err   error
	saved bool
	cause error // why the send's context ended, nil if it did not
}

func (r *result) look(ctx context.Context, watch SendWatch) {
	r.cause = cause(ctx)
	r.saved = watch == nil || watch.Saved()
	if watch != nil && r.err != nil && watch.Err() != nil && !errors.Is(r.cause, watch.Err()) {
		r.err = fmt.Errorf("%w: %w", watch.Err(), r.err)
	}
}

// cause is why ctx ended, nil if it did not.
func cause(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}

// call is something under way on the socket.
type call struct {
	life *life
	ctx  context.Context //nolint:containedctx // the generation's, ended by the caller's as well
	end  func()
}

// begin starts a call; with lock it waits for the send lock. Nothing has left when it fails.
//
//nolint:contextcheck // it makes the context that is the generation's and ends with ctx as well
func (s *Socket) begin(ctx context.Context, lock bool) (call, *SendError) {
	l := s.life.Load()
	if l == nil || !s.ready.Load() {
		return call{}, nothing(SendNotConnected, errors.New("the socket is not logged in"))
	}
	unlock := func() {}
	if lock {
		select {
		case s.slot <- struct{}{}:
			unlock = func() { <-s.slot }
		case <-ctx.Done():
			return call{}, classifySend(errors.New("another send was under way"), false, context.Cause(ctx))
		case <-l.ctx.Done():
			return call{}, classifySend(errors.New("another send was under way"), false, context.Cause(l.ctx))
		}
	}
	if err := cmp.Or(cause(ctx), cause(l.ctx), s.gate.check()); err != nil {
		unlock()
		return call{}, classifySend(errors.New("not started"), false, err)
	}
	if !s.calls.enter() {
		unlock()
		return call{}, classifySend(errors.New("not started"), false, errShut)
	}
	cctx, cancel := context.WithCancelCause(l.ctx)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	return call{life: l, ctx: cctx, end: func() {
		stop()
		cancel(nil)
		s.calls.leave()
		unlock()
	}}, nil
}

// do calls f and returns when it is done or the call's context has ended.
//
//nolint:contextcheck // the call's context ends with ctx as well
func (s *Socket) do(ctx context.Context, f func(ctx context.Context, c *whatsmeow.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, defaultSendTimeout)
	defer cancel()
	c, serr := s.begin(ctx, false)
	if serr != nil {
		return serr
	}
	done := make(chan error, 1)
	go func() {
		defer c.end()
		err, _ := caught(func() error { return f(c.ctx, c.life.client) })
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
}

// MarkRead tells the sender that messages were read; at is when. sender is only needed where chat is not the sender.
func (s *Socket) MarkRead(ctx context.Context, chat, sender string, waIDs []string, at time.Time) error {
	chatJID, err := types.ParseJID(chat)
	if err != nil {
		return fmt.Errorf("mark read: chat: %w", err)
	}
	var senderJID types.JID
	if sender != "" {
		if senderJID, err = types.ParseJID(sender); err != nil {
			return fmt.Errorf("mark read: sender: %w", err)
		}
	}
	err = s.do(ctx, func(ctx context.Context, c *whatsmeow.Client) error {
		return c.MarkRead(ctx, waIDs, at, chatJID, senderJID)
	})
	if err != nil {
		return fmt.Errorf("mark read: %w", err)
	}
	return nil
}

// Logout unlinks this device at WhatsApp, deletes it in the store and ends the generation with ReasonStopped.
func (s *Socket) Logout(ctx context.Context) error {
	// whatsmeow closes the connection before it deletes the device, so the end of the connection must not be taken for
	// the end of the generation, nor end the deletion.
	s.leaving.Store(true)
	err := s.do(ctx, func(cctx context.Context, c *whatsmeow.Client) error {
		tidy, cancel := context.WithTimeout(context.WithoutCancel(cctx), joinTimeout)
		defer cancel()
		return c.Logout(tidy)
	})
	if err != nil {
		s.leaving.Store(false)
		select {
		case <-s.gate.lost:
			s.post(note{lost: true})
		default:
		}
		return fmt.Errorf("log out: %w", err)
	}
	s.finish(End{Reason: ReasonStopped})
	return nil
}
