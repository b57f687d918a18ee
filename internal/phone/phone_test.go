package phone_test

import (
	"strings"
	"testing"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/phone"
)

func TestANumberWithoutCountryCodeNeedsARegion(t *testing.T) {
	for _, tc := range []struct{ name, in, region, want string }{
		{"a national number", "(11) 96123-4567", "BR", "5511961234567"},
		{"with the trunk zero", "011 96123-4567", "BR", "5511961234567"},
		{"a landline", "(11) 3333-0001", "BR", "551133330001"},
		{"a full number of the region", "5511961234567", "BR", "5511961234567"},
		{"a full number of another country", "14155550123", "BR", "14155550123"},
		{"E.164 of another country", "+14155550123", "BR", "14155550123"},
		{"an Italian landline keeps its zero", "02 3661 8300", "IT", "390236618300"},
		{"without a region digits have their country code", "11961234567", "", "11961234567"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := phone.ParseRecipient(tc.in, tc.region)
			if err != nil || got.Phone != tc.want || got.Input != tc.in {
				t.Errorf("ParseRecipient(%q, %q) = %+v, %v, want %s", tc.in, tc.region, got, err, tc.want)
			}
		})
	}
	if got, err := phone.ParseRecipient("011 96123-4567", ""); err == nil {
		t.Errorf("a trunk zero without a region gave %+v, want a refusal", got)
	}
	if !phone.ValidRegion("BR") || !phone.ValidRegion("") || phone.ValidRegion("XX") || phone.ValidRegion("br") {
		t.Error("ValidRegion must take BR and blank, and neither XX nor br")
	}
}

func FuzzParseRecipientOfARegion(f *testing.F) {
	for _, s := range []string{"(11) 96123-4567", "5511961234567", "+1 415 555 0123", "1@lid", "ctc_", "011", "tel:+55;ext=1", "１１９６１２３４５６７"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		r, err := phone.ParseRecipient(in, "BR")
		if err == nil && r.Contact == "" && (r.ContactKey == "" || strings.Trim(r.Phone+r.LID, "0123456789") != "" || r.ContactKey != fleet.ContactKey(r.Phone, r.LID)) {
			t.Errorf("ParseRecipient(%q) = %+v", in, r)
		}
	})
}
