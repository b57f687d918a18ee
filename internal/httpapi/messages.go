package httpapi

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/outbound"
	"github.com/wafleet/wafleet/internal/store"
)

// Message is one outbound message as its organization sees it: no other number's identity in it.
type Message struct {
	ID             fleet.MessageID      `json:"messageId" example:"msg_01k8z3v5hq2m6t9x4c7b0n1d8e"`
	Status         fleet.Status         `json:"status" enum:"queued,sending,sent,delivered,read,played,failed,expired,cancelled,suppressed,unconfirmed"`
	Outcome        fleet.Outcome        `json:"outcome,omitempty" enum:"sent,refused,unknown" doc:"What is known of its frame. Unknown: it may have left; it is repeated under the same WhatsApp id, so the person sees it once."`
	To             string               `json:"to" doc:"As the request wrote it." example:"+5511900000001"`
	Type           string               `json:"type" enum:"text"`
	Text           string               `json:"text"`
	ClientRef      string               `json:"clientRef,omitempty" doc:"Your own reference."`
	SessionID      fleet.SessionSlug    `json:"sessionId" doc:"The organization's head session, whichever number sends." example:"org-a-01"`
	ConversationID fleet.ConversationID `json:"conversationId" doc:"Your exchange with this person; survives a change of numbers." example:"cnv_01k8z3v5hq2m6t9x4c7b0n1d8e"`
	Error          *MessageError        `json:"error,omitempty"`
	CreatedAt      *time.Time           `json:"createdAt"`
	SendAt         *time.Time           `json:"sendAt,omitempty" doc:"When it is to be sent."`
	ExpiresAt      *time.Time           `json:"expiresAt" doc:"It is not sent for the first time after this."`
	SentAt         *time.Time           `json:"sentAt,omitempty" doc:"WhatsApp took it."`
	DeliveredAt    *time.Time           `json:"deliveredAt,omitempty"`
	ReadAt         *time.Time           `json:"readAt,omitempty"`
	PlayedAt       *time.Time           `json:"playedAt,omitempty"`
}

// MessageError says why a message did not get where it should.
type MessageError struct {
	Code   string `json:"code" doc:"Stable, upper snake case." example:"RECIPIENT_REFUSED"`
	Detail string `json:"detail,omitempty"`
}

func messageView(m fleet.Message, head fleet.SessionSlug) Message {
	v := Message{
		ID: m.ID, Status: m.Status, Outcome: m.Outcome, To: m.To, Type: m.Kind, Text: m.Text, ClientRef: m.ClientRef,
		SessionID: head, ConversationID: m.ConversationID,
		CreatedAt: when(m.CreatedAt), SendAt: when(m.SendAt), ExpiresAt: when(m.ExpiresAt), SentAt: when(m.SentAt),
		DeliveredAt: when(m.DeliveredAt), ReadAt: when(m.ReadAt), PlayedAt: when(m.PlayedAt),
	}
	if m.ErrorCode != "" && m.Status != fleet.StatusQueued { // of one that another number is tried for
		v.Error = &MessageError{m.ErrorCode, m.ErrorDetail}
	}
	return v
}

// SendHeaders are the headers of a send, exported because huma does not document embedded types that
// are not. huma gives only the first of several lines and can't tell an empty one from none, so
// Resolve reads them itself.
type SendHeaders struct {
	IdempotencyKey string `header:"Idempotency-Key" doc:"1 to 255 visible ASCII characters. The same key with the same request gives the first answer again, with Idempotency-Replayed: true; it never sends twice."`
	Prefer         string `header:"Prefer" doc:"wait=N: wait up to N seconds, 30 at most, for the message to be settled." example:"wait=10"`

	keys, prefer []string
}

// Resolve implements huma.Resolver.
func (h *SendHeaders) Resolve(ctx huma.Context) []error {
	ctx.EachHeader(func(name, value string) {
		switch {
		case strings.EqualFold(name, "Idempotency-Key"):
			h.keys = append(h.keys, value)
		case strings.EqualFold(name, "Prefer"):
			h.prefer = append(h.prefer, value)
		}
	})
	return nil
}

func (h *SendHeaders) key() (string, error) {
	switch len(h.keys) {
	case 0:
		return "", nil
	case 1:
		return outbound.ParseKey(h.keys[0])
	default:
		return "", invalid("INVALID_IDEMPOTENCY_KEY", "Idempotency-Key", "is given more than once")
	}
}

