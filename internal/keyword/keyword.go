// Package keyword reads whether a message asks to be left alone, or to be written to again.
//
// Only a whole message counts: "STOP" and " stop! " do, "please stop by at 5" and "STOP 12345" do not. Case,
// accents, width, invisible characters and punctuation around the words make no difference. The package knows no
// database and no organization: who hears the answer decides what follows.
package keyword

import (
	"maps"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"

	"github.com/wafleet/wafleet/internal/fleet"
)

// maxLength bounds a keyword and the messages that are looked at, in bytes of UTF-8: nobody writes longer ones.
const maxLength = 120

// always are the words that no organization can take away.
var always = fleet.Keywords{Stop: []string{"STOP"}, Start: []string{"START"}}

// defaults are the words of an organization that set none for a language. The English ones are what carriers
// and large providers agree on, without YES, which answers too many other questions.
var defaults = map[string]fleet.Keywords{
	"en": {
		Stop:  []string{"STOP", "STOPALL", "STOP ALL", "UNSUBSCRIBE", "CANCEL", "END", "QUIT", "REVOKE", "OPTOUT", "OPT OUT", "OPT-OUT"},
		Start: []string{"START", "UNSTOP"},
	},
	"es": {
		Stop:  []string{"BAJA", "DAR DE BAJA", "PARAR", "DETENER", "SALIR", "CANCELAR"},
		Start: []string{"ALTA", "VOLVER", "RECIBIR"},
	},
	"fr": {
		Stop:  []string{"ARRET", "ARRETE", "ARRETER", "ARRETEZ", "DESABONNER", "DESINSCRIRE"},
		Start: []string{"REPRENDRE", "REPRISE"},
	},
	"pt": {
		Stop:  []string{"PARAR", "PARE", "SAIR", "CANCELAR", "DESCADASTRAR"},
		Start: []string{"VOLTAR", "RECEBER"},
	},
}

// Defaults are the keywords by language of an organization that set none.
func Defaults() map[string]fleet.Keywords { return maps.Clone(defaults) }

// Effective are the keywords by language that count for an organization.
func Effective(set map[string]fleet.Keywords) map[string]fleet.Keywords {
	all := Defaults()
	maps.Copy(all, set)
	return all
}

// Match reads a whole message under an organization's own keywords, which may be nil. A word that stands on
// both sides stops.
func Match(text string, set map[string]fleet.Keywords) fleet.Consent {
	if len(text) > maxLength {
		return fleet.ConsentNone
	}
	text = Fold(text)
	if text == "" {
		return fleet.ConsentNone
	}
	said := func(words []string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return Fold(w) == text })
	}
	result := fleet.ConsentNone
	check := func(k fleet.Keywords) {
		switch {
		case said(k.Stop):
			result = fleet.ConsentStop
		case result == fleet.ConsentNone && said(k.Start):
			result = fleet.ConsentStart
		}
	}
	check(always)
	if result != fleet.ConsentNone { // whatever else an organization calls by these words
		return result
	}
	for _, k := range Effective(set) {
		check(k)
	}
	return result
}

// MayMatch reports whether a text is short enough to be a keyword at all.
func MayMatch(text string) bool { return text != "" && len(text) <= maxLength }

// Valid reports whether a word can be a keyword: something is left of it, and it is short enough.
func Valid(word string) bool { return len(word) <= maxLength && Fold(word) != "" }

// Fold is what is compared: compatibility forms made one, accents and invisible characters gone, lower case, one
// space between words, no punctuation around.
func Fold(text string) string {
	var b strings.Builder
	space := false
	for _, r := range norm.NFKD.String(strings.ToValidUTF8(text, "")) {
		switch {
		case unicode.IsSpace(r):
			space = b.Len() > 0
		case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf, unicode.Cc):
		default:
			if space {
				b.WriteByte(' ')
				space = false
			}
			b.WriteRune(unicode.ToLower(r))
		}
	}
	return strings.TrimFunc(b.String(), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}
