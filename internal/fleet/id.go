package fleet

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
	"time"
)

// Every identifier that crosses a package border has a type of its own, so a
// message id can't be passed where a session id is meant.
type (
	// OrgID is an organization's slug, chosen by the operator: "org-a".
	OrgID string
	// ProjectID names a slice of an organization: "prj_…".
	ProjectID string
	// SessionID is a UUIDv4. It decides the shard and never leaves the operator's scope.
	SessionID string
	// SessionSlug is what JSON calls sessionId: "org-a-01".
	SessionSlug string
	// MessageID names one outbound send: "msg_…".
	MessageID string
	// InboundID names one message that somebody sent to a session: "inm_…".
	InboundID string
	// ConversationID names an organization's exchange with one person: "cnv_…".
	ConversationID string
	// ContactID names one person that an organization writes to or hears from: "ctc_…".
	ContactID string
	// CommandID names one command: "cmd_…".
	CommandID string
	// EventID names one event and stays the same over every delivery try: "evt_…".
	EventID string
	// EndpointID names a webhook endpoint: "ep_…".
	EndpointID string
	// DeliveryID names one event owed to one endpoint: "dlv_…".
	DeliveryID string
	// KeyID names an API key without being secret: "key_…".
	KeyID string
	// InviteID names a pairing link without being secret: "inv_…".
	InviteID string
)

// crockford is base32 without letters that are read wrongly, in ascending ASCII order,
// so ids made later sort later.
const crockford = "0123456789abcdefghjkmnpqrstvwxyz"

// newID returns prefix plus 26 characters: 48 bits of unix milliseconds, then 80 random bits.
func newID(prefix string) string {
	var raw [16]byte
	ms := uint64(time.Now().UnixMilli())
	for i := range 6 {
		raw[i] = byte(ms >> (8 * (5 - i)))
	}
	_, _ = rand.Read(raw[6:]) // never fails: crypto/rand ends the process instead
	var b strings.Builder
	b.Grow(len(prefix) + 26)
	b.WriteString(prefix)
	// 128 bits in 26 groups of 5, the first group holding the top 3 bits.
	for i := range 26 {
		shift := 125 - 5*i
		var v byte
		for bit := range 5 {
			pos := shift + 4 - bit // distance from the lowest bit
			if pos > 127 {
				continue
			}
			v = v<<1 | raw[15-pos/8]>>(pos%8)&1
		}
		b.WriteByte(crockford[v])
	}
	return b.String()
}

// NewProjectID returns a fresh id.
func NewProjectID() ProjectID { return ProjectID(newID("prj_")) }

// NewMessageID returns a fresh id.
func NewMessageID() MessageID { return MessageID(newID("msg_")) }

// NewInboundID returns a fresh id.
func NewInboundID() InboundID { return InboundID(newID("inm_")) }

// NewConversationID returns a fresh id.
func NewConversationID() ConversationID { return ConversationID(newID("cnv_")) }

const contactPrefix = "ctc_"

// NewContactID returns a fresh id.
func NewContactID() ContactID { return ContactID(newID(contactPrefix)) }

// NewCommandID returns a fresh id.
func NewCommandID() CommandID { return CommandID(newID("cmd_")) }

// NewEventID returns a fresh id.
func NewEventID() EventID { return EventID(newID("evt_")) }

// NewEndpointID returns a fresh id.
func NewEndpointID() EndpointID { return EndpointID(newID("ep_")) }

// NewDeliveryID returns a fresh id.
func NewDeliveryID() DeliveryID { return DeliveryID(newID("dlv_")) }

// NewKeyID returns a fresh id.
func NewKeyID() KeyID { return KeyID(newID("key_")) }

// NewInviteID returns a fresh id.
func NewInviteID() InviteID { return InviteID(newID("inv_")) }

// NewSessionID returns a UUIDv4. Not v7: the shard comes from the first 32 bits, and in v7
// those are a clock, so sessions made in one minute would all share a shard.
func NewSessionID() SessionID {
	var u [16]byte
	_, _ = rand.Read(u[:])
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	h := hex.EncodeToString(u[:])
	return SessionID(h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:])
}

// NewWAID returns the WhatsApp message id of a send. It is chosen and stored before anything
// leaves, and every repeat carries it, so a recipient sees one message however often a frame is
// sent. The shape is that of a linked device: "3EB0" and 18 hex digits.
func NewWAID() string {
	var b [9]byte
	_, _ = rand.Read(b[:])
	return "3EB0" + strings.ToUpper(hex.EncodeToString(b[:]))
}

// MaxOrgID is how long an organization's slug may be: it leaves room for "-01" in the session ids made
// from it.
const MaxOrgID = 56

// ValidSlug reports whether s may be an organization's or a session's slug: 1 to 63 characters,
// lower-case letters, digits and single inner hyphens, starting and ending with a letter or digit.
// Blank and wildcard text is never a slug, so it can never match a row.
func ValidSlug(s string) bool {
	if s == "" || len(s) > 63 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case c == '-' && i > 0 && i < len(s)-1 && s[i-1] != '-':
		default:
			return false
		}
	}
	return true
}
