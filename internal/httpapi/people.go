package httpapi

import (
	"fmt"
	"maps"
	"regexp"
	"unicode/utf8"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/keyword"
	"github.com/wafleet/wafleet/internal/phone"
)

const (
	maxLanguages    = 32
	maxKeywords     = 100  // of one list
	maxConfirmation = 4096 // code points
)

var language = regexp.MustCompile(`^[a-z]{2,3}(-[A-Za-z0-9]{2,8})?$`)

// PeopleChange is what of a change of an organization is about the people it writes to; exported because huma
// does not document embedded types that are not.
type PeopleChange struct {
	Region             *string                    `json:"region,omitempty" doc:"Country whose numbers may come without a country code; empty: none." example:"BR"`
	Keywords           *map[string]fleet.Keywords `json:"keywords,omitempty" doc:"By language, instead of its defaults; languages that are not named keep what they have. STOP and START always count."`
	OptOutConfirmation *string                    `json:"optOutConfirmation,omitempty" doc:"Sent once to who opts out, from the number they wrote to; empty: nothing is."`
}

// change checks what is to be changed; nil if nothing is.
func (b *PeopleChange) change() (func(*fleet.PeopleRules), error) {
	if b.Region == nil && b.Keywords == nil && b.OptOutConfirmation == nil {
		return nil, nil //nolint:nilnil // nothing to change is no error
	}
	if b.Region != nil && !phone.ValidRegion(*b.Region) {
		return nil, invalid("REGION_INVALID", "region", "is not the two letters of a country that has phone numbers, such as BR")
	}
	if b.OptOutConfirmation != nil && utf8.RuneCountInString(*b.OptOutConfirmation) > maxConfirmation {
		return nil, invalid("CONFIRMATION_INVALID", "optOutConfirmation", fmt.Sprintf("may have at most %d characters", maxConfirmation))
	}
	var set map[string]fleet.Keywords
	if b.Keywords != nil {
		set = *b.Keywords
	}
	if len(set) > maxLanguages {
		return nil, invalid("KEYWORDS_INVALID", "keywords", fmt.Sprintf("may name at most %d languages", maxLanguages))
	}
	for lang, k := range set {
		if !language.MatchString(lang) {
			return nil, invalid("KEYWORDS_INVALID", "keywords", "has a key that is no language, such as pt or pt-BR")
		}
		for _, list := range [][]string{k.Stop, k.Start} {
			if len(list) > maxKeywords {
				return nil, invalid("KEYWORDS_INVALID", "keywords."+lang, fmt.Sprintf("may have at most %d words in a list", maxKeywords))
			}
			for _, word := range list {
				if !keyword.Valid(word) {
					return nil, invalid("KEYWORDS_INVALID", "keywords."+lang, "has a word without a letter or digit, or one of more than 120 bytes")
				}
			}
		}
		for meant, list := range map[fleet.Consent][]string{fleet.ConsentStop: k.Stop, fleet.ConsentStart: k.Start} {
			for _, word := range list {
				if keyword.Match(word, set) != meant {
					return nil, invalid("KEYWORDS_INVALID", "keywords."+lang, fmt.Sprintf("has %q as %s, and it means the other already: in a list here, by default, or as STOP and START always do", word, meant))
				}
			}
		}
	}
	return func(rules *fleet.PeopleRules) {
		if b.Region != nil {
			rules.Region = *b.Region
		}
		if b.OptOutConfirmation != nil {
			rules.Confirmation = *b.OptOutConfirmation
		}
		if len(set) > 0 && rules.Keywords == nil {
			rules.Keywords = map[string]fleet.Keywords{}
		}
		maps.Copy(rules.Keywords, set)
	}, nil
}
