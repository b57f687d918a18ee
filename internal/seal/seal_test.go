package seal

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestRing(t *testing.T) {
	old, cur := NewKey(), NewKey()
	before, err := NewRing(old)
	if err != nil {
		t.Fatal(err)
	}
	sealed := before.Seal("msg_1", []byte("hello"))
	ring, err := NewRing(cur, old)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := NewRing(NewKey())
	if err != nil {
		t.Fatal(err)
	}
	altered := bytes.Clone(sealed)
	altered[len(altered)-1] ^= 1
	for _, tc := range []struct {
		name   string
		ring   *Ring
		row    string
		sealed []byte
		want   []byte
		err    error
	}{
		{"the key that sealed it opens it", before, "msg_1", sealed, []byte("hello"), nil},
		{"a previous key still opens after rotation", ring, "msg_1", sealed, []byte("hello"), nil},
		{"another row does not open it", before, "msg_2", sealed, nil, ErrKey},
		{"another key does not open it", stranger, "msg_1", sealed, nil, ErrKey},
		{"altered bytes do not open", before, "msg_1", altered, nil, ErrKey},
		{"short bytes do not open", before, "msg_1", sealed[:5], nil, ErrKey},
		{"nothing stays nothing", before, "msg_1", nil, nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := tc.ring.Open(tc.row, tc.sealed)
			if !errors.Is(err, tc.err) || !bytes.Equal(got, tc.want) {
				t.Errorf("Open(%q) = %q, %v, want %q, %v", tc.row, got, err, tc.want, tc.err)
			}
		})
	}
	if bytes.Contains(sealed, []byte("hello")) {
		t.Error("sealed bytes hold the plaintext")
	}
}

func TestParseKey(t *testing.T) {
	k := NewKey()
	if got, err := ParseKey(k.Encode()); err != nil || got != k {
		t.Errorf("ParseKey(Encode()) = %v, %v", got, err)
	}
	for _, bad := range []string{"", "abc", "0000000000000000000000000000000000000000000000000000000000000000"} {
		if _, err := ParseKey(bad); err == nil {
			t.Errorf("ParseKey(%q) accepted", bad)
		}
	}
	if s := fmt.Sprint(k); s != "redacted" {
		t.Errorf("Sprint(key) = %q, want redacted", s)
	}
}

func TestLookupFindsWhatAPreviousKeyWrote(t *testing.T) {
	old, cur := NewKey(), NewKey()
	written := NewLookup(old).Hash("secret")
	for _, h := range NewLookup(cur, old).Hashes("secret") {
		if bytes.Equal(h, written) {
			return
		}
	}
	t.Error("no hash of the rotated lookup equals the one stored")
}

func FuzzParseKey(f *testing.F) {
	k := Key{1, 2, 3}
	for _, seed := range []string{"", " " + k.Encode() + "\n", strings.Repeat("A", 43), strings.Repeat("A", 43) + "=", strings.Repeat("0", 64), strings.Repeat("_-", 21) + "A", "é"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got, err := ParseKey(in)
		if (err != nil) != (got == Key{}) {
			t.Fatalf("ParseKey(%q) = %x, %v", in, got, err)
		}
		if err == nil {
			if again, err := ParseKey(got.Encode()); err != nil || again != got {
				t.Errorf("ParseKey(%q) = %x, whose own text reads %x, %v", in, got, again, err)
			}
		}
	})
}

func FuzzOpen(f *testing.F) {
	ring, err := NewRing(Key{1}, Key{2})
	if err != nil {
		f.Fatal(err)
	}
	old, err := NewRing(Key{2})
	if err != nil {
		f.Fatal(err)
	}
	const row = "msg_1"
	f.Add([]byte(nil), []byte("hello"))
	f.Add(ring.Seal(row, []byte("hello")), []byte{})
	f.Add(old.Seal(row, []byte{}), []byte{0})
	f.Fuzz(func(t *testing.T, foreign, plain []byte) {
		if got, err := ring.Open("msg_2", foreign); len(foreign) > 0 && (!errors.Is(err, ErrKey) || got != nil) {
			t.Errorf("Open of bytes that were not sealed for the row = %x, %v, want ErrKey", got, err)
		}
		if got, err := ring.Open(row, old.Seal(row, plain)); err != nil || !bytes.Equal(got, plain) {
			t.Errorf("Open(Seal(%x)) = %x, %v", plain, got, err)
		}
		sealed := ring.Seal(row, plain)
		for i, b := range foreign {
			sealed[i%len(sealed)] ^= b
		}
		if got, err := ring.Open(row, sealed); err == nil && !bytes.Equal(got, plain) {
			t.Errorf("altered bytes open as %x, sealed was %x", got, plain)
		}
	})
}
