package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/wa"
	"github.com/wafleet/wafleet/internal/wastore"
)

var (
	errGenerationOver = errors.New("generation is over")
	errStopping       = errors.New("worker is stopping")
)

// openLimit bounds how long a socket that is being opened may hold one of the worker's dial tokens.
const openLimit = 30 * time.Second

// note is what a generation tells its supervisor's loop.
type note struct {
	kind    noteKind
	text    string // QR text, pairing code, push name
	expires time.Time
}

type noteKind int

const (
	noteReady noteKind = iota
	noteOffline
	noteQR
	noteCode
	notePushName
)

// generation is one socket's life under a term: the socket, and once it is logged in, its lane.
type generation struct {
	v      *supervisor
	n      int64
	log    *slog.Logger
	ctx    context.Context //nolint:containedctx // the generation's lifetime: parent of all work done in it
	cancel context.CancelCauseFunc
	sock   *wa.Socket
	pair   *fleet.Command // the pairing it serves, or nil
	org    fleet.OrgID
	slug   fleet.SessionSlug
	phone  string
	stable bool // touched by the supervisor's loop only

	notes   chan note
	ended   chan wa.End
	opened  chan struct{} // closed when it is logged in or shows a code
	offline chan struct{} // closed at the end of the offline queue
	settled chan struct{} // closed to make the lane stop after what it is doing
	once    struct{ opened, offline, settled sync.Once }
	wg      sync.WaitGroup
	socket  chan struct{} // one-slot: commands that use the socket, one at a time
}

// startGeneration dials in the background and returns at once.
func startGeneration(ctx context.Context, v *supervisor) *generation {
	g := &generation{
		v: v, n: v.generation, pair: v.pairing, org: v.session.OrgID, slug: v.session.Slug, phone: v.session.Phone,
		log:   v.log.With(slog.Int64("generation", v.generation)),
		notes: make(chan note, 16), ended: make(chan wa.End, 1),
		opened: make(chan struct{}), offline: make(chan struct{}), settled: make(chan struct{}),
		socket: make(chan struct{}, 1),
	}
	g.ctx, g.cancel = context.WithCancelCause(ctx)
	login := v.session.DeviceJID
	g.wg.Go(func() { g.ended <- g.run(login) })
	return g
}

// wait joins everything the generation started. Its context must have ended.
func (g *generation) wait() { g.wg.Wait() }

// run opens the socket and lives with it.
func (g *generation) run(login string) wa.End {
	release, ok := g.dialToken()
	if !ok {
		return wa.End{Reason: wa.ReasonStopped, Err: context.Cause(g.ctx)}
	}
	defer release()

	o := wa.Options{
		Network: g.v.w.o.Network, Term: g.v.term.Fleet(), Generation: g.n,
		Log: g.v.w.log, Metrics: g.v.w.waMetrics, Valid: g.v.term.Err, Bind: g.v.fence.Bind,
		BeginSend: func(ctx context.Context, jid string, claim wastore.Claim) (context.Context, wa.SendWatch) {
			return g.v.fence.BeginSend(ctx, jid, claim)
		},
		Handler: g.handler(),
	}
	var err error
	if g.pair != nil {
		if o.Pair, err = pairRequest(g.pair); err != nil {
			return wa.End{Reason: wa.ReasonPairFailed, Err: err}
		}
		o.Device = g.v.fence.NewDevice()
	} else {
		// A login whose keys are gone is not replaced by a pairing: a person has to say so.
		err = apart(func() (err error) {
			ctx, cancel := context.WithTimeout(g.ctx, 10*time.Second)
			defer cancel()
			o.Device, err = g.v.fence.Device(ctx, login)
			return err
		})
		if err != nil {
			if g.ctx.Err() != nil {
				err = context.Cause(g.ctx)
			}
			return wa.End{Reason: wa.ReasonStore, Err: fmt.Errorf("load login: %w", err)}
		}
	}
	g.sock = wa.NewSocket(o)
	if g.pair == nil {
		g.wg.Go(func() { newLane(g).run() })
	}
	return g.sock.Run(g.ctx)
}

// calm waits while the process's dials are spaced. A person who pairs never waits.
func (g *generation) calm() bool {
	w := g.v.w
	for first := true; ; first = false {
		wait := w.brake.pause(w.Active(), time.Now())
		if wait <= 0 {
			return true
		}
		if first {
			w.metrics.braked.Inc()
			g.log.InfoContext(g.ctx, "connecting later: WhatsApp turns many sessions away")
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-g.ctx.Done():
			t.Stop()
			return false
		}
	}
}

// dialToken waits for the right to open a socket. It goes back when the socket is open, has ended,
// or took too long, so a restore never opens more than RESTORE_CONCURRENCY at a time.
func (g *generation) dialToken() (release func(), ok bool) {
	if g.pair == nil && !g.calm() {
		return nil, false
	}
	select {
	case g.v.w.dials <- struct{}{}:
	case <-g.ctx.Done():
		return nil, false
	}
	back := sync.OnceFunc(func() { <-g.v.w.dials })
	g.wg.Go(func() {
		t := time.NewTimer(openLimit)
		defer t.Stop()
		select {
		case <-g.opened:
		case <-t.C:
		case <-g.ctx.Done():
		}
		back()
	})
	return back, true
}

