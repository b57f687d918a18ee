package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// MaxBody bounds a rendered body. A text of fleet.MaxTextLength code points takes up to 384 KiB in
// JSON (a control character is six bytes there); names, references and the envelope fit in the rest.
const MaxBody = 512 << 10

// maxDetail bounds explanations, in code points.
const maxDetail = 1000

// errGone: what the event refers to is no longer stored, so it can't be told any more.
var errGone = errors.New("what this event tells of is no longer stored")

// Envelope is the body of every delivery. Fields are only ever added.
type Envelope struct {
	ID             fleet.EventID   `json:"id"`
	Event          fleet.EventKind `json:"event"`
	OrgID          *string         `json:"orgId"`          // null where no organization is concerned
	SessionID      *string         `json:"sessionId"`      // organization scope: the organization's head session
	ConversationID *string         `json:"conversationId"` // survives a change of sessions
	Seq            int64           `json:"seq"`            // gapless per conversation, else per session or organization
	Timestamp      string          `json:"timestamp"`      // when it was stored, RFC 3339 in UTC
	Payload        any             `json:"payload"`
}

// person is somebody that WhatsApp knows; both addresses may be unknown.
type person struct {
	ContactID *fleet.ContactID `json:"contactId,omitempty"` // stays the same, or leads to the one it was merged into
	Phone     *string          `json:"phone"`               // E.164 with "+"
	LID       *string          `json:"lid"`
	Name      string           `json:"name,omitempty"` // as they call themselves
}

// truth is what only operators are told: the ids that WhatsApp and the fleet know.
type truth struct {
	SessionUUID fleet.SessionID `json:"sessionUuid,omitempty"`
	WAID        string          `json:"waId,omitempty"`
	AboutWAID   string          `json:"aboutWaId,omitempty"`
	Chat        string          `json:"chat,omitempty"`
}

type messagePayload struct {
	MessageID  fleet.InboundID `json:"messageId"`
	From       person          `json:"from"`
	Type       string          `json:"type"`
	Text       string          `json:"text"`
	TextCut    bool            `json:"textCut,omitempty"` // the text was longer than a message may be
	About      string          `json:"about,omitempty"`   // messageId of what it edits, revokes, reacts to, answers or quotes
	Content    *fleet.Content  `json:"content,omitempty"` // what its type has beside the text
	Version    int             `json:"version,omitempty"`
	Consent    fleet.Consent   `json:"consent,omitempty"` // "stop" or "start": it is a keyword, and counts from now on
	Offline    bool            `json:"offline"`           // WhatsApp held it while the session was away
	SentAt     *string         `json:"sentAt"`
	ReceivedAt *string         `json:"receivedAt"`
	*truth
}

type unprocessablePayload struct {
	MessageID  fleet.InboundID `json:"messageId"`
	From       person          `json:"from"`
	Reason     string          `json:"reason"`
	Offline    bool            `json:"offline"`
	SentAt     *string         `json:"sentAt"`
	ReceivedAt *string         `json:"receivedAt"`
	*truth
}

type statusPayload struct {
	MessageID fleet.MessageID `json:"messageId"`
	Status    fleet.Status    `json:"status"`
	Outcome   fleet.Outcome   `json:"outcome,omitempty"`
	Error     *coded          `json:"error,omitempty"`
	To        string          `json:"to,omitempty"` // as the caller wrote it
	Type      string          `json:"type,omitempty"`
	ClientRef string          `json:"clientRef,omitempty"`
	At        *string         `json:"at"` // when it came to this status
	*truth
}

// contactPayload says what a contact is now, and what was merged into it.
type contactPayload struct {
	person
	MergedContactIDs      []fleet.ContactID      `json:"mergedContactIds"`
	MergedConversationIDs []fleet.ConversationID `json:"mergedConversationIds"` // nothing happens in them any more
	*truth
}

type coded struct {
	Code   string `json:"code"`
	Detail string `json:"detail,omitempty"`
}

type sessionPayload struct {
	State    fleet.Observed `json:"state,omitempty"`
	Reason   string         `json:"reason,omitempty"`
	WACode   int            `json:"waCode,omitempty"` // WhatsApp's code, if it gave one
	Detail   string         `json:"detail,omitempty"`
	Attempts int            `json:"attempts,omitempty"` // failed connects in a row
	Until    *string        `json:"until,omitempty"`    // end of a temporary ban
	*truth
}

type alertPayload struct {
	Alert    string `json:"alert"`
	Sessions int    `json:"sessions"` // how many suffer
	Of       int    `json:"of"`       // out of so many
	Detail   string `json:"detail"`
	*truth
}

type endpointPayload struct {
	EndpointID string `json:"endpointId"`
	Reason     string `json:"reason"`
	*truth
}

// render writes the body of an event for an endpoint of a scope. It is pure: the same row gives the
// same bytes at every try.
func render(ev fleet.Event, scope fleet.Scope, sub store.EventSubject) ([]byte, error) {
	env := Envelope{
		ID: ev.ID, Event: ev.Kind, OrgID: optional(string(ev.OrgID)), Seq: ev.Seq,
		ConversationID: optional(string(ev.ConversationID)), Timestamp: ev.CreatedAt.UTC().Format(stamp),
	}
	var inner *truth
	if scope == fleet.ScopeOperator {
		inner = &truth{SessionUUID: ev.SessionID}
		if sub.Session != nil {
			env.SessionID = optional(string(sub.Session.Slug))
		}
	} else if ev.SessionID != "" {
		env.SessionID = optional(string(sub.HeadSlug))
	}
	payload, err := payloadOf(ev, sub, inner)
	if err != nil {
		return nil, err
	}
	env.Payload = payload
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(env); err != nil {
		return nil, fmt.Errorf("render event %s: %w", ev.ID, err)
	}
	body := bytes.TrimSuffix(out.Bytes(), []byte("\n"))
	if len(body) > MaxBody {
		return nil, fmt.Errorf("render event %s: %d bytes are more than %d", ev.ID, len(body), MaxBody)
	}
	return body, nil
}

