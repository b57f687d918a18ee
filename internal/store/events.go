package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

// operatorStream orders events that concern no organization. No slug looks like it.
const operatorStream = "*operator"

// AppendEvent writes an event and one pending delivery for every live endpoint that asked for it.
// Call it inside the transaction of what happened: both commit or neither does. It fills ID, Stream
// (conversation, else session, else organization), Seq (one more than the stream's last) and
// CreatedAt. Endpoints of organization scope hear their own organization's events of their scope's
// kinds; operator endpoints hear their organization's, or everyone's when they belong to none.
//
// The stream's row stays locked until the transaction ends, so events of one stream commit in the
// order of their seq. A transaction that appends to several streams appends in stream id order.
func (s *Store) AppendEvent(ctx context.Context, ev fleet.Event) (fleet.Event, error) {
	events := []fleet.Event{ev}
	err := s.appendEvents(ctx, events)
	return events[0], err
}

// appendEvents is AppendEvent for many at once: two statements however many there are. Those of one
// stream get their seq in the order given.
func (s *Store) appendEvents(ctx context.Context, events []fleet.Event) error {
	if len(events) == 0 {
		return nil
	}
	err := s.InTx(ctx, func(ctx context.Context) error {
		if _, err := s.exec(ctx, bumpStreams("$1"), streamList(events)); err != nil {
			return err
		}
		return s.runAll(ctx, s.insertEvents(events))
	})
	if err != nil {
		return fmt.Errorf("append event %s: %w", events[0].Kind, err)
	}
	return nil
}

// bumpStreams counts the streams on and locks them in id order. It is a statement before the one that
// inserts deliveries, which must see what was committed before the locks came.
func bumpStreams(arg string) string {
	return `INSERT INTO streams (id, seq) SELECT t.stream, t.n FROM @rows:` + arg + `(stream text, n bigint)@ AS t WHERE TRUE ORDER BY t.stream
		ON CONFLICT (id) DO UPDATE SET seq = streams.seq + excluded.seq`
}

type streamArg struct {
	Stream string `json:"stream"`
	N      int    `json:"n"`
}

// streamList names the events' streams and counts them, and gives each event its id.
func streamList(events []fleet.Event) list {
	n := map[string]int{}
	for i := range events {
		ev := &events[i]
		ev.ID = fleet.NewEventID()
		ev.Stream = cmp.Or(string(ev.ConversationID), string(ev.SessionID), string(ev.OrgID), operatorStream)
		n[ev.Stream]++
	}
	args := make([]streamArg, 0, len(n))
	for _, stream := range slices.Sorted(maps.Keys(n)) {
		args = append(args, streamArg{stream, n[stream]})
	}
	return rowList(args)
}

type eventArg struct {
	ID           fleet.EventID        `json:"event"`
	Org          fleet.OrgID          `json:"org"`
	Kind         fleet.EventKind      `json:"what"`
	Session      fleet.SessionID      `json:"session"`
	Conversation fleet.ConversationID `json:"conversation"`
	Stream       string               `json:"line"`
	Back         int                  `json:"back"` // how many events of the stream come after it
	Data         string               `json:"body"`
	Consumers    bool                 `json:"consumers"` // organizations hear of it
}

