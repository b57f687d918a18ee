package outbound

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/wafleet/wafleet/internal/fleet"
)

func request(edits ...func(*Request)) Request {
	r := Request{Org: "org-a", Project: "prj_1", To: "+55 11 9 0000 0001", Text: "hello"}
	for _, edit := range edits {
		edit(&r)
	}
	return r
}

func TestValidate(t *testing.T) {
	ttl := func(n int) *int { return &n }
	for _, tc := range []struct {
		name string
		edit func(*Request)
		code string
	}{
		{"a plain request", func(*Request) {}, ""},
		{"the longest text, counted in characters", func(r *Request) { r.Text = strings.Repeat("😀", fleet.MaxTextLength) }, ""},
		{"one character more", func(r *Request) { r.Text = strings.Repeat("a", fleet.MaxTextLength+1) }, "TEXT_TOO_LONG"},
		{"no text", func(r *Request) { r.Text = "" }, "TEXT_EMPTY"},
		{"text of spaces is text", func(r *Request) { r.Text = " " }, ""},
		{"invalid UTF-8", func(r *Request) { r.Text = "a\xff" }, "TEXT_INVALID"},
		{"NUL", func(r *Request) { r.Text = "a\x00b" }, "TEXT_INVALID"},
		{"no recipient", func(r *Request) { r.To = "" }, "INVALID_RECIPIENT"},
		{"a group", func(r *Request) { r.To = "1203630@g.us" }, "INVALID_RECIPIENT"},
		{"shortest time to live", func(r *Request) { r.TTLSeconds = ttl(1) }, ""},
		{"longest time to live", func(r *Request) { r.TTLSeconds = ttl(86_400) }, ""},
		{"no time to live", func(r *Request) { r.TTLSeconds = ttl(0) }, "TTL_INVALID"},
		{"negative time to live", func(r *Request) { r.TTLSeconds = ttl(-1) }, "TTL_INVALID"},
		{"more than a day to live", func(r *Request) { r.TTLSeconds = ttl(86_401) }, "TTL_INVALID"},
		{"longest reference, counted in characters", func(r *Request) { r.ClientRef = strings.Repeat("ß", MaxClientRef) }, ""},
		{"reference too long", func(r *Request) { r.ClientRef = strings.Repeat("a", MaxClientRef+1) }, "CLIENT_REF_INVALID"},
		{"reference with NUL", func(r *Request) { r.ClientRef = "a\x00" }, "CLIENT_REF_INVALID"},
		{"text by name", func(r *Request) { r.Kind = "text" }, ""},
		{"another kind", func(r *Request) { r.Kind = "video" }, "TYPE_INVALID"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := request(tc.edit)
			to, err := r.validate("")
			bad, _ := errors.AsType[*fleet.InvalidError](err)
			switch {
			case tc.code == "" && (err != nil || to.ContactKey != "5511900000001"):
				t.Errorf("validate() = %+v, %v, want it accepted", to, err)
			case tc.code != "" && (bad == nil || bad.Code != tc.code || bad.Field == "" || bad.Detail == ""):
				t.Errorf("validate() = %v, want code %s with field and detail", err, tc.code)
			}
		})
	}
}

func TestHashTellsRequestsApart(t *testing.T) {
	ten := 600
	base := request()
	for name, same := range map[string]Request{
		"the default time to live, said":  request(func(r *Request) { r.TTLSeconds = &ten }),
		"the default kind, said":          request(func(r *Request) { r.Kind = KindText }),
		"another key for the same":        request(func(r *Request) { r.Key = "k" }),
		"the organization is not its own": request(func(r *Request) { r.Org = "org-b" }), // keys are stored per organization
	} {
		if !bytes.Equal(base.hash(), same.hash()) {
			t.Errorf("hash differs for: %s", name)
		}
	}
	for name, other := range map[string]Request{
		"another text":            request(func(r *Request) { r.Text = "hello " }),
		"another recipient":       request(func(r *Request) { r.To = "5511900000001" }),
		"another reference":       request(func(r *Request) { r.ClientRef = "x" }),
		"another project":         request(func(r *Request) { r.Project = "prj_2" }),
		"text moved to reference": request(func(r *Request) { r.Text, r.ClientRef = "hell", "o" }),
	} {
		if bytes.Equal(base.hash(), other.hash()) {
			t.Errorf("hash is the same for: %s", name)
		}
	}
}

func TestParseKey(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		ok       bool
	}{
		{"one character", "a", true},
		{"a UUID", "550e8400-e29b-41d4-a716-446655440000", true},
		{"every visible character", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", true},
		{"255 characters", strings.Repeat("k", 255), true},
		{"256 characters", strings.Repeat("k", 256), false},
		{"nothing", "", false},
		{"a space", "a b", false},
		{"a tab", "a\t", false},
		{"a letter outside ASCII", "schlüssel", false},
		{"NUL", "a\x00", false},
		{"DEL", "a\x7f", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseKey(tc.in)
			if tc.ok != (err == nil) || tc.ok && got != tc.in {
				t.Errorf("ParseKey(%q) = %q, %v, want accepted: %v", tc.in, got, err, tc.ok)
			}
			if bad, _ := errors.AsType[*fleet.InvalidError](err); err != nil && (bad == nil || bad.Code != "INVALID_IDEMPOTENCY_KEY") {
				t.Errorf("ParseKey(%q) = %v, want INVALID_IDEMPOTENCY_KEY", tc.in, err)
			}
		})
	}
}

func FuzzParseKey(f *testing.F) {
	for _, seed := range []string{"", "a", "550e8400-e29b-41d4-a716-446655440000", "a b", "\x00", "é", strings.Repeat("k", 256)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got, err := ParseKey(in)
		if err != nil {
			if !errors.Is(err, fleet.ErrInvalid) || got != "" {
				t.Errorf("ParseKey(%q) = %q, %v, want nothing and ErrInvalid", in, got, err)
			}
			return
		}
		if got != in || got == "" || len(got) > MaxKey || strings.ContainsFunc(got, func(r rune) bool { return r <= ' ' || r > '~' }) {
			t.Errorf("ParseKey(%q) = %q accepted", in, got)
		}
	})
}