// settle lets the lane finish what it is doing, no longer than limit.
func (g *generation) settle(limit time.Duration) {
	g.once.settled.Do(func() { close(g.settled) })
	if g.pair != nil {
		return
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case g.socket <- struct{}{}: // the lane and commands hold it while they use the socket
		<-g.socket
	case <-t.C:
	case <-g.ctx.Done():
	}
}

// tell gives a note to the supervisor's loop.
func (g *generation) tell(n note) {
	select {
	case g.notes <- n:
	case <-g.ctx.Done():
	}
}

// note handles what the present generation told.
func (v *supervisor) note(ctx context.Context, n note) {
	switch n.kind {
	case noteReady:
		v.ready(ctx)
	case noteOffline:
		v.completePairing(ctx)
	case noteQR, noteCode:
		v.showPairing(ctx, n)
	case notePushName:
		sctx, cancel := bounded(ctx)
		err := v.w.o.Store.RecordPushName(sctx, v.term.Fleet(), n.text)
		cancel()
		if err != nil {
			v.log.WarnContext(ctx, "push name not written", slog.Any("err", err))
		}
	}
}

// completePairing: the login works and the offline queue is through, so the pairing is complete.
func (v *supervisor) completePairing(ctx context.Context) {
	if v.session.Ever() {
		return
	}
	sctx, cancel := bounded(ctx)
	err := v.w.o.Store.RecordPaired(sctx, v.term.Fleet())
	cancel()
	if err != nil {
		v.log.WarnContext(ctx, "pairing not recorded as complete; trying again at the next login", slog.Any("err", err))
		return
	}
	v.poke() // read the row again
}

// changed tells whoever watches a session that its row changed, and wakes the webhook workers.
func (w *Worker) changed(ctx context.Context, id fleet.SessionID, event bool) {
	w.nudge(ctx, bus.TopicSession, string(id))
	if event {
		w.nudge(ctx, bus.TopicWebhooks, "")
	}
}

// handler binds a socket's callbacks to this generation.
func (g *generation) handler() wa.Handler {
	v := g.v
	return wa.Handler{
		QR: func(_ context.Context, text string, expires time.Time) {
			g.once.opened.Do(func() { close(g.opened) })
			g.tell(note{kind: noteQR, text: text, expires: expires})
		},
		Code: func(_ context.Context, code string, expires time.Time) {
			g.once.opened.Do(func() { close(g.opened) })
			g.tell(note{kind: noteCode, text: code, expires: expires})
		},
		AcceptPair: func(ctx context.Context, phone string) error {
			return v.w.o.Store.CheckNumber(ctx, v.id, phone)
		},
		Paired: func(ctx context.Context, p wa.Paired) error {
			return v.w.o.Store.RecordLogin(ctx, v.term.Fleet(), store.Login{
				DeviceJID: p.DeviceJID, Phone: p.Phone, LID: p.LID, PushName: p.PushName, Platform: p.Platform,
			})
		},
		Ready: func(context.Context) {
			g.once.opened.Do(func() { close(g.opened) })
			g.tell(note{kind: noteReady})
		},
		OfflineDone: func(context.Context, int) {
			g.once.offline.Do(func() { close(g.offline) })
			g.tell(note{kind: noteOffline})
		},
		Resync:   func(_ context.Context, collection string) bool { return v.resyncs.allow(collection, time.Now()) },
		PushName: func(_ context.Context, name string) { g.tell(note{kind: notePushName, text: name}) },
		Limit:    g.limited,
		Message:  g.message,
		Receipt:  g.receipt,
		Payload: func(ctx context.Context, waID string) ([]byte, error) {
			payload, err := v.w.o.Store.PayloadForRetry(ctx, v.id, waID)
			if err != nil && !errors.Is(err, fleet.ErrNotFound) {
				g.giveUp(ctx, err)
			}
			return payload, err
		},
		AllowRetry: func(ctx context.Context, waID string) bool {
			ok, err := v.w.o.Store.CountRetryFrame(ctx, v.term.Fleet(), waID)
			if ok && err == nil { // counted, never held: somebody waits to read what they have got already
				v.frames.count(time.Now())
				v.w.settler.tell(ledger.Settlement{Session: g.slug, Frames: 1})
			}
			if err == nil {
				err = g.undecryptable(ctx, waID)
			}
			if err != nil {
				g.giveUp(ctx, err)
			}
			return ok && err == nil
		},
	}
}

// undecryptable tells once that a recipient asked for a message as often as it is sent again.
func (g *generation) undecryptable(ctx context.Context, waID string) error {
	told, err := g.v.w.o.Store.TellUndecryptable(ctx, g.v.term.Fleet(), waID)
	if told {
		g.log.WarnContext(ctx, "recipient can't decrypt a message", slog.String("wa_id", waID))
		g.v.w.nudge(ctx, bus.TopicWebhooks, "")
	}
	return err
}

// giveUp ends the generation because a retry receipt can't be answered now. whatsmeow acknowledges a
// receipt that it got no message for; under an ended context it stays silent, and WhatsApp asks again.
func (g *generation) giveUp(ctx context.Context, err error) {
	g.log.WarnContext(ctx, "retry receipt can't be answered now; WhatsApp will ask again", slog.Any("err", err))
	g.lose(err)
	g.cancel(err)
}