// insertEvents are the statements that write events, whose streams have been counted on, and their deliveries.
// They fill Seq and CreatedAt.
func (s *Store) insertEvents(events []fleet.Event) []Statement {
	args := make([]eventArg, len(events))
	byID := make(map[fleet.EventID]*fleet.Event, len(events))
	after := map[string]int{}
	for i := len(events) - 1; i >= 0; i-- {
		ev := &events[i]
		byID[ev.ID] = ev
		data, err := json.Marshal(ev.Data)
		if err != nil {
			panic(err) // strings, numbers and times, which always marshal
		}
		args[i] = eventArg{
			ev.ID, ev.OrgID, ev.Kind, ev.SessionID, ev.ConversationID, ev.Stream, after[ev.Stream], string(data),
			slices.Contains(fleet.EventKinds(fleet.ScopeOrganization), ev.Kind),
		}
		after[ev.Stream]++
	}
	fill := func(row dbutil.Scannable) error {
		var id fleet.EventID
		var seq int64
		var created time.Time
		if err := row.Scan(&id, &seq, at{&created}); err != nil {
			return err
		}
		byID[id].Seq, byID[id].CreatedAt = seq, created
		return nil
	}
	rows := []any{rowList(args)}
	if s.Postgres() {
		return []Statement{{Text: `WITH ev AS (` + insertEvents + `), owed AS (` + insertDeliveries + `) SELECT id, seq, created_at FROM ev`, Args: rows, Row: fill}}
	}
	return []Statement{{Text: insertEvents, Args: rows, Row: fill}, {Text: insertDeliveries, Args: rows}}
}

const eventRows = `@rows:$1(event text, org text, what text, session text, conversation text, line text, back bigint, body text, consumers boolean)@`

const insertEvents = `INSERT INTO events (id, org_id, kind, session_id, conversation_id, stream, seq, data, created_at)
	SELECT v.event, nullif(v.org, ''), v.what, v.session, v.conversation, v.line, (SELECT s.seq FROM streams s WHERE s.id = v.line) - v.back, v.body, @now@
	FROM ` + eventRows + ` AS v ORDER BY v.line, v.back DESC RETURNING id, seq, created_at`

// An event's first deliveries carry its id and the endpoint's; a replay gets an id of its own.
const insertDeliveries = `INSERT INTO deliveries (id, endpoint_id, event_id, org_id, stream, ready, status, due_at, created_at)
	SELECT 'dlv_' || substr(v.event, 5) || substr(e.id, 4), e.id, v.event, v.org, v.line,
		row_number() OVER (PARTITION BY e.id, v.line ORDER BY v.back DESC) = 1
		AND NOT EXISTS (SELECT 1 FROM deliveries p WHERE p.endpoint_id = e.id AND p.stream = v.line AND p.status = 'pending' AND p.ordered),
		'pending', @now@, @now@
	FROM ` + eventRows + ` AS v JOIN endpoints e ON e.deleted_at = 0 AND NOT e.disabled
		AND (e.events = '' OR ',' || e.events || ',' LIKE '%,' || v.what || ',%')
		AND CASE e.scope WHEN 'operator' THEN e.org_id IS NULL OR e.org_id = v.org ELSE e.org_id = v.org AND v.consumers END
	ORDER BY v.line, v.back DESC, e.id`

const eventSelect = `SELECT id, coalesce(org_id, ''), kind, session_id, conversation_id, stream, seq, data, created_at FROM events `

func scanEvent(row dbutil.Scannable) (fleet.Event, error) {
	var ev fleet.Event
	var data string
	if err := row.Scan(&ev.ID, &ev.OrgID, &ev.Kind, &ev.SessionID, &ev.ConversationID, &ev.Stream, &ev.Seq, &data, at{&ev.CreatedAt}); err != nil {
		return ev, err
	}
	if err := json.Unmarshal([]byte(data), &ev.Data); err != nil {
		return ev, fmt.Errorf("data of event %s: %w", ev.ID, err)
	}
	return ev, nil
}

// GetEvent returns one event. For an organization only its own and only kinds of organization
// scope exist; org "" is the operator, who sees all.
func (s *Store) GetEvent(ctx context.Context, org fleet.OrgID, id fleet.EventID) (fleet.Event, error) {
	ev, err := scanEvent(s.row(ctx, eventSelect+`WHERE id = $1`, id))
	if err != nil {
		return fleet.Event{}, fmt.Errorf("event %q: %w", id, notFound(err))
	}
	if org != "" && (ev.OrgID != org || !slices.Contains(fleet.EventKinds(fleet.ScopeOrganization), ev.Kind)) {
		return fleet.Event{}, fmt.Errorf("event %q: %w", id, fleet.ErrNotFound)
	}
	return ev, nil
}

