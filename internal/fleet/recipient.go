package fleet

import "strings"

// Recipient is where a message should go, as far as the text alone says. One of Phone, LID and Contact
// is set; ContactKey and JID are not known of a Contact.
type Recipient struct {
	Input      string
	Phone      string    // digits with country code, as given
	LID        string    // digits
	Contact    ContactID // of one who is known
	ContactKey string    // match key: see ContactKey
	JID        string    // "5511900000001@s.whatsapp.net" or "<n>@lid"
}

// ParseRecipient reads E.164 ("+55 11 9 0000 0001"), digits with country code, the forms "…@c.us",
// "…@s.whatsapp.net" and "…@lid", and the id of a contact. Digits are never guessed or rewritten. Groups,
// broadcast lists, status and newsletters are refused, and so is anything with other characters.
// The error is an *InvalidError with code INVALID_RECIPIENT.
func ParseRecipient(in string) (Recipient, error) {
	bad := func(detail string) (Recipient, error) {
		return Recipient{}, &InvalidError{Code: "INVALID_RECIPIENT", Field: "to", Detail: detail}
	}
	s := strings.TrimSpace(in)
	if s == "" {
		return bad("is empty: give a phone number with country code, such as +5511900000001")
	}
	if len(s) > 64 {
		return bad("is too long for a phone number")
	}
	if strings.HasPrefix(s, contactPrefix) {
		if !validContactID(s) {
			return bad("is not the id of a contact")
		}
		return Recipient{Input: in, Contact: ContactID(s)}, nil
	}
	user, server, hasServer := strings.Cut(s, "@")
	if hasServer {
		switch server {
		case "lid":
			if !allDigits(user) || len(user) < 5 || len(user) > 20 {
				return bad("is not a LID: expected digits before @lid")
			}
			return Recipient{Input: in, LID: user, ContactKey: ContactKey("", user), JID: user + "@lid"}, nil
		case "c.us", "s.whatsapp.net":
		case "g.us", "broadcast", "newsletter":
			return bad("is not a person: groups, broadcasts, status and newsletters can't be addressed here")
		default:
			return bad("has an unknown domain after @: use @s.whatsapp.net, @c.us or @lid, or the plain number")
		}
		if !allDigits(user) {
			return bad("has characters other than digits before @")
		}
	} else {
		if strings.HasPrefix(user, "(") {
			return bad("looks like a number without its country code: write it with + and country code, such as +5511900000001")
		}
		user = strings.TrimPrefix(user, "+")
		user = strings.Map(func(r rune) rune {
			switch r {
			case ' ', '-', '.', '(', ')':
				return -1
			default:
				return r
			}
		}, user)
	}
	if !allDigits(user) {
		return bad("is not a phone number: use digits with country code, such as +5511900000001")
	}
	if strings.HasPrefix(user, "0") {
		return bad("must start with a country code, not with 0")
	}
	if len(user) < 7 || len(user) > 15 {
		return bad("must have 7 to 15 digits, country code included")
	}
	return PhoneRecipient(in, user), nil
}

// PhoneRecipient is the recipient of a valid number in digits with country code; in is what was given for it.
func PhoneRecipient(in, phone string) Recipient {
	return Recipient{Input: in, Phone: phone, ContactKey: ContactKey(phone, ""), JID: phone + "@s.whatsapp.net"}
}

// validContactID reports whether s has the form of a contact's id.
func validContactID(s string) bool {
	rest, ok := strings.CutPrefix(s, contactPrefix)
	return ok && len(rest) == 26 && strings.Trim(rest, crockford) == ""
}

func allDigits(s string) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}
