package fleet

import (
	"strings"
	"time"
)

// Person is how WhatsApp names somebody: by number, by LID, or both. One at least is set.
type Person struct {
	Phone string `json:"phone,omitempty"` // digits with country code
	LID   string `json:"lid,omitempty"`   // digits
}

// Address is where frames to a person go: one form for each, so that their phone shows one chat.
func (p Person) Address() string {
	if p.Phone != "" {
		return p.Phone + "@s.whatsapp.net"
	}
	return p.LID + "@lid"
}

// Keys are the names that a person is found under, the match key first.
func (p Person) Keys() []string {
	var keys []string
	if p.Phone != "" {
		keys = append(keys, ContactKey(p.Phone, ""))
	}
	if p.LID != "" {
		keys = append(keys, ContactKey("", p.LID))
	}
	return keys
}

// Contact is one person as an organization knows them: the variants of their number and their LID are one
// contact, once WhatsApp has told that they belong together.
type Contact struct {
	ID             ContactID
	OrgID          OrgID
	Key            string // match key, see ContactKey
	Phone          string // digits: as WhatsApp writes the number once it was asked, as first given before; "" of one with a LID alone
	LID            string // digits, "" when not known
	JID            string // where frames go, as WhatsApp said; "" before it was asked
	ConversationID ConversationID
	CheckedAt      time.Time // when WhatsApp was last asked, or told by writing, zero = never
	Absent         bool      // WhatsApp said at CheckedAt that the number has no account
	CreatedAt      time.Time
}

// Person is how WhatsApp names the contact.
func (c *Contact) Person() Person { return Person{Phone: c.Phone, LID: c.LID} }

// AbsentFor is how long WhatsApp's word that a number has no account is taken for true. Then it is asked again.
const AbsentFor = 24 * time.Hour

// PresentFor is the same of a number that has one.
const PresentFor = 30 * 24 * time.Hour

// ContactKey builds a match key from what is known of a person: the number folded to its variant class,
// else "lid:<n>", else "". It is for comparing only: messages never go to it.
func ContactKey(phone, lid string) string {
	switch {
	case phone != "":
		return FoldPhone(phone)
	case lid != "":
		return "lid:" + lid
	default:
		return ""
	}
}

// plans are the numbering plans that know one line under two numbers: the country changed its plan, or
// writes mobile numbers with a digit that WhatsApp's own form has not, or the other way round.
var plans = []struct {
	country string
	at      int    // where the digits stand that only the longer form has
	digits  string // what they are
	long    int    // digits of the longer form, country code included
	short   bool   // the shorter form names the class, else the longer one
	// first and second are what the first two digits of the shorter form after the country's may be; "" = anything.
	first, second string
}{
	{country: "55", at: 4, digits: "9", long: 13},              // Brazil: mobile numbers got a 9 before their eight digits
	{country: "52", at: 2, digits: "1", long: 13, short: true}, // Mexico: mobile numbers had a 1 until 2019, and WhatsApp may still write it
	{country: "54", at: 2, digits: "9", long: 13},              // Argentina: mobile numbers called from abroad
	{country: "229", at: 3, digits: "01", long: 13},            // Benin: all numbers got 01 before their eight digits
	// Ivory Coast: mobile numbers got their operator's two digits before their eight, of which the second told the operator.
	{country: "225", at: 3, digits: "01", long: 13, first: "0456789", second: "0123"},
	{country: "225", at: 3, digits: "05", long: 13, first: "0456789", second: "456"},
	{country: "225", at: 3, digits: "07", long: 13, first: "0456789", second: "789"},
}

// forms gives the two numbers of a line that has two, the one that names the class first; both are ""
// for every other.
func forms(phone string) (class, other string) {
	for _, p := range plans {
		if !strings.HasPrefix(phone, p.country) {
			continue
		}
		var long, short string
		switch {
		case len(phone) == p.long && strings.HasPrefix(phone[p.at:], p.digits):
			long, short = phone, phone[:p.at]+phone[p.at+len(p.digits):]
		case len(phone) == p.long-len(p.digits):
			long, short = phone[:p.at]+p.digits+phone[p.at:], phone
		default:
			continue
		}
		if p.first != "" && (!strings.Contains(p.first, short[p.at:p.at+1]) || !strings.Contains(p.second, short[p.at+1:p.at+2])) {
			continue
		}
		if p.country == "55" && short[4] >= '2' && short[4] <= '5' {
			return "", "" // a landline in Brazil; a mobile number with such digits never was without its 9
		}
		if p.short {
			return short, long
		}
		return long, short
	}
	return "", ""
}

// FoldPhone names the class of numbers that are the same line: 551100000001 and 5511900000001 in Brazil,
// 5215500000001 and 525500000001 in Mexico, 541100000001 and 5491100000001 in Argentina, 22507000001 and
// 2250707000001 in Ivory Coast, 22900000001 and
// 2290100000001 in Benin. Every other number is a class of its own.
func FoldPhone(phone string) string {
	if class, _ := forms(phone); class != "" {
		return class
	}
	return phone
}

// PhoneVariants are the numbers of a number's class, the one that was given first.
func PhoneVariants(phone string) []string {
	class, other := forms(phone)
	switch phone {
	case class:
		return []string{phone, other}
	case other:
		return []string{phone, class}
	default:
		return []string{phone}
	}
}

// Consent is what a person's message says about being written to.
type Consent string

// Consents.
const (
	ConsentNone  Consent = ""
	ConsentStop  Consent = "stop"
	ConsentStart Consent = "start"
)

// Keywords are the words by which people opt out and in, in one language.
type Keywords struct {
	Stop  []string `json:"stop"`
	Start []string `json:"start"`
}

// PeopleRules are what an organization set about the people it writes to.
type PeopleRules struct {
	Region       string              `json:"region,omitempty"`       // whose numbers may come without a country code: "BR"
	Keywords     map[string]Keywords `json:"keywords,omitempty"`     // by language: "pt"; a language of the defaults replaces them
	Confirmation string              `json:"confirmation,omitempty"` // sent once to who opts out; "" = none
}

// CodeOptedOut is the code of what is not sent because the person opted out.
const CodeOptedOut = "RECIPIENT_OPTED_OUT"

// CodeNotOnWhatsApp is the code of what can't be sent because the number has no account.
const CodeNotOnWhatsApp = "NOT_ON_WHATSAPP"

// OptOut is a person who does not want to hear from an organization, on any of its numbers.
type OptOut struct {
	ContactID ContactID
	OrgID     OrgID
	Phone     string // digits, "" when only a LID is known
	LID       string
	Source    OptOutSource
	Keyword   string    // as the person wrote it
	At        time.Time // WhatsApp's time of a keyword
}

// OptOutSource says how an opt-out, or its end, became known.
type OptOutSource string

// Sources.
const (
	OptOutKeyword OptOutSource = "keyword"
	OptOutManual  OptOutSource = "manual"
	OptOutImport  OptOutSource = "import"
)
