package auth

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestMintedKeysParseAndAreAllDifferent(t *testing.T) {
	seen := map[string]bool{}
	for i := range 200 {
		admin := i%2 == 0
		s := Mint(admin)
		if seen[s.text] {
			t.Fatalf("Mint gave the same key twice")
		}
		seen[s.text] = true
		got, err := Parse(s.Reveal())
		if err != nil || got != s || got.Admin() != admin {
			t.Errorf("Parse(Mint(%v)) = %v, admin %v, %v", admin, got == s, got.Admin(), err)
		}
		if want := map[bool]string{true: PrefixAdmin, false: PrefixOrganization}[admin]; !strings.HasPrefix(s.Shown(), want) || len(s.Shown()) != shownLen {
			t.Errorf("Shown() = %q, want %d characters after %q", s.Shown(), shownLen, want)
		}
	}
}

func TestParseRefusesWhatIsNoKey(t *testing.T) {
	good := Mint(false).Reveal()
	flip := func(i int) string {
		c := byte('a')
		if good[i] == 'a' {
			c = 'b'
		}
		return good[:i] + string(c) + good[i+1:]
	}
	for name, in := range map[string]string{
		"nothing":                       "",
		"blank":                         " ",
		"another prefix":                "wfx_" + good[prefixLen:],
		"an admin prefix on the same":   PrefixAdmin + good[prefixLen:],
		"upper case":                    strings.ToUpper(good),
		"one character short":           good[:len(good)-1],
		"one character more":            good + "a",
		"a first character changed":     flip(prefixLen),
		"a last secret character":       flip(prefixLen + secretLen - 1),
		"a changed checksum":            flip(len(good) - 1),
		"a space around it":             " " + good,
		"a digit base32 does not have":  good[:10] + "1" + good[11:],
		"a NUL inside":                  good[:10] + "\x00" + good[11:],
		"letters of more than one byte": good[:len(good)-2] + "é",
		"a sample from documentation":   "wfk_" + strings.Repeat("x", 58),
		"only the prefix":               PrefixOrganization,
	} {
		if _, err := Parse(in); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: Parse = %v, want ErrMalformed", name, err)
		}
	}
}

func TestSecretNeverPrintsItself(t *testing.T) {
	s := Mint(true)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if got := fmt.Sprintf(verb, s); got != "redacted" {
			t.Errorf("Sprintf(%q) shows something other than redacted", verb)
		}
	}
}

func TestKeyIsTakenFromHeadersOnly(t *testing.T) {
	for name, tc := range map[string]struct {
		header http.Header
		want   string
	}{
		"a bearer token":               {http.Header{"Authorization": {"Bearer abc"}}, "abc"},
		"a bearer token in lower case": {http.Header{"Authorization": {"bearer  abc "}}, "abc"},
		"the other header":             {http.Header{"X-Api-Key": {"abc"}}, "abc"},
		"basic credentials":            {http.Header{"Authorization": {"Basic abc"}}, ""},
		"no scheme":                    {http.Header{"Authorization": {"abc"}}, ""},
		"nothing":                      {http.Header{}, ""},
		"the same key twice":           {http.Header{"Authorization": {"Bearer abc"}, "X-Api-Key": {"abc"}}, "abc"},
		"a key beside basic":           {http.Header{"Authorization": {"Basic abc"}, "X-Api-Key": {"def"}}, "def"},
		"two headers that differ":      {http.Header{"Authorization": {"Bearer abc"}, "X-Api-Key": {"def"}}, ""},
		"two lines that differ":        {http.Header{"Authorization": {"Bearer abc", "Bearer def"}}, ""},
	} {
		if got := Presented(tc.header); got != tc.want {
			t.Errorf("%s: Presented = %q, want %q", name, got, tc.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("")
	f.Add(PrefixOrganization)
	f.Add(PrefixAdmin + strings.Repeat("a", secretLen+sumLen))
	f.Add(Mint(false).Reveal())
	f.Add(Mint(true).Reveal())
	f.Fuzz(func(t *testing.T, in string) {
		s, err := Parse(in)
		if err != nil {
			if !errors.Is(err, ErrMalformed) || s.text != "" {
				t.Errorf("Parse(%q) = %v with a secret", in, err)
			}
			return
		}
		// A key has one spelling: what parses is exactly what was minted.
		if s.Reveal() != in || len(in) != keyLen || checksum(in[:prefixLen+secretLen]) != in[prefixLen+secretLen:] {
			t.Errorf("Parse(%q) accepted another text than it keeps", in)
		}
	})
}

func FuzzPresented(f *testing.F) {
	f.Add("Bearer "+PrefixAdmin, "", "")
	f.Add("bearer  x ", "Bearer x", "x")
	f.Add("Basic x", "Bearer", "")
	f.Add("", "", "a\x00b")
	f.Fuzz(func(t *testing.T, first, second, own string) {
		h := http.Header{"Authorization": {first, second}, "X-Api-Key": {own}}
		key := Presented(h)
		if key == "" {
			return
		}
		// Whatever part of the way looks at only one of the headers must have seen this key or none.
		for _, value := range []string{first, second} {
			if scheme, other, _ := strings.Cut(value, " "); strings.EqualFold(scheme, "Bearer") && strings.TrimSpace(other) != key {
				t.Errorf("Presented(%q) = %q, but one header says %q", h, key, other)
			}
		}
		if own != "" && own != key {
			t.Errorf("Presented(%q) = %q, but X-Api-Key says %q", h, key, own)
		}
	})
}
