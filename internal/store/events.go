package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	data, err := json.Marshal(ev.Data)
	if err != nil {
		return ev, fmt.Errorf("append event: %w", err)
	}
	ev.ID = fleet.NewEventID()
	switch {
	case ev.ConversationID != "":
		ev.Stream = string(ev.ConversationID)
	case ev.SessionID != "":
		ev.Stream = string(ev.SessionID)
	case ev.OrgID != "":
		ev.Stream = string(ev.OrgID)
	default:
		ev.Stream = operatorStream
	}
	err = s.InTx(ctx, func(ctx context.Context) error {
		// A statement of its own: the next one must see what was committed before the lock came.
		if err := s.row(ctx, `INSERT INTO streams (id, seq) VALUES ($1, 1)
			ON CONFLICT (id) DO UPDATE SET seq = streams.seq + 1 RETURNING seq`, ev.Stream).Scan(&ev.Seq); err != nil {
			return unavailable(err)
		}
		args := []any{
			ev.ID, ev.OrgID, ev.Kind, ev.SessionID, ev.ConversationID, ev.Stream, ev.Seq, string(data),
			slices.Contains(fleet.EventKinds(fleet.ScopeOrganization), ev.Kind),
		}
		if s.Postgres() {
			return unavailable(s.row(ctx, `WITH ev AS (`+insertEvent+` RETURNING created_at), owed AS (`+insertDeliveries+`)
				SELECT created_at FROM ev`, args...).Scan(at{&ev.CreatedAt}))
		}
		if err := s.row(ctx, insertEvent+` RETURNING created_at`, args[:8]...).Scan(at{&ev.CreatedAt}); err != nil {
			return unavailable(err)
		}
		_, err := s.exec(ctx, insertDeliveries, args...)
		return err
	})
	if err != nil {
		return ev, fmt.Errorf("append event %s: %w", ev.Kind, err)
	}
	return ev, nil
}

const insertEvent = `INSERT INTO events (id, org_id, kind, session_id, conversation_id, stream, seq, data, created_at)
	VALUES (CAST($1 AS TEXT), nullif(CAST($2 AS TEXT), ''), CAST($3 AS TEXT), CAST($4 AS TEXT), CAST($5 AS TEXT), CAST($6 AS TEXT),
		CAST($7 AS BIGINT), CAST($8 AS TEXT), @now@)`

// An event's first deliveries carry its id and the endpoint's; a replay gets an id of its own.
const insertDeliveries = `INSERT INTO deliveries (id, endpoint_id, event_id, org_id, stream, ready, status, due_at, created_at)
	SELECT 'dlv_' || substr(CAST($1 AS TEXT), 5) || substr(e.id, 4), e.id, CAST($1 AS TEXT), CAST($2 AS TEXT), CAST($6 AS TEXT),
		NOT EXISTS (SELECT 1 FROM deliveries p WHERE p.endpoint_id = e.id AND p.stream = CAST($6 AS TEXT) AND p.status = 'pending' AND p.ordered),
		'pending', @now@, @now@
	FROM endpoints e
	WHERE e.deleted_at = 0 AND NOT e.disabled
	AND (e.events = '' OR ',' || e.events || ',' LIKE '%,' || CAST($3 AS TEXT) || ',%')
	AND CASE e.scope WHEN 'operator' THEN e.org_id IS NULL OR e.org_id = CAST($2 AS TEXT)
		ELSE e.org_id = CAST($2 AS TEXT) AND CAST($9 AS BOOLEAN) END`

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
	n, err := s.exec(ctx, `DELETE FROM events WHERE n IN (SELECT e.n FROM events e WHERE e.created_at < $1
		AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.event_id = e.id AND d.status = 'pending') ORDER BY e.created_at LIMIT $2)`,
		ms(before), limit)
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
