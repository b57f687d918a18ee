// Package phone reads recipients as people of one country write them. Only an organization that set a region may
// leave the country code out; everywhere else fleet.ParseRecipient alone decides.
package phone

import (
	"strings"

	"github.com/nyaruka/phonenumbers"

	"github.com/wafleet/wafleet/internal/fleet"
)

// ValidRegion reports whether region is a country that has a numbering plan: two letters, "BR". Blank is none.
func ValidRegion(region string) bool {
	return region == "" || phonenumbers.GetSupportedRegions()[region]
}

// National reports whether the region of the organization could make a difference for this recipient.
func National(in string) bool { return !strings.ContainsAny(in, "+@_") }

// ParseRecipient is fleet.ParseRecipient for an organization whose numbers without a country code belong to region;
// "" is no region. What is written without a plus and is a valid number of that country is taken for it; anything
// else has its country code.
func ParseRecipient(in, region string) (fleet.Recipient, error) {
	if region != "" && National(in) && len(in) <= 64 {
		if n, err := phonenumbers.Parse(in, region); err == nil && n.GetExtension() == "" && phonenumbers.IsValidNumberForRegion(n, region) {
			return fleet.PhoneRecipient(in, strings.TrimPrefix(phonenumbers.Format(n, phonenumbers.E164), "+")), nil
		}
	}
	return fleet.ParseRecipient(in)
}
