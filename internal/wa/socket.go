package wa

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.mau.fi/whatsmeow"
	waBinary "go.mau.fi/whatsmeow/binary"
	"go.mau.fi/whatsmeow/store"
	waLog "go.mau.fi/whatsmeow/util/log"

	"github.com/wafleet/wafleet/internal/fleet"
)

// Options make one generation. Device, Network and Term are required; the other zero values mean "no".
type Options struct {
	// Device is fenced and fresh: its caches are only valid under this term. A nil Device.ID asks for pairing, and then
	// Pair is required; a device with an ID never pairs.
	Device  *store.Device
	Network *Network

	Term       fleet.Term
	Generation int64
	Log        *slog.Logger // nil = discard
	Metrics    *Metrics     // nil = not registered

	// Valid is the last gate: non-nil once the term has ended. It is called for every dial and every write, so it must
	// be cheap and must not wait.
	Valid func() error
	// Bind marks the generation's context, so that the fenced store can cancel it before it returns an error.
	Bind func(ctx context.Context, cancel context.CancelCauseFunc) context.Context
	// BeginSend marks the context of one send; claim is the Outgoing's.
	BeginSend func(ctx context.Context, jid string, claim func(ctx context.Context, keys any) error) (context.Context, SendWatch)

	Pair    *PairRequest
	Handler Handler

	maxInflight int // for tests; 0 = maxInflight
}

// SendWatch is what the fenced store saw of one send.
type SendWatch interface {
	Saved() bool // the sessions were stored with the recipient's phone among them
	Err() error  // the store error that cancelled this send, nil if there was none
	End()        // called once, when whatsmeow has returned
}

// PairRequest asks for pairing.
type PairRequest struct {
	Method string    // fleet.PairQR or fleet.PairCode
	Phone  string    // E.164 digits, for fleet.PairCode
	Until  time.Time // when the attempt ends, whatever was shown
}

// Paired is a companion device that is stored and may log in.
type Paired struct {
	DeviceJID string // "5511900000001:3@s.whatsapp.net"
	Phone     string // E.164 digits
	LID       string // digits
	Platform  string // of the phone: "android", "iphone"
	PushName  string // business name, "" if none; a person's name comes later by Handler.PushName
}

// Handler is told what happens. Every function may be nil. They get the generation's context and must be short; an
// error or a panic ends the generation with ReasonHandler before WhatsApp hears of it.
type Handler struct {
	QR   func(ctx context.Context, text string, expires time.Time)
	Code func(ctx context.Context, code string, expires time.Time)
	// AcceptPair may refuse the number that scanned: in use elsewhere, or not this session's.
	AcceptPair func(ctx context.Context, phone string) error
	// Paired must store the device's names; the login itself comes in the next generation.
	Paired func(ctx context.Context, p Paired) error
	// Ready: logged in, and WhatsApp sends what is new.
	Ready func(ctx context.Context)
	// OfflineDone: what WhatsApp had queued has been delivered.
	OfflineDone func(ctx context.Context, count int)
	// Message must have committed when it returns nil: WhatsApp forgets the message then.
	Message func(ctx context.Context, m fleet.Inbound) error
	// Receipt: the same.
	Receipt func(ctx context.Context, r fleet.Receipt) error
	// Payload gives the marshalled message of an earlier send, to answer a retry receipt; fleet.ErrNotFound if it is gone.
	Payload func(ctx context.Context, waID string) ([]byte, error)
	// AllowRetry counts a frame that answers a retry receipt and says whether it may leave. A refusal is final: the
	// receipt is acknowledged. If the count could not be made, end the generation's context first; then it comes again.
	AllowRetry func(ctx context.Context, waID string) bool
	// Resync says whether a collection of app state that can't be verified may be fetched anew as a whole; nil = never.
	Resync func(ctx context.Context, collection string) bool
	// Limit is told when WhatsApp says that the number may not write to strangers or open new chats, or may again. It may
	// not come for a limit that began while nobody was connected: refused sends tell of that.
	Limit func(ctx context.Context, limit fleet.NumberLimit)
	// PushName is told the account's own name when it is learned or changed.
	PushName func(ctx context.Context, name string)
}

