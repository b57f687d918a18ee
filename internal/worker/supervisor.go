package worker

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/lease"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/wa"
	"github.com/wafleet/wafleet/internal/wastore"
)

// supervisor owns one session under one term. Its goroutine alone touches the fields below "loop".
type supervisor struct {
	w     *Worker
	term  *lease.Term
	id    fleet.SessionID
	fence *wastore.Fence
	log   *slog.Logger

	wake     chan struct{} // look at the rows
	lane     chan struct{} // the lane should look
	stopping chan struct{}
	stopOnce sync.Once
	done     chan struct{}
	strikes  strikes
	resyncs  resyncs
	frames   frameCap
	slug     atomic.Pointer[fleet.SessionSlug]

	// loop
	session    *fleet.Session
	gen        *generation
	generation int64
	history    history
	parked     bool
	pairing    *fleet.Command // the pairing that the next or present generation serves
	retry      *time.Timer    // the one timer for the next dial
	grace      *time.Timer    // a drop is told when it fires
	stable     *time.Timer    // an open counts as stable when it fires
	graceOn    bool           // grace is running
	observed   store.Observation
	unwritten  bool // observed is not in the row yet
}

func newSupervisor(w *Worker, term *lease.Term) *supervisor {
	t := term.Fleet()
	return &supervisor{
		w: w, term: term, id: t.SessionID,
		fence: w.container.Fence(wastore.FenceOptions{Term: t, Valid: term.Err, Lost: term.Lose}),
		log:   w.log.With(slog.String("session_id", string(t.SessionID)), slog.Int64("epoch", t.Epoch)),
		wake:  make(chan struct{}, 1), lane: make(chan struct{}, 1),
		stopping: make(chan struct{}), done: make(chan struct{}),
		retry: idleTimer(), grace: idleTimer(), stable: idleTimer(),
	}
}

// idleTimer returns a timer that doesn't fire until it is reset.
func idleTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

func (v *supervisor) stop()     { v.stopOnce.Do(func() { close(v.stopping) }) }
func (v *supervisor) poke()     { signal(v.wake) }
func (v *supervisor) wakeLane() { signal(v.lane) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run lives as long as the term, the process and the wish for the session.
func (v *supervisor) run() {
	defer close(v.done)
	defer v.stopTimers()
	ctx := v.term.Context()
	v.poke()
	for v.turn(ctx) {
	}
}

// turn waits for one thing to happen and handles it. It reports whether the loop goes on.
func (v *supervisor) turn(ctx context.Context) (goOn bool) {
	var ended <-chan wa.End
	var notes <-chan note
	if v.gen != nil {
		ended, notes = v.gen.ended, v.gen.notes
	}
	handle := func(fn func()) bool { return apart(func() bool { fn(); return true }) }
	select {
	case <-ctx.Done(): // lost, or the process goes down without grace: nothing may be written any more
		v.endGeneration(context.Cause(ctx))
		return false
	case <-v.stopping:
		v.handOver(ctx)
		return false
	case <-v.wake:
		return apart(func() bool { return v.look(ctx) })
	case n := <-notes:
		return handle(func() { v.note(ctx, n) })
	case end := <-ended:
		return handle(func() { v.ended(ctx, end) })
	case <-v.retry.C:
		return handle(func() { v.dial(ctx) })
	case <-v.grace.C:
		return handle(func() {
			v.graceOn = false
			v.observed.Announce, v.unwritten = true, true
			v.write(ctx)
		})
	case <-v.stable.C:
		return handle(func() { v.becomeStable(ctx) })
	}
}

func (v *supervisor) stopTimers() {
	v.retry.Stop()
	v.grace.Stop()
	v.stable.Stop()
}

// look reads the rows and does what they ask. It reports whether the session should go on here.
func (v *supervisor) look(ctx context.Context) (goOn bool) {
	first := v.session == nil
	sess, err := v.load(ctx)
	if err != nil {
		// Never taken for a lost login: wait and read again.
		v.log.WarnContext(ctx, "session row can't be read; trying again", slog.Any("err", err))
		v.again(v.wake)
		return true
	}
	v.session = &sess
	v.slug.Store(&sess.Slug)
	if sess.Desired != fleet.DesiredRunning {
		v.standDown(ctx)
		return false
	}
	if v.unwritten {
		v.write(ctx)
	}
	if first {
		v.begin(ctx, &sess)
	}
	v.serveCommands(ctx)
	return true
}

// storeLimit bounds one statement or transaction of the loop: a database that neither answers nor
// hangs up must not hold the session until TCP gives up.
const storeLimit = 10 * time.Second

func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, storeLimit)
}

