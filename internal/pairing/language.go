package pairing

import (
	"embed"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/text/language"
)

//go:embed locales
var localeFiles embed.FS

// locale is one language of the page.
type locale struct {
	Lang string // as in lang="…"
	Name string // in itself
	text map[string]string
}

// locales in the order in which the page offers them. The first is for who wants none of them.
var locales, matcher = loadLocales("en", "es", "pt")

func loadLocales(codes ...string) ([]*locale, language.Matcher) {
	var out []*locale
	var tags []language.Tag
	for _, code := range codes {
		raw, err := localeFiles.ReadFile("locales/" + code + ".json")
		if err != nil {
			panic(err) // embedded: it fails in every test or never
		}
		l := &locale{Lang: code}
		if err := json.Unmarshal(raw, &l.text); err != nil {
			panic(fmt.Errorf("locale %s: %w", code, err))
		}
		l.Name = l.text["language"]
		out, tags = append(out, l), append(tags, language.Make(code))
	}
	return out, language.NewMatcher(tags)
}

// say is a text of the page. What is missing in a language shows as its key, and fails a test.
func (l *locale) say(key string, args ...any) string {
	text, ok := l.text[key]
	if !ok {
		return key
	}
	if len(args) == 0 {
		return text
	}
	return fmt.Sprintf(text, args...)
}

const languageCookie = "pair_lang"

// localeOf picks the language: the one chosen now, the one chosen before, what the browser asks for.
func localeOf(r *http.Request) *locale {
	if l := localeNamed(r.URL.Query().Get("lang")); l != nil {
		return l
	}
	if c, err := r.Cookie(languageCookie); err == nil {
		if l := localeNamed(c.Value); l != nil {
			return l
		}
	}
	_, i := language.MatchStrings(matcher, r.Header.Get("Accept-Language"))
	return locales[i]
}

func localeNamed(code string) *locale {
	for _, l := range locales {
		if l.Lang == code {
			return l
		}
	}
	return nil
}

// keepLanguage remembers a choice for a year.
func (p *Page) keepLanguage(w http.ResponseWriter, r *http.Request) {
	l := localeNamed(r.URL.Query().Get("lang"))
	if l == nil {
		return
	}
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // Secure wherever visitors come over https; it holds no secret
		Name: languageCookie, Value: l.Lang, Path: p.base + pathPrefix, MaxAge: int((365 * 24 * time.Hour).Seconds()),
		Secure: p.secure, HttpOnly: true, SameSite: http.SameSiteLaxMode,
	})
}