func payloadOf(ev fleet.Event, sub store.EventSubject, inner *truth) (any, error) {
	switch ev.Kind {
	case fleet.EventMessage:
		m := sub.Inbound
		if m == nil {
			return nil, errGone
		}
		text := clip(m.Text, fleet.MaxTextLength)
		return messagePayload{
			MessageID: m.ID, From: sender(m), Type: m.Kind, Text: text, TextCut: len(text) < len(m.Text),
			About: sub.AboutID, Content: beside(m.Content), Version: m.Version, Consent: ev.Data.Consent,
			Offline: m.Offline, SentAt: moment(m.SentAt), ReceivedAt: moment(m.ReceivedAt), truth: inner.of(m),
		}, nil
	case fleet.EventMessageUnprocessable:
		m := sub.Inbound
		if m == nil {
			return nil, errGone
		}
		return unprocessablePayload{
			MessageID: m.ID, From: sender(m), Reason: ev.Data.Reason,
			Offline: m.Offline, SentAt: moment(m.SentAt), ReceivedAt: moment(m.ReceivedAt), truth: inner.of(m),
		}, nil
	case fleet.EventMessageStatus, fleet.EventMessageSuppressed:
		p := statusPayload{MessageID: ev.Data.MessageID, Status: ev.Data.Status, Outcome: ev.Data.Outcome, At: momentMS(ev.Data.At), truth: inner}
		if ev.Data.Code != "" {
			p.Error = &coded{Code: ev.Data.Code, Detail: clip(ev.Data.Detail, maxDetail)}
		}
		if m := sub.Message; m != nil { // what the status says stays true when retention took the message
			p.To, p.Type, p.ClientRef = m.To, m.Kind, m.ClientRef
			if inner != nil {
				inner.WAID = m.WAID
			}
		}
		return p, nil
	case fleet.EventContactUpdated:
		c := sub.Contact
		if c == nil {
			return nil, errGone
		}
		return contactPayload{
			person: named(c.ID, c.Person(), ""), MergedContactIDs: append([]fleet.ContactID{}, ev.Data.MergedContacts...),
			MergedConversationIDs: append([]fleet.ConversationID{}, ev.Data.MergedConversations...), truth: inner,
		}, nil
	case fleet.EventSessionStatus, fleet.EventSessionConflict, fleet.EventReconnectLoop, fleet.EventReachoutRestricted, fleet.EventNewChatsCapped:
		return sessionPayload{
			State: ev.Data.Observed, Reason: ev.Data.Reason, WACode: ev.Data.WACode, Detail: clip(ev.Data.Detail, maxDetail),
			Attempts: ev.Data.Attempts, Until: momentMS(ev.Data.Until), truth: inner,
		}, nil
	case fleet.EventFleetAlert:
		return alertPayload{
			Alert: ev.Data.Reason, Sessions: ev.Data.Sessions, Of: ev.Data.Of, Detail: clip(ev.Data.Detail, maxDetail), truth: inner,
		}, nil
	case fleet.EventEndpointDisabled:
		return endpointPayload{EndpointID: ev.Data.Endpoint, Reason: ev.Data.Reason, truth: inner}, nil
	default:
		return nil, fmt.Errorf("event %s has a kind that this version does not know: %q", ev.ID, ev.Kind)
	}
}

// of adds what WhatsApp knows of an inbound message; nobody but operators has a truth.
func (t *truth) of(m *fleet.Inbound) *truth {
	if t != nil {
		t.WAID, t.Chat = m.WAID, m.Chat
		if m.Content != nil {
			t.AboutWAID = m.Content.About
		}
	}
	return t
}

// beside is the content without WhatsApp's own id of another message; nil if nothing else is in it.
func beside(c *fleet.Content) *fleet.Content {
	if c == nil {
		return nil
	}
	out := *c
	out.About = ""
	if reflect.ValueOf(out).IsZero() {
		return nil
	}
	return &out
}

func sender(m *fleet.Inbound) person { return named(m.ContactID, m.Person(), m.PushName) }

func named(id fleet.ContactID, p fleet.Person, name string) person {
	out := person{LID: optional(p.LID), Name: name}
	if id != "" {
		out.ContactID = &id
	}
	if p.Phone != "" {
		out.Phone = optional("+" + p.Phone)
	}
	return out
}

const stamp = "2006-01-02T15:04:05.000Z07:00"

func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

func moment(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	return optional(t.UTC().Format(stamp))
}

func momentMS(ms int64) *string {
	if ms == 0 {
		return nil
	}
	return moment(time.UnixMilli(ms))
}

// clip cuts text to at most limit code points.
func clip(text string, limit int) string {
	n := 0
	for i := range text {
		if n == limit {
			return text[:i]
		}
		n++
	}
	return text
}