// PurgeEvents deletes up to limit events made before a time, but none that is still owed to an
// endpoint. It returns how many are gone; fewer than limit means that none is left.
func (s *Store) PurgeEvents(ctx context.Context, before time.Time, limit int) (int, error) {
	bound, err := s.before(ctx, eventsByAge, before)
	if err != nil {
		return 0, fmt.Errorf("purge events: %w", err)
	}
	n, err := s.exec(ctx, `DELETE FROM events WHERE n IN (SELECT ev.n FROM events ev WHERE ev.n < $1
		AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.event_id = ev.id AND d.status = 'pending') ORDER BY ev.n LIMIT $2)`,
		bound, limit)
	if err != nil {
		return 0, fmt.Errorf("purge events: %w", err)
	}
	return int(n), nil
}

// EventSubject is what an event refers to, opened for rendering. Parts that the event doesn't name,
// or whose rows are gone, are nil.
type EventSubject struct {
	Session  *EventSession
	HeadSlug fleet.SessionSlug // the organization's canonical session; "" before the first attach
	Message  *EventMessage
	Inbound  *fleet.Inbound
	Contact  *fleet.Contact
	AboutID  string // the message that Inbound is about, as the API names it; "" if it is none or not known
}

// EventSession is the session that an event happened on.
type EventSession struct {
	ID   fleet.SessionID
	Slug fleet.SessionSlug
}

// EventMessage is what a status event tells of the message beside its status.
type EventMessage struct {
	To        string
	Kind      string
	ClientRef string
	WAID      string
}

// EventSubject reads what ev refers to.
func (s *Store) EventSubject(ctx context.Context, ev fleet.Event) (EventSubject, error) {
	var out EventSubject
	wrap := func(err error) (EventSubject, error) {
		return EventSubject{}, fmt.Errorf("subject of event %s: %w", ev.ID, err)
	}
	err := s.row(ctx, `SELECT h.slug FROM organizations o JOIN sessions h ON h.id = o.head_session_id WHERE o.id = $1`, ev.OrgID).Scan(&out.HeadSlug)
	if err = notFound(err); err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return wrap(err)
	}
	if ev.SessionID != "" {
		v := EventSession{ID: ev.SessionID}
		err := notFound(s.row(ctx, `SELECT slug FROM sessions WHERE id = $1`, ev.SessionID).Scan(&v.Slug))
		if err == nil {
			out.Session = &v
		} else if !errors.Is(err, fleet.ErrNotFound) {
			return wrap(err)
		}
	}
	if ev.Data.MessageID != "" {
		var v EventMessage
		err := notFound(s.row(ctx, `SELECT to_input, kind, client_ref, wa_id FROM messages WHERE id = $1 AND org_id = $2`, ev.Data.MessageID, ev.OrgID).
			Scan(&v.To, &v.Kind, &v.ClientRef, &v.WAID))
		if err == nil {
			out.Message = &v
		} else if !errors.Is(err, fleet.ErrNotFound) {
			return wrap(err)
		}
	}
	if ev.Data.Contact != "" {
		k, err := s.GetContact(ctx, ev.OrgID, ev.Data.Contact)
		if err == nil {
			out.Contact = &k.Contact
		} else if !errors.Is(err, fleet.ErrNotFound) {
			return wrap(err)
		}
	}
	if ev.Data.InboundID != "" {
		v, err := s.GetInbound(ctx, ev.OrgID, ev.Data.InboundID)
		if err == nil {
			out.Inbound = &v
			if out.AboutID, err = s.AboutID(ctx, v); err != nil {
				return wrap(err)
			}
		} else if !errors.Is(err, fleet.ErrNotFound) {
			return wrap(err)
		}
	}
	return out, nil
}