// sendBody is a request to send. Limits that have codes of their own are checked by outbound.
type sendBody struct {
	To         string     `json:"to" doc:"Phone number with country code (+5511900000001), …@s.whatsapp.net, …@lid, or a contactId. Without country code only if the organization has a region." example:"+5511900000001"`
	Type       string     `json:"type,omitempty" enum:"text" default:"text"`
	Text       string     `json:"text" doc:"1 to 65,536 characters." example:"Your order is on its way."`
	TTLSeconds *int       `json:"ttlSeconds,omitempty" doc:"How long it may wait to be sent, 1 to 86,400; 600 if missing. Then it expires." example:"600"`
	SendAt     *time.Time `json:"sendAt,omitempty" doc:"Send it then and not now: RFC 3339 with an offset, at most a year ahead. ttlSeconds counts from then. The number is chosen when it is due." example:"2026-12-24T18:00:00-03:00"`
	Local      *LocalTime `json:"sendAtLocal,omitempty" doc:"The same by the clocks of a place; instead of sendAt."`
	ClientRef  string     `json:"clientRef,omitempty" doc:"Your own reference, at most 128 characters; comes back in answers and events." example:"order-7"`
}

// LocalTime is a time as the clocks of a place show it.
type LocalTime struct {
	Time string `json:"time" doc:"Without an offset. A time that clocks skip in spring means the moment at which they are put forward; one that they show twice in autumn, the first." minLength:"1" maxLength:"19" example:"2026-12-24T18:00"`
	Zone string `json:"timeZone" doc:"IANA name." minLength:"1" maxLength:"64" example:"Europe/Berlin"`
}

func (b *sendBody) sendAtLocal() fleet.LocalTime {
	if b.Local == nil {
		return fleet.LocalTime{}
	}
	return fleet.LocalTime{Time: b.Local.Time, Zone: b.Local.Zone}
}

func (b *sendBody) sendAt() time.Time {
	if b.SendAt == nil {
		return time.Time{}
	}
	return *b.SendAt
}

// sendReply is the answer to a send: 202 when it is accepted, 200 when it was waited for and is settled.
type sendReply struct {
	Status            int
	Location          string `header:"Location"`
	Replayed          string `header:"Idempotency-Replayed"`
	PreferenceApplied string `header:"Preference-Applied"`
	Limit             string `header:"RateLimit-Limit" doc:"Messages in any 60 seconds, over all numbers that can send." example:"60"`
	Remaining         string `header:"RateLimit-Remaining" doc:"Of them, left now: also of the hour's and the day's budget. At most a second old."`
	Body              Message
}

const replayedHeader = "Idempotency-Replayed"

