package wasim

import (
	"context"
	"crypto/cipher"
	"errors"
	"fmt"
)

// maxFrame is the largest frame that three length bytes can announce.
const maxFrame = 1<<24 - 1

var (
	errBadIntro  = errors.New("not a client of this protocol")
	errFrameSize = errors.New("frame too large")
)

// byteSource yields what arrives, in pieces of any size.
type byteSource func(ctx context.Context) ([]byte, error)

// frameReader cuts a byte stream into frames: three bytes of length (big endian), then the payload. Clients may
// put several frames into one piece or one frame into several.
type frameReader struct {
	source byteSource
	buf    []byte
}

// take returns the next n bytes.
func (r *frameReader) take(ctx context.Context, n int) ([]byte, error) {
	for len(r.buf) < n {
		piece, err := r.source(ctx)
		if err != nil {
			return nil, err
		}
		r.buf = append(r.buf, piece...)
	}
	out := append([]byte(nil), r.buf[:n]...)
	r.buf = r.buf[n:]
	if len(r.buf) == 0 {
		r.buf = nil // an idle connection keeps no buffer
	}
	return out, nil
}

func (r *frameReader) next(ctx context.Context) ([]byte, error) {
	h, err := r.take(ctx, 3)
	if err != nil {
		return nil, err
	}
	return r.take(ctx, int(h[0])<<16|int(h[1])<<8|int(h[2]))
}

// intro reads what a client sends before its first frame: an optional routing hint ("ED", version, length,
// text), which does not count for the handshake, and the header "WA", protocol 6, dictionary 3, which does.
func (r *frameReader) intro(ctx context.Context) (header []byte, err error) {
	header, err = r.take(ctx, 4)
	if err != nil {
		return nil, err
	}
	if header[0] == 'E' && header[1] == 'D' {
		if _, err = r.next(ctx); err != nil {
			return nil, err
		}
		if header, err = r.take(ctx, 4); err != nil {
			return nil, err
		}
	}
	if string(header) != "WA\x06\x03" {
		return nil, fmt.Errorf("%w: header %x", errBadIntro, header)
	}
	return header, nil
}

// frame puts the length in front of the payload.
func frame(payload []byte) ([]byte, error) {
	n := len(payload)
	if n > maxFrame {
		return nil, fmt.Errorf("%w: %d bytes", errFrameSize, n)
	}
	out := make([]byte, 3+n)
	out[0], out[1], out[2] = byte(n>>16), byte(n>>8), byte(n)
	copy(out[3:], payload)
	return out, nil
}

// cipherState is one direction after the handshake: AES-GCM with a counter as nonce. Not safe for concurrent
// use; each direction has one goroutine.
type cipherState struct {
	aead    cipher.AEAD
	counter uint32
}

func (c *cipherState) seal(plain []byte) []byte {
	out := c.aead.Seal(nil, nonce(c.counter), plain, nil)
	c.counter++
	return out
}

func (c *cipherState) open(sealed []byte) ([]byte, error) {
	plain, err := c.aead.Open(nil, nonce(c.counter), sealed, nil)
	c.counter++
	return plain, err
}
