// Package seal encrypts columns at rest and hashes secrets for lookup.
//
// A Ring holds DATA_KEY and the keys before it. Sealed bytes are
//
//	key id (4) | nonce (12) | AES-256-GCM ciphertext and tag
//
// with the row's id as additional data, so a sealed value can't be moved to another row. The
// package does no I/O and never logs what it holds.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
)

// KeySize is the length of DATA_KEY and LOOKUP_KEY in bytes.
const KeySize = 32

const (
	idSize    = 4
	nonceSize = 12
)

// ErrKey says that the bytes were sealed under a key that is not in the ring, or were altered, or belong to
// another row.
var ErrKey = errors.New("sealed value does not open: wrong key, altered bytes or another row")

// Key is 32 secret bytes. It prints as "redacted".
type Key [KeySize]byte

// String hides the key.
func (Key) String() string { return "redacted" }

// LogValue hides the key.
func (Key) LogValue() slog.Value { return slog.StringValue("redacted") }

// NewKey returns a random key.
func NewKey() Key {
	var k Key
	_, _ = rand.Read(k[:])
	return k
}

// Encode writes a key as 64 hex digits, the form ParseKey reads.
func (k Key) Encode() string { return hex.EncodeToString(k[:]) }

// ParseKey reads 64 hex digits or base64 (padded or not) of 32 bytes.
func ParseKey(s string) (Key, error) {
	var k Key
	s = strings.TrimSpace(s)
	for _, decode := range []func(string) ([]byte, error){
		hex.DecodeString, base64.StdEncoding.DecodeString, base64.RawStdEncoding.DecodeString, base64.RawURLEncoding.DecodeString,
	} {
		if b, err := decode(s); err == nil && len(b) == KeySize {
			copy(k[:], b)
			if k == (Key{}) {
				return Key{}, errors.New("key is all zeros")
			}
			return k, nil
		}
	}
	return Key{}, errors.New("key must be 32 bytes as 64 hex digits or base64")
}

// Ring seals under one key and opens under several.
type Ring struct {
	current [idSize]byte
	aeads   map[[idSize]byte]cipher.AEAD
}

// NewRing returns a ring that seals under current and also opens what previous keys sealed.
func NewRing(current Key, previous ...Key) (*Ring, error) {
	r := &Ring{aeads: map[[idSize]byte]cipher.AEAD{}}
	for i, k := range append([]Key{current}, previous...) {
		block, err := aes.NewCipher(k[:])
		if err != nil {
			return nil, fmt.Errorf("data key %d: %w", i, err)
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			return nil, fmt.Errorf("data key %d: %w", i, err)
		}
		id := keyID(k)
		if i == 0 {
			r.current = id
		}
		r.aeads[id] = aead
	}
	return r, nil
}

func keyID(k Key) [idSize]byte {
	sum := sha256.Sum256(append([]byte("wafleet data key id\x00"), k[:]...))
	return [idSize]byte(sum[:idSize])
}

// Seal encrypts plaintext for one row. Nil stays nil, so an absent value stays absent.
func (r *Ring) Seal(rowID string, plaintext []byte) []byte {
	if plaintext == nil {
		return nil
	}
	out := make([]byte, idSize+nonceSize, idSize+nonceSize+len(plaintext)+16)
	copy(out, r.current[:])
	_, _ = rand.Read(out[idSize:])
	return r.aeads[r.current].Seal(out, out[idSize:], plaintext, []byte(rowID))
}

// Open decrypts what Seal made for the same row. Nil and empty give nil.
func (r *Ring) Open(rowID string, sealed []byte) ([]byte, error) {
	if len(sealed) == 0 {
		return nil, nil
	}
	if len(sealed) < idSize+nonceSize {
		return nil, ErrKey
	}
	aead, ok := r.aeads[[idSize]byte(sealed[:idSize])]
	if !ok {
		return nil, ErrKey
	}
	plain, err := aead.Open([]byte{}, sealed[idSize:idSize+nonceSize], sealed[idSize+nonceSize:], []byte(rowID))
	if err != nil {
		return nil, ErrKey
	}
	return plain, nil
}

// Lookup hashes secrets so that rows can be found by them: HMAC-SHA256 under LOOKUP_KEY.
type Lookup struct{ keys []Key }

// NewLookup returns a Lookup that writes under current and also finds what previous keys wrote.
func NewLookup(current Key, previous ...Key) *Lookup {
	return &Lookup{keys: append([]Key{current}, previous...)}
}

// Rotated reports whether there are keys before the current one.
func (l *Lookup) Rotated() bool { return len(l.keys) > 1 }

// Knows reports whether k is among the keys.
func (l *Lookup) Knows(k Key) bool { return slices.Contains(l.keys, k) }

// Hash returns the hash to store.
func (l *Lookup) Hash(secret string) []byte { return l.hash(l.keys[0], secret) }

// Hashes returns every hash under which the secret may be stored, newest first.
func (l *Lookup) Hashes(secret string) [][]byte {
	out := make([][]byte, len(l.keys))
	for i, k := range l.keys {
		out[i] = l.hash(k, secret)
	}
	return out
}

func (*Lookup) hash(k Key, secret string) []byte {
	m := hmac.New(sha256.New, k[:])
	m.Write([]byte(secret))
	return m.Sum(nil)
}
