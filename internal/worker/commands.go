package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/wa"
)

// pairLimit bounds a pairing attempt: WhatsApp's six codes last 160 s.
const pairLimit = 3 * time.Minute

// commandLimit bounds a command that talks to WhatsApp.
const commandLimit = 15 * time.Second

// serveCommands claims this session's control commands and starts or answers each.
func (v *supervisor) serveCommands(ctx context.Context) {
	sctx, cancel := bounded(ctx)
	cmds, err := v.w.o.Store.ClaimCommands(sctx, v.term.Fleet(), fleet.ClassControl, 10)
	cancel()
	if err != nil {
		if errors.Is(err, fleet.ErrLeaseLost) {
			v.term.Lose(fleet.ErrLeaseLost)
			return
		}
		v.log.WarnContext(ctx, "commands can't be read; trying again", slog.Any("err", err))
		v.again(v.wake)
		return
	}
	for i := range cmds {
		v.serve(ctx, &cmds[i])
	}
}

func (v *supervisor) serve(ctx context.Context, c *fleet.Command) {
	switch c.Kind {
	case fleet.CommandPair:
		v.startPairing(ctx, c)
	case fleet.CommandConnect:
		v.connect(ctx, c)
	case fleet.CommandLogout, fleet.CommandRead, fleet.CommandCheck:
		v.onSocket(ctx, c)
	default:
		// ClaimCommands leaves unknown kinds alone; one here is a kind this switch forgot.
		v.finish(ctx, c, "", "UNKNOWN_COMMAND", fmt.Errorf("unknown command %q", c.Kind))
	}
}

// startPairing begins a pairing attempt, if the session may be paired now.
func (v *supervisor) startPairing(ctx context.Context, c *fleet.Command) {
	switch {
	case v.session.CanLogin() && v.session.Ever():
		v.finish(ctx, c, "", "ALREADY_PAIRED", errors.New("the session is linked; log it out first to link it anew"))
		return
	case v.pairing != nil && v.gen != nil: // a newer wish replaces the attempt under way
		v.endGeneration(errGenerationOver)
		v.finish(ctx, v.pairing, "", "PAIRING_REPLACED", errors.New("a newer pairing attempt took its place"))
	case v.gen != nil: // a login that never completed: the pairing decides
		v.endGeneration(errGenerationOver)
	}
	if _, err := pairRequest(c); err != nil {
		v.finish(ctx, c, "", "INVALID_PAYLOAD", err)
		return
	}
	v.pairing = c
	v.dial(ctx)
}

// pairRequest reads a pairing command.
func pairRequest(c *fleet.Command) (*wa.PairRequest, error) {
	var p fleet.PairPayload
	if err := json.Unmarshal([]byte(c.Payload), &p); err != nil {
		return nil, fmt.Errorf("read pairing command: %w", err)
	}
	if p.Method != fleet.PairQR && p.Method != fleet.PairCode {
		return nil, fmt.Errorf("pairing method %q: use qr or code", p.Method)
	}
	return &wa.PairRequest{Method: p.Method, Phone: p.Phone, Until: time.Now().Add(pairLimit)}, nil
}

// showPairing puts a fresh QR or code into the row. The command is done with the first.
func (v *supervisor) showPairing(ctx context.Context, n note) {
	if v.gen == nil || v.gen.pair == nil {
		return
	}
	p := fleet.Pairing{Method: fleet.PairQR, QR: n.text, ExpiresAt: n.expires, EndsAt: time.Now().Add(pairLimit)}
	if n.kind == noteCode {
		p = fleet.Pairing{Method: fleet.PairCode, Code: n.text, ExpiresAt: n.expires, EndsAt: n.expires}
	}
	sctx, cancel := bounded(ctx)
	err := v.w.o.Store.RecordPairing(sctx, v.term.Fleet(), v.gen.n, p)
	cancel()
	if err != nil {
		v.log.WarnContext(ctx, "pairing code not shown", slog.Any("err", err))
		if errors.Is(err, fleet.ErrLeaseLost) {
			v.term.Lose(fleet.ErrLeaseLost)
		}
		return
	}
	v.observed = store.Observation{State: fleet.ObservedPairing, Generation: v.gen.n}
	v.unwritten = false
	v.w.changed(ctx, v.id, false)
	if v.pairing != nil && v.pairing.Status == fleet.CommandRunning {
		v.finish(ctx, v.pairing, fmt.Sprintf(`{"method":%q}`, p.Method), "", nil)
		v.pairing.Status = fleet.CommandDone
	}
}

