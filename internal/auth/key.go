package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"slices"
	"strings"
)

// What a key begins with.
const (
	PrefixOrganization = "wfk_"
	PrefixAdmin        = "wfa_"
	PrefixInvite       = "wfp_" // the token of a pairing link
)

const (
	prefixLen = 4
	secretLen = 52 // 256 bits in base32
	sumLen    = 6  // 30 bits
	shownLen  = 10 // of the key, kept in clear so that people can tell keys apart
	keyLen    = prefixLen + secretLen + sumLen
)

// ErrMalformed says that the text is no key at all.
var ErrMalformed = errors.New("not an API key")

// alphabet is lower-case base32 without padding: letters and digits only, so a double click takes
// the whole key.
var alphabet = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Secret is a whole key as its holder presents it. It prints as "redacted"; Reveal gives the text.
type Secret struct{ text string }

// String hides the key.
func (Secret) String() string { return "redacted" }

// GoString hides the key from %#v too.
func (Secret) GoString() string { return "redacted" }

// Reveal is the key itself, for the one place that shows it.
func (s Secret) Reveal() string { return s.text }

// Shown is the beginning of the key that may be stored and displayed.
func (s Secret) Shown() string {
	if len(s.text) < shownLen {
		return ""
	}
	return s.text[:shownLen]
}

// Admin reports whether the key claims to be an admin's.
func (s Secret) Admin() bool { return strings.HasPrefix(s.text, PrefixAdmin) }

// Mint makes a new key. It is known to nobody and valid nowhere until Create stores its hashes.
func Mint(admin bool) Secret {
	if admin {
		return mint(PrefixAdmin)
	}
	return mint(PrefixOrganization)
}

func mint(prefix string) Secret {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails: crypto/rand ends the process instead
	body := prefix + alphabet.EncodeToString(raw[:])
	return Secret{body + checksum(body)}
}

// Parse reads a key as somebody presents it. It says only that the text has the form of a key.
func Parse(s string) (Secret, error) {
	return parse(s, PrefixOrganization, PrefixAdmin)
}

func parse(s string, prefixes ...string) (Secret, error) {
	if len(s) != keyLen || !slices.Contains(prefixes, s[:prefixLen]) {
		return Secret{}, ErrMalformed
	}
	body := s[:prefixLen+secretLen]
	raw, err := alphabet.DecodeString(body[prefixLen:])
	if err != nil || alphabet.EncodeToString(raw) != body[prefixLen:] || checksum(body) != s[prefixLen+secretLen:] {
		return Secret{}, ErrMalformed
	}
	return Secret{s}, nil
}

// parseForeign reads the key of another gateway, which may look like anything that fits into a header.
// There are such keys only under an earlier LOOKUP_KEY, and none is an admin's.
func parseForeign(s string) (Secret, error) {
	if len(s) < 16 || len(s) > 256 || strings.HasPrefix(s, PrefixAdmin) || strings.HasPrefix(s, PrefixInvite) {
		return Secret{}, ErrMalformed
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return Secret{}, ErrMalformed
		}
	}
	return Secret{s}, nil
}

// checksum catches typing and cutting errors; it is no secret and proves nothing.
func checksum(body string) string {
	sum := sha256.Sum256([]byte("wafleet key checksum\x00" + body))
	return alphabet.EncodeToString(sum[:])[:sumLen]
}
