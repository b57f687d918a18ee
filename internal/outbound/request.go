package outbound

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/phone"
)

// KindText is the only kind of message of this version.
const KindText = "text"

// Limits of a request.
const (
	MaxTTL       = 86_400 // seconds
	MaxClientRef = 128    // Unicode code points
	MaxKey       = 255    // bytes
	MaxAhead     = 366 * 24 * time.Hour
)

// Request asks to send one message.
type Request struct {
	Org     fleet.OrgID
	Project fleet.ProjectID
	// Key is the caller's Idempotency-Key; "" = none.
	Key string

	To         string
	Kind       string // KindText, or "" for it
	Text       string
	TTLSeconds *int      // 1 to MaxTTL; nil = fleet.DefaultTTL
	ClientRef  string    // the caller's own reference, echoed
	SendAt     time.Time // zero = now; at most MaxAhead ahead; its time to live counts from here
	// SendAtLocal is SendAt by the clocks of a place; one of the two.
	SendAtLocal fleet.LocalTime
}

// ttl is only meaningful for a valid request.
func (r *Request) ttl() time.Duration {
	if r.TTLSeconds == nil {
		return fleet.DefaultTTL
	}
	return time.Duration(*r.TTLSeconds) * time.Second
}

// validate returns who the message is for, in an organization of this region, or an *fleet.InvalidError.
func (r *Request) validate(region string) (fleet.Recipient, error) {
	bad := func(code, field, detail string, args ...any) (fleet.Recipient, error) {
		return fleet.Recipient{}, &fleet.InvalidError{Code: code, Field: field, Detail: fmt.Sprintf(detail, args...)}
	}
	if r.Kind != "" && r.Kind != KindText {
		return bad("TYPE_INVALID", "type", "must be %q", KindText)
	}
	switch {
	case !clean(r.Text):
		return bad("TEXT_INVALID", "text", "must be UTF-8 without NUL")
	case r.Text == "":
		return bad("TEXT_EMPTY", "text", "is empty: give 1 to %d characters", fleet.MaxTextLength)
	}
	if n := utf8.RuneCountInString(r.Text); n > fleet.MaxTextLength {
		return bad("TEXT_TOO_LONG", "text", "has %d characters, at most %d can be sent", n, fleet.MaxTextLength)
	}
	if r.TTLSeconds != nil && (*r.TTLSeconds < 1 || *r.TTLSeconds > MaxTTL) {
		return bad("TTL_INVALID", "ttlSeconds", "must be 1 to %d", MaxTTL)
	}
	if !clean(r.ClientRef) || utf8.RuneCountInString(r.ClientRef) > MaxClientRef {
		return bad("CLIENT_REF_INVALID", "clientRef", "must be UTF-8 without NUL and have at most %d characters", MaxClientRef)
	}
	if r.SendAtLocal.Set() {
		if !r.SendAt.IsZero() {
			return bad("SEND_AT_INVALID", "sendAtLocal", "can't be given with sendAt: leave one of them out")
		}
		var err error
		if r.SendAt, err = r.SendAtLocal.Instant(); err != nil {
			return fleet.Recipient{}, err
		}
	}
	r.SendAt = r.SendAt.UTC().Truncate(time.Millisecond) // as it is stored
	if ahead := time.Until(r.SendAt); !r.SendAt.IsZero() && ahead > MaxAhead {
		return bad("SEND_AT_INVALID", "sendAt", "must be at most a year ahead")
	}
	if !r.SendAt.IsZero() && !r.SendAt.After(time.Now()) {
		r.SendAt, r.SendAtLocal = time.Time{}, fleet.LocalTime{} // a time that has passed means now
	}
	return phone.ParseRecipient(r.To, region)
}

func clean(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// hash names what the request asks for, whatever the layout of its JSON: the same key may only be
// used again for the same.
func (r *Request) hash() []byte {
	h := sha256.New()
	kind := r.Kind
	if kind == "" {
		kind = KindText
	}
	sendAt := ""
	if !r.SendAt.IsZero() {
		sendAt = r.SendAt.UTC().Format(time.RFC3339Nano)
	}
	fields := []string{string(r.Project), r.To, kind, r.Text, fmt.Sprint(r.ttl()), r.ClientRef, sendAt}
	if r.SendAtLocal.Set() {
		fields = append(fields, r.SendAtLocal.Time, r.SendAtLocal.Zone)
	}
	for _, field := range fields {
		_ = binary.Write(h, binary.BigEndian, uint64(len(field))) // a hash takes everything
		_, _ = h.Write([]byte(field))
	}
	return h.Sum(nil)
}

// ParseKey checks an Idempotency-Key: 1 to 255 visible ASCII characters. The error is an
// *fleet.InvalidError with code INVALID_IDEMPOTENCY_KEY.
func ParseKey(s string) (string, error) {
	bad := func(detail string) (string, error) {
		return "", &fleet.InvalidError{Code: "INVALID_IDEMPOTENCY_KEY", Field: "Idempotency-Key", Detail: detail}
	}
	switch {
	case s == "":
		return bad("is empty: leave the header out or give 1 to 255 characters")
	case len(s) > MaxKey:
		return bad("is too long: at most 255 characters")
	}
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e {
			return bad("has characters other than visible ASCII")
		}
	}
	return s, nil
}