// pairingEnded: no scan, a refusal, or a number that can't be taken. The session rests where it was.
func (v *supervisor) pairingEnded(ctx context.Context, end wa.End) {
	c := v.pairing
	v.pairing, v.parked = nil, true
	o := store.Observation{State: v.unpairedState(), Generation: v.generation, Reason: string(end.Reason), Code: end.Code, Error: errText(end.Err), Announce: true}
	switch {
	case errors.Is(end.Err, fleet.ErrNumberInUse):
		o.Reason = fleet.ReasonNumberInUse
	case end.Reason == wa.ReasonPairExpired && !v.session.Ever():
		o.State = fleet.ObservedPairingExpired
	}
	v.observe(ctx, o)
	if c != nil && c.Status == fleet.CommandRunning {
		err := end.Err
		if err == nil {
			err = fmt.Errorf("pairing ended: %s", end.Reason)
		}
		code := "PAIRING_FAILED"
		if end.Reason == wa.ReasonPasskey {
			code = "PASSKEY_REQUIRED"
		}
		v.finish(ctx, c, "", code, err)
	}
}

// connect dials now: it also leaves conflict, failed, a ban's wait and a backoff.
func (v *supervisor) connect(ctx context.Context, c *fleet.Command) {
	switch {
	case !v.session.CanLogin():
		v.finish(ctx, c, "", "NOT_PAIRED", errors.New("the session has no login: pair it first"))
	case v.gen != nil:
		v.finish(ctx, c, `{"already":true}`, "", nil)
	default:
		v.parked = false
		v.history = history{}
		v.dial(ctx)
		v.finish(ctx, c, `{}`, "", nil)
	}
}

// onSocket runs a command that needs the socket, beside the loop, one at a time.
func (v *supervisor) onSocket(ctx context.Context, c *fleet.Command) {
	g := v.gen
	if g == nil || v.observed.State != fleet.ObservedConnected {
		v.finish(ctx, c, "", "NOT_CONNECTED", errors.New("the session is not connected"))
		return
	}
	g.wg.Go(func() {
		var err error
		select {
		case g.socket <- struct{}{}:
			cctx, cancel := context.WithTimeout(g.ctx, commandLimit)
			err = g.command(cctx, c)
			cancel()
			<-g.socket
		case <-g.ctx.Done():
			err = context.Cause(g.ctx)
		}
		if err != nil && (ctx.Err() != nil || errors.Is(context.Cause(g.ctx), errStopping)) {
			return // still running in the row: the next owner takes it up
		}
		fctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordLimit)
		defer cancel()
		v.finish(fctx, c, `{}`, "COMMAND_FAILED", err)
	})
}

func (g *generation) command(ctx context.Context, c *fleet.Command) error {
	switch c.Kind {
	case fleet.CommandLogout:
		return g.sock.Logout(ctx)
	case fleet.CommandCheck:
		return g.check(ctx, c)
	}
	var p fleet.ReadPayload
	if err := json.Unmarshal([]byte(c.Payload), &p); err != nil {
		return fmt.Errorf("read command: %w", err)
	}
	m, err := g.v.w.o.Store.GetInbound(ctx, g.org, p.InboundID)
	if err != nil {
		return err
	}
	if m.SessionID != g.v.id {
		return fmt.Errorf("message %s: %w", p.InboundID, fleet.ErrNotFound)
	}
	return g.sock.MarkRead(ctx, m.Chat, m.Sender, []string{m.WAID}, time.Now())
}

// finish writes a command's end. A write that fails leaves it running in the row, to be claimed again.
func (v *supervisor) finish(ctx context.Context, c *fleet.Command, result, code string, cause error) {
	status, text := fleet.CommandDone, ""
	if cause != nil {
		status, text, result = fleet.CommandFailed, cause.Error(), ""
	} else {
		code = ""
	}
	sctx, cancel := bounded(ctx)
	err := v.w.o.Store.FinishCommand(sctx, v.term.Fleet(), c.ID, status, result, code, text)
	cancel()
	if err != nil {
		v.log.WarnContext(ctx, "command's end not written", slog.String("command", c.Kind), slog.Any("err", err))
		return
	}
	v.w.nudge(ctx, bus.TopicSession, string(v.id))
}
