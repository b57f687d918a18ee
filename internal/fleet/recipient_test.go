package fleet_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/wafleet/wafleet/internal/fleet"
)

func TestParseRecipient(t *testing.T) {
	for _, tc := range []struct{ name, in, key, jid string }{
		{"E.164", "+5511900000001", "5511900000001", "5511900000001@s.whatsapp.net"},
		{"digits with country code", "5511900000001", "5511900000001", "5511900000001@s.whatsapp.net"},
		{"as people write it", " +55 (11) 9.0000-0001 ", "5511900000001", "5511900000001@s.whatsapp.net"},
		{"a WhatsApp address", "5511900000001@s.whatsapp.net", "5511900000001", "5511900000001@s.whatsapp.net"},
		{"the web client's form", "5511900000001@c.us", "5511900000001", "5511900000001@s.whatsapp.net"},
		{"a LID", "100000000000001@lid", "lid:100000000000001", "100000000000001@lid"},
		{"the shortest number", "1234567", "1234567", "1234567@s.whatsapp.net"},
		{"the longest number", "123456789012345", "123456789012345", "123456789012345@s.whatsapp.net"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := fleet.ParseRecipient(tc.in)
			want := fleet.Recipient{Input: tc.in, ContactKey: tc.key, JID: tc.jid}
			if err != nil || got != want {
				t.Errorf("ParseRecipient(%q) = %+v, %v, want %+v", tc.in, got, err, want)
			}
		})
	}
}

func TestParseRecipientRefuses(t *testing.T) {
	for name, in := range map[string]string{
		"nothing":                        "",
		"spaces":                         "   ",
		"a word":                         "somebody",
		"digits and letters":             "55119a0000001",
		"a number with trunk zero":       "011900000001",
		"too few digits":                 "123456",
		"too many digits":                "1234567890123456",
		"two plus signs":                 "++5511900000001",
		"a plus inside":                  "55+11900000001",
		"a group":                        "120363000000000001@g.us",
		"a broadcast list":               "1@broadcast",
		"status":                         "status@broadcast",
		"a newsletter":                   "1@newsletter",
		"an unknown domain":              "5511900000001@example.com",
		"a device":                       "5511900000001:2@s.whatsapp.net",
		"a plus before an address":       "+5511900000001@s.whatsapp.net",
		"two addresses":                  "5511900000001@c.us@c.us",
		"a LID that is no number":        "abc@lid",
		"digits of another script":       "٥٥١١٩٠٠٠٠٠٠٠١",
		"NUL":                            "5511900000001\x00",
		"invalid UTF-8":                  "5511900000001\xff",
		"a zero-width space":             "55119\u200b00000001",
		"two numbers":                    "5511900000001,5511900000002",
		"something very long":            strings.Repeat("1", 1000),
		"a wildcard":                     "*",
		"blank address":                  "@s.whatsapp.net",
		"a number hidden behind slashes": "55/11900000001",
	} {
		t.Run(name, func(t *testing.T) {
			got, err := fleet.ParseRecipient(in)
			bad, ok := errors.AsType[*fleet.InvalidError](err)
			if !ok || bad.Code != "INVALID_RECIPIENT" || bad.Field != "to" || bad.Detail == "" || !errors.Is(err, fleet.ErrInvalid) {
				t.Errorf("ParseRecipient(%q) = %+v, %v, want INVALID_RECIPIENT", in, got, err)
			}
			if got != (fleet.Recipient{}) {
				t.Errorf("ParseRecipient(%q) gave %+v beside the error", in, got)
			}
		})
	}
}

func FuzzParseRecipient(f *testing.F) {
	for _, seed := range []string{
		"+5511900000001", "55 11 9 0000-0001", "5511900000001@c.us", "100000000000001@lid", "1@g.us", "", "@", "+", "(", "0", "\x00", "é@lid",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got, err := fleet.ParseRecipient(in)
		if err != nil {
			if !errors.Is(err, fleet.ErrInvalid) || got != (fleet.Recipient{}) {
				t.Errorf("ParseRecipient(%q) = %+v, %v, want nothing and ErrInvalid", in, got, err)
			}
			return
		}
		user, server, _ := strings.Cut(got.JID, "@")
		if strings.Trim(user, "0123456789") != "" || user == "" || (server != "lid" && server != "s.whatsapp.net") {
			t.Errorf("ParseRecipient(%q) gave the JID %q", in, got.JID)
		}
		if want := map[string]string{"lid": "lid:" + user, "s.whatsapp.net": user}[server]; got.ContactKey != want {
			t.Errorf("ParseRecipient(%q) gave the key %q for the JID %q", in, got.ContactKey, got.JID)
		}
		// Nothing is guessed or rewritten: the digits are those of the input.
		if digits := strings.Map(keepDigits, in); digits != user {
			t.Errorf("ParseRecipient(%q) gave the digits %q", in, user)
		}
		if again, err := fleet.ParseRecipient(got.JID); err != nil || again.ContactKey != got.ContactKey || again.JID != got.JID {
			t.Errorf("ParseRecipient(%q) = %+v, %v, but its input gave %+v", got.JID, again, err, got)
		}
	})
}

func keepDigits(r rune) rune {
	if r >= '0' && r <= '9' {
		return r
	}
	return -1
}
