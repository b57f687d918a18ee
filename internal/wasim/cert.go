package wasim

import (
	"fmt"

	"go.mau.fi/libsignal/ecc"
	"go.mau.fi/whatsmeow/proto/waCert"
	"go.mau.fi/whatsmeow/util/keys"
	"google.golang.org/protobuf/proto"
)

// authority is the server's certificate chain: a root that clients trust, an intermediate and the leaf, whose
// key is the server's Noise static key.
type authority struct {
	root, intermediate, static *keys.KeyPair
	chain                      []byte // waCert.CertChain
}

func newAuthority() (*authority, error) {
	a := &authority{root: keys.NewKeyPair(), intermediate: keys.NewKeyPair(), static: keys.NewKeyPair()}
	intermediate, err := certificate(1, 0, a.intermediate.Pub[:], a.root)
	if err != nil {
		return nil, err
	}
	leaf, err := certificate(2, 1, a.static.Pub[:], a.intermediate)
	if err != nil {
		return nil, err
	}
	a.chain, err = proto.Marshal(&waCert.CertChain{Intermediate: intermediate, Leaf: leaf})
	if err != nil {
		return nil, fmt.Errorf("encode certificate chain: %w", err)
	}
	return a, nil
}

// certificate is valid from 1970 for longer than any clock: simulated time starts in 2000.
func certificate(serial, issuer uint32, key []byte, signer *keys.KeyPair) (*waCert.CertChain_NoiseCertificate, error) {
	details, err := proto.Marshal(&waCert.CertChain_NoiseCertificate_Details{
		Serial: proto.Uint32(serial), IssuerSerial: proto.Uint32(issuer), Key: key,
		NotBefore: proto.Uint64(1), NotAfter: proto.Uint64(1 << 40),
	})
	if err != nil {
		return nil, fmt.Errorf("encode certificate %d: %w", serial, err)
	}
	return &waCert.CertChain_NoiseCertificate{Details: details, Signature: sign(signer, details)}, nil
}

// sign makes an XEdDSA signature, as everything signed in this protocol has.
func sign(k *keys.KeyPair, msg []byte) []byte {
	s := ecc.CalculateSignature(ecc.NewDjbECPrivateKey(*k.Priv), msg)
	return s[:]
}
