package fleet_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/wafleet/wafleet/internal/fleet"
)

func TestParseRecipient(t *testing.T) {
	ofPhone := func(phone, key string) fleet.Recipient {
		return fleet.Recipient{Phone: phone, ContactKey: key, JID: phone + "@s.whatsapp.net"}
	}
	known := fleet.NewContactID()
	for _, tc := range []struct {
		name, in string
		want     fleet.Recipient
	}{
		{"E.164", "+5511900000001", ofPhone("5511900000001", "5511900000001")},
		{"digits with country code", "5511900000001", ofPhone("5511900000001", "5511900000001")},
		{"as people write it", " +55 (11) 9.0000-0001 ", ofPhone("5511900000001", "5511900000001")},
		{"a WhatsApp address", "5511900000001@s.whatsapp.net", ofPhone("5511900000001", "5511900000001")},
		{"the web client's form", "5511900000001@c.us", ofPhone("5511900000001", "5511900000001")},
		{"a variant goes where it was written and is compared as its class", "+55 11 0000-0001", ofPhone("551100000001", "5511900000001")},
		{"a LID", "100000000000001@lid", fleet.Recipient{LID: "100000000000001", ContactKey: "lid:100000000000001", JID: "100000000000001@lid"}},
		{"a contact", string(known), fleet.Recipient{Contact: known}},
		{"the shortest number", "1234567", ofPhone("1234567", "1234567")},
		{"the longest number", "123456789012345", ofPhone("123456789012345", "123456789012345")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := fleet.ParseRecipient(tc.in)
			tc.want.Input = tc.in
			if err != nil || got != tc.want {
				t.Errorf("ParseRecipient(%q) = %+v, %v, want %+v", tc.in, got, err, tc.want)
			}
		})
	}
}

func TestVariantsOfANumberAreOneClassAndLandlinesStay(t *testing.T) {
	for _, tc := range []struct {
		name, in, class string
		variants        []string
	}{
		{"Brazil with the 9", "5511988880001", "5511988880001", []string{"5511988880001", "551188880001"}},
		{"Brazil without it", "551188880001", "5511988880001", []string{"551188880001", "5511988880001"}},
		{"a Brazilian landline never gets a 9", "551133330001", "551133330001", []string{"551133330001"}},
		{"nor does a mobile number lose one that would make it a landline", "5511933330001", "5511933330001", []string{"5511933330001"}},
		{"Mexico", "525500000001", "525500000001", []string{"525500000001", "5215500000001"}},
		{"Mexico with the 1", "5215500000001", "525500000001", []string{"5215500000001", "525500000001"}},
		{"Argentina", "541100000001", "5491100000001", []string{"541100000001", "5491100000001"}},
		{"Argentina with the 9", "5491100000001", "5491100000001", []string{"5491100000001", "541100000001"}},
		{"Benin", "22990000001", "2290190000001", []string{"22990000001", "2290190000001"}},
		{"Ivory Coast", "22507000001", "2250707000001", []string{"22507000001", "2250707000001"}},
		{"Ivory Coast with its operator's digits", "2250545000001", "2250545000001", []string{"2250545000001", "22545000001"}},
		{"Ivory Coast under digits of another operator", "2250707300001", "2250707300001", []string{"2250707300001", "22507300001"}},
		{"a landline in Ivory Coast", "2252720000001", "2252720000001", []string{"2252720000001"}},
		{"an old one", "22520000001", "22520000001", []string{"22520000001"}},
		{"Italy keeps its zero", "390600000001", "390600000001", []string{"390600000001"}},
		{"anything else", "14155550123", "14155550123", []string{"14155550123"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := fleet.FoldPhone(tc.in); got != tc.class {
				t.Errorf("FoldPhone(%q) = %q, want %q", tc.in, got, tc.class)
			}
			if got := fleet.PhoneVariants(tc.in); !slices.Equal(got, tc.variants) {
				t.Errorf("PhoneVariants(%q) = %q, want %q", tc.in, got, tc.variants)
			}
		})
	}
}

func TestParseRecipientRefuses(t *testing.T) {
	for name, in := range map[string]string{
		"nothing":                        "",
		"a contact's id cut short":       "ctc_01k8z3v5hq",
		"spaces":                         "   ",
		"a word":                         "somebody",
		"digits and letters":             "55119a0000001",
		"a number with trunk zero":       "011900000001",
		"one that begins with its area":  "(11) 90000-0001",
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
		"+5511900000001", "55 11 9 0000-0001", "5511900000001@c.us", "100000000000001@lid", "ctc_01k8z3v5hq2m6t9x4c7b0n1d8e", "551100000001", "1@g.us", "", "@", "+", "(", "0", "\x00", "é@lid",
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
		if got.Contact != "" {
			if got != (fleet.Recipient{Input: in, Contact: fleet.ContactID(strings.TrimSpace(in))}) {
				t.Errorf("ParseRecipient(%q) = %+v, want nothing but the contact", in, got)
			}
			return
		}
		user, server, _ := strings.Cut(got.JID, "@")
		if strings.Trim(user, "0123456789") != "" || user == "" || (server != "lid" && server != "s.whatsapp.net") {
			t.Errorf("ParseRecipient(%q) gave the JID %q", in, got.JID)
		}
		if want := map[string]string{"lid": "lid:" + user, "s.whatsapp.net": fleet.FoldPhone(user)}[server]; got.ContactKey != want {
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
