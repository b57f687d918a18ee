package outbound

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
	"github.com/wafleet/wafleet/internal/plant"
	"github.com/wafleet/wafleet/internal/router"
	"github.com/wafleet/wafleet/internal/store"
)

const (
	workTime    = 15 * time.Second // one try to accept, however long the client waits
	releaseTime = 5 * time.Second
)

// Options of New.
type Options struct {
	Store      *store.Store
	Router     *router.Router
	Ledger     ledger.Ledger
	Bus        bus.Bus
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil = no metrics
	// Requests bounds how many requests of any kind all organizations together may make in a minute; 0 = no limit.
	Requests int64
}

// Outbound takes messages in. Its methods are safe for use by several goroutines.
type Outbound struct {
	store   *store.Store
	router  *router.Router
	ledger  ledger.Ledger
	bus     bus.Bus
	log     *slog.Logger
	metrics *metrics
	regions regions
	calls   int64 // Options.Requests

	// gap is called between two steps, for tests that let a process die there; nil otherwise.
	gap func(step string) error
}

// New returns an Outbound. It starts nothing.
func New(o Options) *Outbound {
	return &Outbound{store: o.Store, router: o.Router, ledger: o.Ledger, bus: o.Bus, log: o.Log, metrics: newMetrics(o.Registerer), calls: o.Requests}
}

// Accepted is the answer to a request.
type Accepted struct {
	// Message is as it was stored when the request was accepted, also in a replay.
	Message fleet.Message
	// Replayed: this is the stored answer to an earlier request with the same key. It may be set
	// beside an error, which is then the one that was answered.
	Replayed bool
	// Head is what the organization sees as the message's session; "" in a replay, which asks nobody.
	Head fleet.SessionSlug
}

// Accept validates, routes and stores a message. When it returns one, it is committed and will be
// sent. Errors: *fleet.InvalidError for bad input; *fleet.CodedError (those of router.Route,
// IDEMPOTENCY_IN_PROGRESS, IDEMPOTENCY_MISMATCH); fleet.ErrUnavailable if the database is away.
//
// The client hanging up (ctx) ends only the wait for another request with the same key, never work
// that has begun.
func (o *Outbound) Accept(ctx context.Context, r Request) (Accepted, error) {
	var a Accepted
	var err error
	if r.Key == "" {
		a, err = o.accept(ctx, r, nil)
	} else {
		a, err = o.acceptOnce(ctx, r)
	}
	o.metrics.accept(a, err)
	return a, err
}

// accept does the work, under a key if one was claimed. A refusal that stays true is kept under the key: an
// *fleet.InvalidError, or that the recipient opted out.
func (o *Outbound) accept(ctx context.Context, r Request, key *heldKey) (Accepted, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), workTime)
	defer cancel()
	region, err := o.region(ctx, r.Org, r.To)
	if err != nil {
		return Accepted{}, err
	}
	to, err := r.validate(region)
	if err != nil {
		return Accepted{}, err
	}
	m := fleet.Message{
		OrgID: r.Org, ProjectID: r.Project, To: r.To, Kind: KindText, Text: r.Text, ClientRef: r.ClientRef,
		SendAt: r.SendAt, DueAt: r.SendAt, Parked: !r.SendAt.IsZero(),
	}
	if err := o.address(ctx, to, &m); err != nil {
		return Accepted{}, err
	}
	a := &store.Acceptance{
		Message: m,
		TTL:     r.ttl(),
		Local:   r.SendAtLocal,
		Answer: func(m *fleet.Message) ([]byte, error) {
			if err := o.at("inserted"); err != nil || key == nil {
				return nil, err
			}
			return answer{Message: m}.marshal()
		},
	}
	if key != nil {
		a.Key, a.Holder = key.claim.Key, key.claim.Holder
	}
	choice, err := o.reserveAndStore(ctx, a)
	if err != nil {
		return Accepted{}, err
	}
	m = a.Message
	if err := o.at("committed"); err != nil {
		return Accepted{}, err
	}
	o.nudge(ctx, bus.TopicSend, string(m.SessionID))
	o.log.InfoContext(ctx, "message accepted", slog.String("org_id", string(m.OrgID)), slog.String("message_id", string(m.ID)),
		slog.String("session_id", string(m.SessionID)))
	return Accepted{Message: m, Head: choice.Head}, nil
}

// Cancel takes back a message that is still queued. Any other is refused with the *fleet.CodedError
// NOT_CANCELLABLE; another organization's is fleet.ErrNotFound.
func (o *Outbound) Cancel(ctx context.Context, org fleet.OrgID, id fleet.MessageID) (fleet.Message, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), workTime)
	defer cancel()
	m, err := o.store.CancelMessage(ctx, org, id)
	switch {
	case errors.Is(err, fleet.ErrConflict):
		return m, &fleet.CodedError{
			Code: "NOT_CANCELLABLE", Detail: fmt.Sprintf("the message is %s: only a queued one can be taken back", m.Status), Err: fleet.ErrConflict,
		}
	case err != nil:
		return m, err
	}
	o.giveBack(ctx, id)
	o.nudge(ctx, bus.TopicWebhooks, string(org))
	o.nudge(ctx, bus.TopicMessage, string(id))
	o.nudge(ctx, bus.TopicSend, string(m.SessionID)) // a message that waited for this one may go
	return m, nil
}

// Changing makes a change of an organization's configuration that counts on the next send of every process: change
// is called between two marks that make what was read before stale. removed are sessions that nobody is to hear from
// any more. If the ledger can't be told, the change counts within two seconds.
func (o *Outbound) Changing(ctx context.Context, org fleet.OrgID, change func() error, removed ...fleet.SessionSlug) error {
	mark := func() {
		if _, err := o.ledger.Bump(ctx, org); err != nil {
			o.log.WarnContext(ctx, "a change of an organization counts two seconds late", slog.String("org_id", string(org)), slog.Any("err", err))
		}
	}
	mark()
	if err := change(); err != nil {
		return err
	}
	mark()
	for _, slug := range removed {
		if err := o.ledger.Unpin(ctx, org, slug); err != nil {
			o.log.WarnContext(ctx, "pins to a removed session are left until they end", slog.String("session_slug", string(slug)), slog.Any("err", err))
		}
	}
	return nil
}

// nudge says "look now". Everybody also polls, so a lost one costs a second.
func (o *Outbound) nudge(ctx context.Context, topic, payload string) {
	if err := o.bus.Publish(ctx, topic, payload); err != nil {
		o.log.DebugContext(ctx, "nudge lost", slog.String("topic", topic), slog.Any("err", err))
	}
}

func (o *Outbound) at(step string) error {
	plant.CrashAt(step)
	if o.gap == nil {
		return nil
	}
	return o.gap(step)
}