func (v *supervisor) load(ctx context.Context) (fleet.Session, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	return v.w.o.Store.SessionByID(ctx, v.id)
}

// again pokes c after a moment.
func (v *supervisor) again(c chan struct{}) {
	time.AfterFunc(time.Second, func() { signal(c) })
}

// begin decides what a fresh term starts with, from what earlier terms left in the row.
func (v *supervisor) begin(ctx context.Context, sess *fleet.Session) {
	v.generation = sess.Generation
	v.observed = store.Observation{State: sess.Observed, Generation: sess.Generation, Reason: sess.Reason, Code: sess.ReasonCode, Error: sess.LastError}
	switch {
	case !sess.CanLogin():
		v.parked = true
		if sess.Observed == fleet.ObservedPairing { // the pairing went down with its worker
			v.observe(ctx, store.Observation{State: v.unpairedState(), Generation: sess.Generation, Reason: fleet.ReasonInterrupted, Announce: true})
		}
	case sess.NeedsPerson():
		v.parked = true
	case sess.Observed == fleet.ObservedTempBanned && time.Until(sess.Until) > 0:
		v.retry.Reset(time.Until(sess.Until) + banMargin)
	default:
		v.dial(ctx)
	}
}

// unpairedState is where a session without a usable login rests.
func (v *supervisor) unpairedState() fleet.Observed {
	if v.session.Ever() {
		return fleet.ObservedLoggedOut
	}
	return fleet.ObservedNeedsPairing
}

// dial starts a generation, if one may be started.
func (v *supervisor) dial(ctx context.Context) {
	v.retry.Stop()
	if v.gen != nil || (v.parked && v.pairing == nil) || v.term.Err() != nil {
		return
	}
	sess, err := v.load(ctx)
	if err != nil {
		v.log.WarnContext(ctx, "login can't be read; trying again", slog.Any("err", err))
		v.observe(ctx, store.Observation{
			State: fleet.ObservedUnavailable, Generation: v.generation, Reason: "store", Error: errText(err), Attempts: v.history.attempts,
		})
		v.retry.Reset(v.history.backoff())
		return
	}
	v.session = &sess
	v.generation++
	if v.pairing == nil && !sess.CanLogin() {
		v.parked = true
		v.observe(ctx, store.Observation{State: v.unpairedState(), Generation: v.generation, Reason: "no_login", Announce: true})
		return
	}
	v.gen = startGeneration(ctx, v)
	v.w.metrics.generations.Inc()
	if v.pairing == nil { // written while the socket opens
		o := v.observed
		o.Generation, o.Announce, o.RetryAt = v.generation, false, time.Time{}
		if v.history.attempts == 0 && len(v.history.replaced) == 0 && o.State != fleet.ObservedClientOutdated {
			o.State = fleet.ObservedConnecting // a try out of a drop, a conflict or a refused version is not news
		}
		v.observe(ctx, o)
	}
}

// ended handles the end of the present generation.
func (v *supervisor) ended(ctx context.Context, end wa.End) {
	g := v.gen
	v.gen = nil
	g.cancel(errGenerationOver)
	g.wait()
	v.stable.Stop()
	v.w.metrics.ended(end.Reason)
	v.w.brake.saw(v.id, end.Reason, time.Now())
	if ctx.Err() != nil {
		return // the loop sees it next
	}
	if g.pair != nil && end.Reason != wa.ReasonPaired {
		v.pairingEnded(ctx, end)
		return
	}
	if end.Reason == wa.ReasonPaired {
		v.pairing, v.parked = nil, false
	}
	verdict := v.history.after(end, g.stable, time.Now())
	o := store.Observation{
		State: verdict.state, Generation: g.n, Reason: string(end.Reason), Code: end.Code, Error: errText(end.Err),
		Attempts: v.history.attempts, Announce: verdict.loud, Tell: verdict.tell,
	}
	if end.Reason == wa.ReasonTempBanned {
		o.Until = time.Now().Add(banned(end))
	}
	if verdict.park {
		v.parked = true
		if verdict.state == fleet.ObservedLoggedOut {
			o.State = v.unpairedState()
			o.Reason = v.logoutReason(ctx, o.Reason)
		}
		v.observe(ctx, o)
		return
	}
	o.RetryAt = time.Now().Add(verdict.delay)
	v.observe(ctx, o)
	v.retry.Reset(verdict.delay)
}

// logoutReason says more of a logout than reason, if it came upon a send.
func (v *supervisor) logoutReason(ctx context.Context, reason string) string {
	sctx, cancel := bounded(ctx)
	defer cancel()
	more, err := v.w.o.Store.LogoutReason(sctx, v.id)
	if err != nil {
		v.log.WarnContext(ctx, "what preceded a logout can't be read", slog.Any("err", err))
	}
	return cmp.Or(more, reason)
}