// Times of a generation.
const (
	connectTimeout = 30 * time.Second       // dial, TLS, upgrade and Noise handshake
	loginTimeout   = 60 * time.Second       // connected, but not logged in
	silentAfter    = 65 * time.Second       // two keepalives of at most 30 s, and a little
	settle         = 300 * time.Millisecond // for a reason that is still in the queue when the connection ends
	tidyTime       = time.Second            // for whatsmeow to delete the device, or to say no to a pairing
	pairedTimeout  = 10 * time.Second       // for the 515 after a pairing, which can get lost
	offlineTimeout = 60 * time.Second       // for the end of the offline queue
	joinTimeout    = 5 * time.Second        // for goroutines when a generation has ended
	sendGrace      = 2 * time.Second        // for a send to notice that its context ended
)

// Socket is one generation.
type Socket struct {
	opts Options
	log  *slog.Logger
	m    *Metrics

	gate  *gate
	base  time.Time // AliveAt counts from here on the monotonic clock
	alive atomic.Int64

	ready   atomic.Bool
	offline atomic.Bool // WhatsApp is still delivering what it had queued
	leaving atomic.Bool // Logout is under way

	ran   atomic.Bool
	life  atomic.Pointer[life]
	calls tracker       // handlers and sends under way
	slot  chan struct{} // holds one token: the send lock
	inbox chan note     // to Run's loop

	lastName atomic.Pointer[string]
	inflight inflight
}

// life is what exists while Run runs. The context is kept because it is the lifetime itself: whatsmeow's callbacks come
// without one.
type life struct {
	ctx    context.Context //nolint:containedctx // said above
	cancel context.CancelCauseFunc
	client *whatsmeow.Client
}

// NewSocket prepares a generation; nothing happens before Run.
func NewSocket(o Options) *Socket {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	s := &Socket{
		opts: o, m: o.Metrics, base: time.Now(),
		slot: make(chan struct{}, 1), inbox: make(chan note),
		log: o.Log.With(slog.String("session_id", string(o.Term.SessionID)),
			slog.Int64("epoch", o.Term.Epoch), slog.Int64("generation", o.Generation)),
	}
	s.inflight.limit = cmp.Or(o.maxInflight, maxInflight)
	s.offline.Store(true)
	s.gate = newGate(o.Valid, func(err error) { s.finish(End{Reason: ReasonTermEnded, Err: err}) }, s.seen)
	return s
}

// Ready reports whether the socket is logged in and alive. It reads an atomic and never waits.
func (s *Socket) Ready() bool { return s.ready.Load() }

// AliveAt is when something was last heard from WhatsApp; before that, when the socket was made.
func (s *Socket) AliveAt() time.Time { return s.base.Add(time.Duration(s.alive.Load())) }

func (s *Socket) seen() { s.alive.Store(int64(time.Since(s.base))) }

// finish ends the generation: the first reason counts. From its return on, nothing can be written.
func (s *Socket) finish(e End) {
	s.ready.Store(false)
	if l := s.life.Load(); l != nil {
		l.cancel(&endError{e})
	}
	s.gate.close()
}

// Run connects, lives until something ends the generation or ctx does, and says why. It may be called once.
func (s *Socket) Run(ctx context.Context) End {
	if !s.ran.CompareAndSwap(false, true) {
		return End{Reason: ReasonStopped, Err: errors.New("socket: Run was called twice")}
	}
	end := s.run(ctx)
	s.m.ends.WithLabelValues(string(end.Reason)).Inc()
	attrs := []slog.Attr{slog.String("reason", string(end.Reason)), slog.Int("code", end.Code)}
	if end.Err != nil {
		attrs = append(attrs, slog.String("err", mask(end.Err.Error())))
	}
	s.log.LogAttrs(context.WithoutCancel(ctx), slog.LevelInfo, "generation ended", attrs...)
	return end
}

func (s *Socket) run(parent context.Context) End {
	o := &s.opts
	switch {
	case o.Device.ID == nil && o.Pair == nil:
		return End{Reason: ReasonPairFailed, Err: errors.New("no login, and no pairing was asked for")}
	case o.Device.ID != nil && o.Pair != nil:
		return End{Reason: ReasonPairFailed, Err: errors.New("the device has a login already")}
	}
	if err := s.gate.check(); err != nil {
		return End{Reason: ReasonTermEnded, Err: err}
	}
	release, err := o.Network.acquire()
	if err != nil {
		return End{Reason: ReasonDialFailed, Err: err}
	}
	defer release()

	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	if o.Bind != nil {
		ctx = o.Bind(ctx, cancel)
	}
	// Whoever cancels the generation, nothing is written from then on.
	defer context.AfterFunc(ctx, s.gate.close)()

	main := o.Network.transport(s.gate.dialer(o.Network.dial, true))
	media := o.Network.transport(s.gate.dialer(o.Network.dial, false))
	defer main.CloseIdleConnections()
	defer media.CloseIdleConnections()
	sink := &waSink{
		log: s.log, ctx: ctx, serverError: func(code int) { s.post(note{serverError: code}) },
		took: func(n *waBinary.Node) { s.capping(n); s.inflight.took(ctx, n) }, answered: s.inflight.answered,
	}
	defer func() { <-sink.lines.close() }()
	l := &life{ctx: ctx, cancel: cancel, client: s.newClient(ctx, &waLogger{waSink: sink}, main, media)}
	l.client.AddEventHandlerWithSuccessStatus(func(evt any) bool { return s.handle(l, evt) }) //nolint:contextcheck // the life carries it
	s.life.Store(l)

	var own sync.WaitGroup
	connected := make(chan error, 1)
	s.seen()
	own.Go(func() { connected <- l.client.ConnectContext(ctx) })

	pending := s.loop(l, &own, connected) //nolint:contextcheck // l carries it
	end := verdict(parent, ctx, pending)
	cancel(nil)
	s.gate.close()
	s.join(l, &own) //nolint:contextcheck // l carries it
	return end
}