func registerMessages(api huma.API, d *deps) {
	operation := func(method, path, id, summary string) huma.Operation {
		return huma.Operation{
			OperationID: id, Method: method, Path: "/api/v1/messages" + path, Tags: []string{"Messages"}, Summary: summary, Security: organizationSecurity,
		}
	}

	send := operation(http.MethodPost, "", "send-message", "Send a message")
	send.DefaultStatus = http.StatusAccepted
	send.Description = "Answers 202 once the message is stored: then it will be sent, or told why not, by status and webhook. " +
		"With Prefer: wait=N it answers 200 as soon as the message is settled, else 202 when the time is over."
	huma.Register(api, send, func(ctx context.Context, in *struct {
		SendHeaders
		Body sendBody
	},
	) (*sendReply, error) {
		return d.send(ctx, &in.SendHeaders, &in.Body)
	})

	huma.Register(api, operation(http.MethodGet, "", "list-messages", "List messages, newest first"),
		func(ctx context.Context, in *struct {
			Paging
			Status fleet.Status `query:"status" enum:"queued,sending,sent,delivered,read,played,failed,expired,cancelled,suppressed,unconfirmed"`
			To     string       `query:"to" doc:"Only those to this person, in any form that sending takes."`
		},
		) (*reply[Page[Message]], error) {
			q := store.MessageQuery{Org: caller(ctx).OrgID, Status: in.Status, Limit: in.Limit}
			if in.To != "" {
				to, err := d.outbound.ParseRecipient(ctx, q.Org, in.To)
				if err != nil {
					return nil, err
				}
				known, err := d.store.Recipient(ctx, q.Org, to)
				if err != nil {
					return nil, err
				}
				if q.ContactKey = to.ContactKey; known != nil {
					q.ContactKey = known.Key
				}
			}
			var err error
			if q.Before, err = numberCursor(in.Cursor); err != nil {
				return nil, err
			}
			head, err := d.store.HeadSlug(ctx, q.Org)
			if err != nil {
				return nil, err
			}
			messages, next, err := d.store.ListMessages(ctx, q)
			if err != nil {
				return nil, err
			}
			page := Page[Message]{Items: make([]Message, len(messages))}
			for i, m := range messages {
				page.Items[i] = messageView(m, head)
			}
			if next != 0 {
				page.NextCursor = strconv.FormatInt(next, 10)
			}
			return &reply[Page[Message]]{page}, nil
		})

	type one struct {
		ID fleet.MessageID `path:"messageId" example:"msg_01k8z3v5hq2m6t9x4c7b0n1d8e"`
	}
	huma.Register(api, operation(http.MethodGet, "/{messageId}", "get-message", "Get a message"),
		func(ctx context.Context, in *one) (*reply[Message], error) {
			m, err := d.store.GetMessage(ctx, caller(ctx).OrgID, in.ID)
			return d.messageReply(ctx, m, err)
		})

	cancel := func(ctx context.Context, in *one) (*reply[Message], error) {
		m, err := d.outbound.Cancel(ctx, caller(ctx).OrgID, in.ID)
		return d.messageReply(ctx, m, err)
	}
	op := operation(http.MethodPost, "/{messageId}/cancel", "cancel-message", "Cancel a message")
	op.Description = "Takes back a message that is still queued. Any other is refused with NOT_CANCELLABLE: it may be on its way."
	huma.Register(api, op, cancel)
	op = operation(http.MethodDelete, "/{messageId}", "delete-message", "Cancel a message (the same as POST …/cancel)")
	op.DefaultStatus = http.StatusOK // the message stays readable, as cancelled
	huma.Register(api, op, cancel)
}

func (d *deps) messageReply(ctx context.Context, m fleet.Message, err error) (*reply[Message], error) {
	if err != nil {
		return nil, err
	}
	head, err := d.store.HeadSlug(ctx, m.OrgID)
	if err != nil {
		return nil, err
	}
	return &reply[Message]{messageView(m, head)}, nil
}

func (d *deps) send(ctx context.Context, h *SendHeaders, body *sendBody) (*sendReply, error) {
	key, err := h.key()
	if err != nil {
		return nil, err
	}
	p := caller(ctx)
	a, err := d.outbound.Accept(ctx, outbound.Request{
		Org: p.OrgID, Project: p.ProjectID, Key: key,
		To: body.To, Kind: body.Type, Text: body.Text, TTLSeconds: body.TTLSeconds, ClientRef: body.ClientRef, SendAt: body.sendAt(), SendAtLocal: body.sendAtLocal(),
	})
	if err != nil {
		if a.Replayed {
			return nil, huma.ErrorWithHeaders(err, http.Header{replayedHeader: {"true"}})
		}
		if limit := d.limitOf(ctx, p.OrgID, err); limit != "" {
			return nil, huma.ErrorWithHeaders(err, http.Header{"RateLimit-Limit": {limit}})
		}
		return nil, err
	}
	head := a.Head
	if a.Replayed { // an error makes the caller ask again, which sends nothing
		if head, err = d.store.HeadSlug(ctx, p.OrgID); err != nil {
			return nil, err
		}
	}
	r := &sendReply{Status: http.StatusAccepted, Location: "/api/v1/messages/" + string(a.Message.ID)}
	if a.Replayed {
		r.Replayed = "true"
	}
	taken := 1
	if a.Replayed || a.Message.SessionID == "" { // a scheduled one takes its place when it is due
		taken = 0
	}
	r.Limit, r.Remaining = d.budgetLeft(ctx, p.OrgID, taken)
	m := a.Message
	if limit, ok := preferWait(h.prefer); ok {
		r.PreferenceApplied = "wait=" + strconv.Itoa(int(limit/time.Second))
		if settled, ok := d.waits.wait(ctx, m.ID, limit); ok {
			m, r.Status = settled, http.StatusOK
		}
	}
	r.Body = messageView(m, head)
	return r, nil
}
