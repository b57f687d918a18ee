package wasim

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"go.mau.fi/whatsmeow/proto/waWa6"
	"go.mau.fi/whatsmeow/util/keys"
	"google.golang.org/protobuf/proto"
)

// noisePattern is exactly as long as a hash, so it is the first hash itself.
const noisePattern = "Noise_XX_25519_AESGCM_SHA256\x00\x00\x00\x00"

var errHandshake = errors.New("noise handshake")

// noiseState is the responder's half of Noise_XX_25519_AESGCM_SHA256.
type noiseState struct {
	hash, salt []byte
	aead       cipher.AEAD
	counter    uint32
}

func newNoiseState(prologue []byte) (*noiseState, error) {
	h := []byte(noisePattern)
	aead, err := newGCM(h)
	if err != nil {
		return nil, err
	}
	n := &noiseState{hash: h, salt: h, aead: aead}
	n.mixHash(prologue)
	return n, nil
}

func (n *noiseState) mixHash(data []byte) {
	sum := sha256.New()
	sum.Write(n.hash)
	sum.Write(data)
	n.hash = sum.Sum(nil)
}

func (n *noiseState) seal(plain []byte) []byte {
	out := n.aead.Seal(nil, nonce(n.counter), plain, n.hash)
	n.counter++
	n.mixHash(out)
	return out
}

func (n *noiseState) open(sealed []byte) ([]byte, error) {
	plain, err := n.aead.Open(nil, nonce(n.counter), sealed, n.hash)
	if err != nil {
		return nil, err
	}
	n.counter++
	n.mixHash(sealed)
	return plain, nil
}

// expand derives two keys of 32 bytes from the chaining key and new material.
func (n *noiseState) expand(material []byte) (first, second []byte, err error) {
	out, err := hkdf.Key(sha256.New, material, n.salt, "", 64)
	if err != nil {
		return nil, nil, err
	}
	return out[:32], out[32:], nil
}

func (n *noiseState) mixDH(private *keys.KeyPair, public []byte) error {
	shared, err := sharedSecret(private, public)
	if err != nil {
		return err
	}
	salt, key, err := n.expand(shared)
	if err != nil {
		return err
	}
	n.salt, n.counter = salt, 0
	n.aead, err = newGCM(key)
	return err
}

// peer is what a finished handshake tells about the client.
type peer struct {
	static  []byte // the client's Noise key, which authenticates a login
	payload *waWa6.ClientPayload
	in, out *cipherState
}

// handshake runs the server's side: reads with r, writes whole frames with write.
func handshake(ctx context.Context, r *frameReader, write func(context.Context, []byte) error, ca *authority) (*peer, error) {
	header, err := r.intro(ctx)
	if err != nil {
		return nil, err
	}
	n, err := newNoiseState(header)
	if err != nil {
		return nil, err
	}
	hello, err := readHandshake(ctx, r)
	if err != nil {
		return nil, err
	}
	theirs := hello.GetClientHello().GetEphemeral()
	if len(theirs) != 32 {
		return nil, fmt.Errorf("%w: ephemeral key of %d bytes", errHandshake, len(theirs))
	}
	n.mixHash(theirs)
	ephemeral := keys.NewKeyPair()
	n.mixHash(ephemeral.Pub[:])
	if err = n.mixDH(ephemeral, theirs); err != nil {
		return nil, fmt.Errorf("%w: %w", errHandshake, err)
	}
	static := n.seal(ca.static.Pub[:])
	if err = n.mixDH(ca.static, theirs); err != nil {
		return nil, fmt.Errorf("%w: %w", errHandshake, err)
	}
	answer, err := proto.Marshal(&waWa6.HandshakeMessage{ServerHello: &waWa6.HandshakeMessage_ServerHello{
		Ephemeral: ephemeral.Pub[:], Static: static, Payload: n.seal(ca.chain),
	}})
	if err != nil {
		return nil, err
	}
	if err = write(ctx, answer); err != nil {
		return nil, err
	}
	return finishHandshake(ctx, r, n, ephemeral)
}

func finishHandshake(ctx context.Context, r *frameReader, n *noiseState, ephemeral *keys.KeyPair) (*peer, error) {
	msg, err := readHandshake(ctx, r)
	if err != nil {
		return nil, err
	}
	static, err := n.open(msg.GetClientFinish().GetStatic())
	if err != nil {
		return nil, fmt.Errorf("%w: client key: %w", errHandshake, err)
	}
	if err = n.mixDH(ephemeral, static); err != nil {
		return nil, fmt.Errorf("%w: %w", errHandshake, err)
	}
	plain, err := n.open(msg.GetClientFinish().GetPayload())
	if err != nil {
		return nil, fmt.Errorf("%w: client payload: %w", errHandshake, err)
	}
	p := &peer{static: static, payload: &waWa6.ClientPayload{}}
	if err = proto.Unmarshal(plain, p.payload); err != nil {
		return nil, fmt.Errorf("%w: client payload: %w", errHandshake, err)
	}
	read, write, err := n.expand(nil)
	if err != nil {
		return nil, err
	}
	p.in, p.out = &cipherState{}, &cipherState{}
	if p.in.aead, err = newGCM(read); err != nil {
		return nil, err
	}
	p.out.aead, err = newGCM(write)
	return p, err
}

func readHandshake(ctx context.Context, r *frameReader) (*waWa6.HandshakeMessage, error) {
	raw, err := r.next(ctx)
	if err != nil {
		return nil, err
	}
	var msg waWa6.HandshakeMessage
	if err = proto.Unmarshal(raw, &msg); err != nil {
		return nil, fmt.Errorf("%w: %w", errHandshake, err)
	}
	return &msg, nil
}

// sharedSecret is X25519. It refuses keys of the wrong length and points of low order.
func sharedSecret(private *keys.KeyPair, public []byte) ([]byte, error) {
	priv, err := ecdh.X25519().NewPrivateKey(private.Priv[:])
	if err != nil {
		return nil, err
	}
	pub, err := ecdh.X25519().NewPublicKey(public)
	if err != nil {
		return nil, err
	}
	return priv.ECDH(pub)
}

func newGCM(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

func nonce(counter uint32) []byte {
	b := make([]byte, 12)
	binary.BigEndian.PutUint32(b[8:], counter)
	return b
}
