package keyword_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/keyword"
)

func TestOnlyAWholeMessageIsAKeyword(t *testing.T) {
	own := map[string]fleet.Keywords{"de": {Stop: []string{"Abmelden", "Start"}, Start: []string{"Anmelden"}}, "fr": {}}
	for _, tc := range []struct {
		text string
		want fleet.Consent
	}{
		{"STOP", fleet.ConsentStop},
		{"stop", fleet.ConsentStop},
		{" STOP. ", fleet.ConsentStop},
		{"Stop!", fleet.ConsentStop},
		{"\"stop\"", fleet.ConsentStop},
		{"ＳＴＯＰ", fleet.ConsentStop},
		{"S\u200bT\u200dOP\ufeff", fleet.ConsentStop},
		{"Stop\n all", fleet.ConsentStop},
		{"opt-out", fleet.ConsentStop},
		{"ＳＡＩＲ", fleet.ConsentStop},
		{"Baja", fleet.ConsentStop},
		{"abmelden", fleet.ConsentStop},
		{"START", fleet.ConsentStart}, // also where a list says otherwise
		{"#voltar", fleet.ConsentStart},
		{"Anmelden 🙂", fleet.ConsentStart},
		{"please stop by at 5", fleet.ConsentNone},
		{"STOP 12345", fleet.ConsentNone},
		{"stopp", fleet.ConsentNone},
		{"s t o p", fleet.ConsentNone},
		{"yes", fleet.ConsentNone},
		{"", fleet.ConsentNone},
		{"🛑", fleet.ConsentNone},
		{"arrêt", fleet.ConsentNone}, // this organization has no French keywords
		{strings.Repeat(" ", 1000) + "STOP", fleet.ConsentNone},
	} {
		if got := keyword.Match(tc.text, own); got != tc.want {
			t.Errorf("Match(%q) = %q, want %q", tc.text, got, tc.want)
		}
	}
	if got := keyword.Match("Arrêt", nil); got != fleet.ConsentStop {
		t.Errorf("Match(Arrêt) under the defaults = %q, want stop", got)
	}
	none := map[string]fleet.Keywords{"en": {}, "es": {}, "fr": {}, "pt": {}}
	if s, q := keyword.Match("stop", none), keyword.Match("quit", none); s != fleet.ConsentStop || q != fleet.ConsentNone {
		t.Errorf("with all lists empty STOP = %q, QUIT = %q, want stop, which can't be taken away, and nothing", s, q)
	}
}

func TestEveryDefaultIsAKeyword(t *testing.T) {
	for language, k := range keyword.Defaults() {
		for _, w := range k.Stop {
			if got := keyword.Match(strings.ToLower(w), nil); got != fleet.ConsentStop {
				t.Errorf("%s: Match(%q) = %q, want stop", language, w, got)
			}
		}
		for _, w := range k.Start {
			if got := keyword.Match(w+".", nil); got != fleet.ConsentStart {
				t.Errorf("%s: Match(%q) = %q, want start", language, w, got)
			}
		}
	}
}

func FuzzMatch(f *testing.F) {
	for _, s := range []string{"STOP", " Arrêt! ", "ＳＴＯＰ", "S\u200bTOP", "please stop", "\xff\xfe", "\u0301", "stop\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		folded := keyword.Fold(text)
		if !utf8.ValidString(folded) || keyword.Fold(folded) != folded {
			t.Errorf("Fold(%q) = %q, and of that %q: want valid text that stays", text, folded, keyword.Fold(folded))
		}
		if len(text) <= 100 && keyword.Match(text, nil) != keyword.Match(" "+text+".", nil) {
			t.Errorf("Match(%q) changes with a space before and a dot after it", text)
		}
	})
}
