package fleet

import "time"

// EventKind names a kind of event; the webhook's "event" field.
type EventKind string

// Event kinds of this version.
const (
	EventMessage              EventKind = "message"
	EventMessageStatus        EventKind = "message.status"
	EventMessageSuppressed    EventKind = "message.suppressed" // beside message.status: not sent because the person opted out
	EventMessageUnprocessable EventKind = "message.unprocessable"
	EventContactUpdated       EventKind = "contact.updated" // a person got a number, or contacts turned out to be one person
	EventSessionStatus        EventKind = "session.status"
	EventSessionConflict      EventKind = "session.conflict"       // given up: something else uses the session's keys
	EventReconnectLoop        EventKind = "session.reconnect_loop" // once per ReconnectLoop failed connects in a row
	EventFleetAlert           EventKind = "fleet.alert"            // many sessions suffer the same at once
	EventEndpointDisabled     EventKind = "endpoint.disabled"
	EventReachoutRestricted   EventKind = "session.reachout_restricted" // WhatsApp lets the number not write to strangers until a time
	EventNewChatsCapped       EventKind = "session.new_chats_capped"    // WhatsApp lets the number open no new chats until a time
)

// Scope says who an event or endpoint is for. Organization scope never carries the identity of a
// worker, a key or another number; operator scope carries true ids.
type Scope string

// Scopes.
const (
	ScopeOrganization Scope = "organization"
	ScopeOperator     Scope = "operator"
)

// EventKinds lists the kinds an endpoint of a scope may ask for, in display order. Operator
// endpoints may ask for everything.
func EventKinds(s Scope) []EventKind {
	org := []EventKind{EventMessage, EventMessageStatus, EventMessageSuppressed, EventMessageUnprocessable, EventContactUpdated}
	if s == ScopeOperator {
		return append(org, EventSessionStatus, EventSessionConflict, EventReconnectLoop, EventFleetAlert, EventEndpointDisabled,
			EventReachoutRestricted, EventNewChatsCapped)
	}
	return org
}

// ReconnectLoop is after how many failed connects in a row, and then every so many, operators are told.
const ReconnectLoop = 5

// AlertLogouts is the Reason of a fleet.alert: WhatsApp ended many logins within a short time.
const AlertLogouts = "logouts"

// Event is a thing that happened. It keeps references; bodies are rendered at delivery.
type Event struct {
	ID             EventID
	OrgID          OrgID
	Kind           EventKind
	SessionID      SessionID      // "" when no session is concerned
	ConversationID ConversationID // "" when no conversation is concerned
	Stream         string         // order and seq are per stream: conversation, else session, else organization
	Seq            int64          // gapless within a stream
	Data           EventData
	CreatedAt      time.Time
}

// EventData is the stored, secret-free part of an event, as JSON.
type EventData struct {
	MessageID MessageID `json:"messageId,omitempty"`
	InboundID InboundID `json:"inboundId,omitempty"`
	Status    Status    `json:"status,omitempty"`
	Outcome   Outcome   `json:"outcome,omitempty"`
	Code      string    `json:"code,omitempty"`
	Detail    string    `json:"detail,omitempty"`
	Observed  Observed  `json:"observed,omitempty"`
	Reason    string    `json:"reason,omitempty"`
	WACode    int       `json:"waCode,omitempty"`
	Until     int64     `json:"until,omitempty"`    // unix ms
	Attempts  int       `json:"attempts,omitempty"` // failed connects in a row
	Sessions  int       `json:"sessions,omitempty"` // how many sessions suffer
	Of        int       `json:"of,omitempty"`       // out of so many
	Endpoint  string    `json:"endpoint,omitempty"`

	Consent             Consent          `json:"consent,omitempty"` // what an inbound message says by a keyword
	Contact             ContactID        `json:"contact,omitempty"`
	MergedContacts      []ContactID      `json:"mergedContacts,omitempty"`
	MergedConversations []ConversationID `json:"mergedConversations,omitempty"`

	At int64 `json:"at,omitempty"` // when it happened, unix ms
}

// Endpoint is a webhook URL and what it wants to hear.
type Endpoint struct {
	ID          EndpointID
	OrgID       OrgID // "" for an operator endpoint that hears every organization
	Scope       Scope
	URL         string
	Description string
	Events      []EventKind // empty = all of its scope
	Disabled    bool
	DisabledWhy string

	Secrets []Secret // newest first; every live one signs

	MaxConcurrency int // deliveries in flight, per endpoint

	// Breaker, shared by all webhook processes through the row.
	Failures     int       // in a row
	FailingSince time.Time // first failure of the run; zero = healthy
	OpenUntil    time.Time // no delivery before this, but one probe at a time after it

	CreatedAt time.Time
}

// Secret signs deliveries. During a rotation two are live.
type Secret struct {
	Value     string    // "whsec_" + base64, as Standard Webhooks writes it
	ExpiresAt time.Time // zero = current
}

// DeliveryStatus is where a delivery is.
type DeliveryStatus string

// Delivery states.
const (
	DeliveryPending DeliveryStatus = "pending"
	DeliveryDone    DeliveryStatus = "done"
	DeliveryDead    DeliveryStatus = "dead"
)

// Delivery is one event owed to one endpoint.
type Delivery struct {
	ID         DeliveryID
	N          int64
	EndpointID EndpointID
	EventID    EventID
	OrgID      OrgID
	Stream     string
	Ordered    bool // false once it stepped aside, or for a replay
	Replay     bool
	Status     DeliveryStatus
	Attempts   int
	DueAt      time.Time
	FirstFail  time.Time
	LastStatus int // HTTP status of the last try, 0 if none came
	LastError  string
	CreatedAt  time.Time
	FinishedAt time.Time
}
