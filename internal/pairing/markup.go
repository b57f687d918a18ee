package pairing

import (
	"fmt"
	"html"
	"strings"
)

// markup is HTML of ours: constants of this package, and what fill made of them.
type markup string

// fill puts values where a % stands in a pattern. Markup goes in as it is; everything else is made safe for text between
// tags and between double quotes, so a % stands there only: never in a tag, without quotes, in a script or a style. It
// panics if there are more values than places, or fewer.
func fill(pattern markup, values ...any) markup {
	parts := strings.Split(string(pattern), "%")
	if len(parts) != len(values)+1 {
		panic(fmt.Sprintf("%d values for %q", len(values), pattern))
	}
	var b strings.Builder
	b.WriteString(parts[0])
	for i, v := range values {
		if m, ok := v.(markup); ok {
			b.WriteString(string(m))
		} else {
			b.WriteString(html.EscapeString(fmt.Sprint(v)))
		}
		b.WriteString(parts[i+1])
	}
	return markup(b.String())
}

// when is m if it is so, else nothing.
func when(so bool, m markup) markup {
	if so {
		return m
	}
	return ""
}