func (s *Socket) newClient(ctx context.Context, log waLog.Logger, main, media http.RoundTripper) *whatsmeow.Client {
	c := whatsmeow.NewClient(s.opts.Device, log)
	c.EnableAutoReconnect = false
	c.DisableLoginAutoReconnect = true
	c.SynchronousAck = true
	c.EnableDecryptedEventBuffer = true
	c.AutoTrustIdentity = true
	c.UseRetryMessageStore = false // it would keep what was sent in clear
	c.BackgroundEventCtx = ctx
	c.GetMessageForRetry = s.payloadForRetry
	c.PreRetryCallback = s.allowRetry
	c.SetMaxParallelRetryReceiptHandling(1) // two answers at once would use the same keys of a Signal session
	c.PrePairCallback = s.acceptPair
	// Never used with WhatsApp, but whatsmeow calls it unchecked when the server names such a code.
	c.RefreshCAT = func(context.Context) error { return errors.New("no token to refresh") }
	web, blob := &http.Client{Transport: main}, &http.Client{Transport: media}
	c.SetPreLoginHTTPClient(web)
	c.SetWebsocketHTTPClient(web)
	c.SetMediaHTTPClient(blob)
	if s.opts.Network.Simulated() { // never said to the real WhatsApp
		t := s.opts.Term
		c.WebSocketHeaders.Set("X-Wafleet-Worker", t.Owner)
		c.WebSocketHeaders.Set("X-Wafleet-Session", string(t.SessionID))
		c.WebSocketHeaders.Set("X-Wafleet-Epoch", strconv.FormatInt(t.Epoch, 10))
		c.WebSocketHeaders.Set("X-Wafleet-Generation", strconv.FormatInt(s.opts.Generation, 10))
	}
	return c
}

// join waits for handlers, sends and our own goroutines. All of them end because their context did; what whatsmeow
// itself still has running can't write any more.
func (s *Socket) join(l *life, own *sync.WaitGroup) {
	s.ready.Store(false)
	idle := s.calls.close()
	// Wakes whoever waits for a connection to come back. Not Disconnect: the gate has closed the connection already, and
	// whatsmeow's read loop, which tidies up after it, races with Disconnect (it may call a function that was just set
	// to nil, which ends the process).
	l.client.DangerousInternals().ExpectDisconnect() //nolint:staticcheck // it only sets a flag
	down := make(chan struct{})
	go func() {
		defer close(down)
		own.Wait()
	}()
	timeout := time.NewTimer(joinTimeout)
	defer timeout.Stop()
	for idle != nil || down != nil {
		select {
		case <-idle:
			idle = nil
		case <-down:
			down = nil
		case <-timeout.C:
			s.m.stragglers.Inc()
			s.log.LogAttrs(context.WithoutCancel(l.ctx), slog.LevelWarn, "goroutines of an ended generation are still running",
				slog.Bool("calls", idle != nil), slog.Bool("connection", down != nil))
			return
		}
	}
}

// tracker counts calls that must be over before Run returns.
type tracker struct {
	mu     sync.Mutex
	n      int
	closed bool
	idle   chan struct{}
}

// enter reports whether a call may begin; then leave must follow.
func (t *tracker) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.n++
	return true
}

func (t *tracker) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 && t.closed {
		close(t.idle)
	}
}

// close lets no further call begin; the channel is closed when the last one has left.
func (t *tracker) close() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.idle = make(chan struct{})
	if t.n == 0 {
		close(t.idle)
	}
	return t.idle
}
