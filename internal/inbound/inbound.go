package inbound

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// Reasons why a message is unprocessable.
const (
	ReasonHandlerFailed = "handler_failed" // our own code failed on it repeatedly
	ReasonUnreadable    = "unreadable"     // its content makes no sense to this version
)

// Options of New. All but Registerer are needed.
type Options struct {
	Store      *store.Store
	Bus        bus.Bus
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics are exposed
	// Merged is told, after the commit, that what went by one match key goes by another now; nil: nobody
	// needs to know.
	Merged func(ctx context.Context, org fleet.OrgID, from, into string)
	// Wrote is told, after the commit, that a person, by match key, wrote to a session; nil: nobody needs to know.
	Wrote func(org fleet.OrgID, contactKey string, session fleet.SessionID)
}

// Handler stores what sessions receive. It is safe for use by all sessions of a process.
type Handler struct {
	store   *store.Store
	bus     bus.Bus
	log     *slog.Logger
	metrics *metrics
	merged  func(ctx context.Context, org fleet.OrgID, from, into string)
	wrote   func(org fleet.OrgID, contactKey string, session fleet.SessionID)
	soon    func(topic, payload string)
}

// New returns a Handler.
func New(o Options) *Handler {
	return &Handler{store: o.Store, bus: o.Bus, log: o.Log, metrics: newMetrics(o.Registerer), merged: o.Merged, wrote: o.Wrote}
}

// NudgeThrough has the handler's nudges told by soon, which must not wait, so that no stanza waits for the bus: those of a
// session are handled one after the other. It is called at most once, before anything is handled.
func (h *Handler) NudgeThrough(soon func(topic, payload string)) { h.soon = soon }

// Handle stores one message that somebody sent to the term's session, and its event for the
// organization's endpoints. A message that is there already changes nothing and is no error. When it
// returns nil everything is committed and the stanza may be acknowledged; fleet.ErrLeaseLost means
// that the session has another owner, who will get the message. One that comes as fleet.KindUnprocessable is
// told with message.unprocessable.
func (h *Handler) Handle(ctx context.Context, term fleet.Term, org fleet.OrgID, m fleet.Inbound) error {
	if m.Kind == fleet.KindUnprocessable {
		return h.keep(ctx, term, org, m, fleet.EventMessageUnprocessable, fleet.EventData{Reason: ReasonUnreadable})
	}
	return h.keep(ctx, term, org, m, fleet.EventMessage, fleet.EventData{})
}

// HandleUnprocessable stores a message that Handle can't, raw, so that its stanza may be acknowledged
// without losing it, and tells of it with message.unprocessable. cause is for the log only: it may
// hold what the message says.
func (h *Handler) HandleUnprocessable(ctx context.Context, term fleet.Term, org fleet.OrgID, m fleet.Inbound, cause error) error {
	m.Kind = fleet.KindUnprocessable
	if m.Raw == nil && m.Text != "" {
		m.Raw = []byte(m.Text)
	}
	m.Text, m.Content = "", nil
	h.log.ErrorContext(ctx, "inbound message kept raw",
		slog.String("org_id", string(org)), slog.String("session_id", string(term.SessionID)), slog.Any("err", cause))
	return h.keep(ctx, term, org, m, fleet.EventMessageUnprocessable, fleet.EventData{Reason: ReasonHandlerFailed})
}

func (h *Handler) keep(ctx context.Context, term fleet.Term, org fleet.OrgID, m fleet.Inbound, kind fleet.EventKind, data fleet.EventData) error {
	start := time.Now()
	m.OrgID, m.SessionID = org, term.SessionID
	fresh, confirmed := false, false
	var met store.Met
	err := h.store.Fenced(ctx, term, func(ctx context.Context) (err error) {
		if p := m.Person(); p != (fleet.Person{}) {
			if met, err = h.store.Meet(ctx, org, store.Sighting{Person: p, Present: true}); err != nil {
				return err
			}
			m.ContactID, m.ConversationID = met.ID, met.ConversationID
		}
		if fresh, m, err = h.store.InsertInbound(ctx, m); err != nil || !fresh {
			return err
		}
		if met.Key != "" {
			if _, err = h.store.WriteIn(ctx, m.SessionID, met.Key, m.SentAt); err != nil {
				return err
			}
		}
		if data.Consent, confirmed, err = h.consent(ctx, m, met.Known); err != nil {
			return err
		}
		data.InboundID = m.ID
		if !m.SentAt.IsZero() {
			data.At = m.SentAt.UnixMilli()
		}
		_, err = h.store.AppendEvent(ctx, fleet.Event{
			OrgID: org, Kind: kind, SessionID: m.SessionID, ConversationID: m.ConversationID, Data: data,
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("store inbound of session %s: %w", term.SessionID, err)
	}
	h.metrics.messages.WithLabelValues(result(kind, fresh)).Inc()
	h.metrics.seconds.Observe(time.Since(start).Seconds())
	if fresh {
		h.nudge(ctx, bus.TopicWebhooks, string(org))
	}
	if fresh && met.Key != "" && h.wrote != nil {
		h.wrote(org, met.Key, m.SessionID)
	}
	if confirmed {
		h.nudge(ctx, bus.TopicDispatch, "")
	}
	if data.Consent != fleet.ConsentNone {
		h.log.InfoContext(ctx, "opt-out keyword", slog.String("org_id", string(org)), slog.String("consent", string(data.Consent)),
			slog.String("contact_id", string(m.ContactID)))
	}
	if h.merged != nil {
		for _, from := range met.Merged {
			h.merged(context.WithoutCancel(ctx), org, from, met.Key)
		}
	}
	return nil
}

// HandleReceipt raises the messages that a receipt is about, with their events. Receipts that tell
// nothing new, and those for messages that are not ours, are no errors. When it returns nil everything
// is committed.
func (h *Handler) HandleReceipt(ctx context.Context, term fleet.Term, r fleet.Receipt) error {
	changed, err := h.store.ApplyReceipt(ctx, term, r)
	if err != nil {
		return fmt.Errorf("store receipt of session %s: %w", term.SessionID, err)
	}
	h.metrics.receipts.WithLabelValues(string(r.Status)).Inc()
	if len(changed) == 0 {
		return nil
	}
	h.nudge(ctx, bus.TopicWebhooks, "")
	for _, id := range changed {
		h.nudge(ctx, bus.TopicMessage, string(id))
	}
	return nil
}

// nudge tells whoever listens to look now. The rows are committed, so a failure only costs them the
// time to their next poll.
func (h *Handler) nudge(ctx context.Context, topic, payload string) {
	if h.soon != nil {
		h.soon(topic, payload)
		return
	}
	if err := h.bus.Publish(context.WithoutCancel(ctx), topic, payload); err != nil {
		h.log.DebugContext(ctx, "nudge not published; listeners poll meanwhile", slog.String("topic", topic), slog.Any("err", err))
	}
}
