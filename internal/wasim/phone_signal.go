package wasim

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"go.mau.fi/libsignal/ecc"
	"go.mau.fi/libsignal/keys/identity"
	"go.mau.fi/libsignal/keys/prekey"
	"go.mau.fi/libsignal/protocol"
	"go.mau.fi/libsignal/session"
	"go.mau.fi/libsignal/util/optional"
	"go.mau.fi/whatsmeow/proto/waE2E"
	"go.mau.fi/whatsmeow/store"
	"google.golang.org/protobuf/proto"
)

var (
	errPadding    = errors.New("bad padding")
	errBundle     = errors.New("bad key bundle")
	errEncryption = errors.New("unknown kind of ciphertext")
)

var serializer = store.SignalProtobufSerializer

// bundle hands out what is needed to start a session with the phone. It needs no lock.
func (p *Phone) bundle() []node {
	d := p.signal
	one, err := d.PreKeys.GenOnePreKey(p.srv.life) // in memory: never fails, never waits
	if err != nil {
		return nil
	}
	return bundleNodes(bigEndian(d.RegistrationID, 4), d.IdentityKey.Pub[:],
		preKey{bigEndian(d.SignedPreKey.KeyID, 3), d.SignedPreKey.Pub[:]}, d.SignedPreKey.Signature[:],
		&preKey{bigEndian(one.KeyID, 3), one.Pub[:]})
}

// byNumber turns an address into the form under which the phone keeps all its sessions.
func (p *Phone) byNumber(j jid) jid {
	p.srv.mu.Lock()
	defer p.srv.mu.Unlock()
	if a := p.srv.lookup(j); a != nil {
		return a.jid(false, j.Device)
	}
	return j
}

// decrypt opens the ciphertext of one message stanza.
func (p *Phone) decrypt(ctx context.Context, sender jid, n *node) (*waE2E.Message, error) {
	p.cipher.Lock()
	defer p.cipher.Unlock()
	enc, ok := n.GetOptionalChildByTag("enc")
	if !ok {
		return nil, fmt.Errorf("%w: none", errEncryption)
	}
	sealed, _ := enc.Content.([]byte)
	address := sender.SignalAddress()
	ratchet := session.NewCipher(session.NewBuilderFromSignal(p.signal, address, serializer), address)
	var padded []byte
	switch typ := attrString(&enc, "type"); typ {
	case "pkmsg":
		m, err := protocol.NewPreKeySignalMessageFromBytes(sealed, serializer.PreKeySignalMessage, serializer.SignalMessage)
		if err != nil {
			return nil, err
		}
		if padded, err = ratchet.DecryptMessage(ctx, m); err != nil {
			return nil, err
		}
	case "msg":
		m, err := protocol.NewSignalMessageFromBytes(sealed, serializer.SignalMessage)
		if err != nil {
			return nil, err
		}
		if padded, err = ratchet.Decrypt(ctx, m); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("%w: %q", errEncryption, typ)
	}
	plain, err := unpad(padded)
	if err != nil {
		return nil, err
	}
	var msg waE2E.Message
	if err = proto.Unmarshal(plain, &msg); err != nil {
		return nil, err
	}
	return &msg, nil
}

// encrypt makes the ciphertext for one device. Without a session, or if it is to be fresh, it takes a bundle of
// the device from the server first.
func (p *Phone) encrypt(ctx context.Context, to jid, msg *waE2E.Message, fresh bool) (node, error) {
	plain, err := proto.Marshal(msg)
	if err != nil {
		return node{}, err
	}
	p.cipher.Lock()
	defer p.cipher.Unlock()
	to = p.byNumber(to)
	address := to.SignalAddress()
	builder := session.NewBuilderFromSignal(p.signal, address, serializer)
	has, err := p.signal.ContainsSession(ctx, address)
	if err != nil {
		return node{}, err
	}
	if !has || fresh {
		p.srv.mu.Lock()
		content := p.srv.bundleOf(to)
		p.srv.mu.Unlock()
		bundle, err := parseBundle(uint32(to.Device), node{Content: content})
		if err != nil {
			return node{}, fmt.Errorf("keys of device %d: %w", to.Device, err)
		}
		if err = builder.ProcessBundle(ctx, bundle); err != nil {
			return node{}, err
		}
	}
	sealed, err := session.NewCipher(builder, address).Encrypt(ctx, pad(plain))
	if err != nil {
		return node{}, err
	}
	typ := "msg"
	if sealed.Type() == protocol.PREKEY_TYPE {
		typ = "pkmsg"
	}
	return node{Tag: "enc", Attrs: attrs{"v": "2", "type": typ}, Content: sealed.Serialize()}, nil
}

func parseBundle(device uint32, n node) (*prekey.Bundle, error) {
	skey := n.GetChildByTag("skey")
	signed, signature, id := childBytes(skey, "value"), childBytes(skey, "signature"), childBytes(n, "identity")
	if len(signed) != 32 || len(signature) != 64 || len(id) != 32 {
		return nil, errBundle
	}
	oneID, one := optional.NewEmptyUint32(), ecc.ECPublicKeyable(nil)
	if k, ok := n.GetOptionalChildByTag("key"); ok {
		value := childBytes(k, "value")
		if len(value) != 32 {
			return nil, errBundle
		}
		oneID, one = optional.NewOptionalUint32(fromBigEndian(childBytes(k, "id"))), ecc.NewDjbECPublicKey([32]byte(value))
	}
	return prekey.NewBundle(fromBigEndian(childBytes(n, "registration")), device, oneID, fromBigEndian(childBytes(skey, "id")),
		one, ecc.NewDjbECPublicKey([32]byte(signed)), [64]byte(signature), identity.NewKey(ecc.NewDjbECPublicKey([32]byte(id)))), nil
}

// pad appends 1 to 15 bytes that say how many they are.
func pad(b []byte) []byte {
	n := randomBytes(1)[0] & 15
	if n == 0 {
		n = 15
	}
	return append(b, bytes.Repeat([]byte{n}, int(n))...)
}

func unpad(b []byte) ([]byte, error) {
	if len(b) == 0 || int(b[len(b)-1]) > len(b) {
		return nil, errPadding
	}
	return b[:len(b)-int(b[len(b)-1])], nil
}