// ready: the generation logged in.
func (v *supervisor) ready(ctx context.Context) {
	v.stable.Reset(stableAfter)
	v.w.brake.loggedIn()
	// After "replaced" an open means little until it lasts; telling each one would be noise.
	o := store.Observation{
		State: fleet.ObservedConnected, Generation: v.gen.n, Attempts: v.history.attempts,
		Announce: len(v.history.replaced) == 0,
	}
	if o.Attempts > 0 { // why it was away stays to be seen until this open has lasted
		o.Reason, o.Code, o.Error = v.observed.Reason, v.observed.Code, v.observed.Error
	}
	v.observe(ctx, o)
	v.wakeLane()
}

// becomeStable resets the counters after an open that lasted.
func (v *supervisor) becomeStable(ctx context.Context) {
	if v.gen == nil || v.observed.State != fleet.ObservedConnected {
		return
	}
	v.gen.stable = true
	v.history = history{}
	v.completePairing(ctx) // if the end of the offline queue never came
	v.observe(ctx, store.Observation{State: fleet.ObservedConnected, Generation: v.gen.n, Announce: true})
}

// observe remembers a state and writes it; a write that fails is repeated with the next look. A
// state that may pass by itself is told only if it lasts longer than the grace.
func (v *supervisor) observe(ctx context.Context, o store.Observation) {
	passing := o.State == fleet.ObservedConnecting || o.State == fleet.ObservedReconnecting || o.State == fleet.ObservedUnavailable
	switch {
	case !passing:
		v.grace.Stop()
		v.graceOn = false
	case !v.graceOn && !o.Announce:
		v.grace.Reset(dropGrace)
		v.graceOn = true
	}
	if o.Tell == "" {
		o.Tell = v.observed.Tell // not written yet
	}
	v.observed, v.unwritten = o, true
	v.write(ctx)
}

func (v *supervisor) write(ctx context.Context) {
	sctx, cancel := bounded(ctx)
	told, err := v.w.o.Store.RecordObserved(sctx, v.term.Fleet(), v.observed)
	cancel()
	switch {
	case err == nil:
		v.unwritten, v.observed.Tell = false, ""
		v.w.changed(ctx, v.id, told)
	case errors.Is(err, fleet.ErrLeaseLost):
		v.term.Lose(fleet.ErrLeaseLost)
	default:
		v.log.WarnContext(ctx, "session state not written; trying again", slog.Any("err", err))
		v.again(v.wake)
	}
}

// endGeneration closes the present generation, if there is one, and joins it.
func (v *supervisor) endGeneration(cause error) {
	if v.gen == nil {
		return
	}
	g := v.gen
	v.gen = nil
	v.stable.Stop() // it timed this generation, not the next
	g.cancel(cause)
	<-g.ended
	g.wait()
}

// handOver is the graceful stop: what is in flight settles, then the socket closes, and only then is the
// lease given away.
func (v *supervisor) handOver(ctx context.Context) {
	if v.gen != nil {
		v.gen.settle(settleLimit)
		v.endGeneration(errStopping)
	}
	if v.observed.State == fleet.ObservedConnected {
		v.observe(ctx, store.Observation{State: fleet.ObservedReconnecting, Generation: v.generation, Reason: "hand_over"})
	}
	if v.term.Err() == nil {
		v.w.release(ctx, v.term)
	}
}

// standDown ends a session that should not run any more, and gives its lease away. One that is
// deleted is unlinked at WhatsApp too, if it is connected: nobody will need that link again.
func (v *supervisor) standDown(ctx context.Context) {
	if v.gen != nil {
		v.gen.settle(settleLimit)
		if v.session.Desired == fleet.DesiredDeleted && v.observed.State == fleet.ObservedConnected {
			lctx, cancel := context.WithTimeout(ctx, commandLimit)
			if err := v.gen.sock.Logout(lctx); err != nil {
				v.log.WarnContext(ctx, "deleted session not unlinked at WhatsApp; its owner can do it on the phone", slog.Any("err", err))
			}
			cancel()
		}
		v.endGeneration(errStopping)
	}
	sctx, stopped := bounded(ctx)
	err := v.w.o.Store.RecordStopped(sctx, v.term.Fleet())
	stopped()
	if err != nil {
		v.log.WarnContext(ctx, "stop of session not written", slog.Any("err", err))
	}
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime) // releasing ends the term, and its context
	defer cancel()
	v.w.keeper.Release(rctx, v.term)
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
