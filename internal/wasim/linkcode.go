package wasim

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/pbkdf2"
	"crypto/sha256"
	"log/slog"
	"regexp"
	"strings"

	"go.mau.fi/whatsmeow/types"
	"go.mau.fi/whatsmeow/util/keys"
)

// codeRounds is the cost of turning a typed code into a key.
const codeRounds = 131072

// wrappedKeySize is salt 32, iv 16, encrypted public key 32.
const wrappedKeySize = 80

// linkPairing is a pairing by phone code. The user types on the phone what the client shows; each side wraps
// its ephemeral key with the code, and the bundle that the client then sends proves that both used the same.
type linkPairing struct {
	wrapped   []byte // the client's ephemeral key under its code
	ref       []byte
	companion []byte // the client's ephemeral key, once the code was typed
	ephemeral *keys.KeyPair
	account   *account
}

var displayName = regexp.MustCompile(`^\w[\w ]* \(\w[\w ]*\)$`)

// linkRequest handles both requests of the client. The caller holds the lock.
func (s *Server) linkRequest(c *conn, n *node, lc node) {
	if c.reg == nil {
		c.replyError(n, 400, "bad-request")
		return
	}
	switch attrString(&lc, "stage") {
	case "companion_hello":
		number := attrJID(&lc, "jid").User
		wrapped := childBytes(lc, "link_code_pairing_wrapped_companion_ephemeral_pub")
		// WhatsApp takes no other form of display name than "Browser (OS)", and answers 400.
		if len(wrapped) != wrappedKeySize || !validNumber(number) || !displayName.Match(childBytes(lc, "companion_platform_display")) {
			c.replyError(n, 400, "bad-request")
			return
		}
		if f, ok := s.faults.find(number, "", func(f *Fault) bool { return f.LinkCode > 0 }, nil); ok {
			c.replyError(n, f.LinkCode, failureText(f.LinkCode))
			return
		}
		c.link = &linkPairing{wrapped: wrapped, ref: randomBytes(16)}
		s.codes[number] = c
		c.reply(n, node{Tag: "link_code_companion_reg", Attrs: attrs{"stage": "companion_hello"}, Content: []node{
			{Tag: "link_code_pairing_ref", Content: c.link.ref},
		}})
	case "companion_finish":
		secret, err := c.link.open(childBytes(lc, "link_code_pairing_ref"), childBytes(lc, "link_code_pairing_wrapped_key_bundle"), c.reg.GetEIdent())
		if err != nil { // a wrong code ends here
			s.log.LogAttrs(c.life, slog.LevelWarn, "pairing code refused", slog.Int64("conn", c.seq), slog.Any("err", err))
			c.replyError(n, 400, "bad-request")
			return
		}
		c.reply(n)
		if err = s.offerIdentity(c, c.link.account, secret); err != nil {
			s.log.LogAttrs(c.life, slog.LevelWarn, "pairing by code", slog.Int64("conn", c.seq), slog.Any("err", err))
		}
	default:
		c.replyError(n, 400, "bad-request")
	}
}

// open checks the client's key bundle (salt 32, nonce 12, AES-GCM of its identity, the phone's and a random) and
// derives the pairing secret.
func (l *linkPairing) open(ref, bundle, identity []byte) ([]byte, error) {
	if l == nil || l.ephemeral == nil || !bytes.Equal(l.ref, ref) || len(bundle) < 44 {
		return nil, ErrNoCodePending
	}
	shared, err := sharedSecret(l.ephemeral, l.companion)
	if err != nil {
		return nil, err
	}
	key, err := hkdf.Key(sha256.New, shared, bundle[:32], "link_code_pairing_key_bundle_encryption_key", 32)
	if err != nil {
		return nil, err
	}
	aead, err := newGCM(key)
	if err != nil {
		return nil, err
	}
	plain, err := aead.Open(nil, bundle[32:44], bundle[44:], nil)
	if err != nil {
		return nil, err
	}
	if len(plain) != 96 || !bytes.Equal(plain[:32], identity) {
		return nil, ErrNoCodePending
	}
	identities, err := sharedSecret(l.account.phone.identity, plain[:32])
	if err != nil {
		return nil, err
	}
	return hkdf.Key(sha256.New, concat(shared, identities, plain[64:]), nil, "adv_secret", 32)
}

// EnterCode plays the user typing the pairing code that a client shows for this number; dashes and case do not
// matter. A wrong code is noticed by the server only when the client goes on, so it is no error here.
func (p *Phone) EnterCode(ctx context.Context, code string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	code = strings.ReplaceAll(strings.ToUpper(strings.TrimSpace(code)), "-", "")
	s := p.srv
	s.mu.Lock()
	c := s.codes[p.account.pn]
	var l *linkPairing
	if c != nil {
		l = c.link
	}
	s.mu.Unlock()
	if l == nil {
		return ErrNoCodePending
	}
	// The slow derivations run without the lock.
	companion, err := underCode(code, l.wrapped[:32], l.wrapped[32:48], l.wrapped[48:])
	if err != nil {
		return err
	}
	ephemeral, salt, iv := keys.NewKeyPair(), randomBytes(32), randomBytes(16)
	wrapped, err := underCode(code, salt, iv, ephemeral.Pub[:])
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.link != l {
		return ErrNoCodePending
	}
	l.companion, l.ephemeral, l.account = companion, ephemeral, p.account
	c.send(notification(types.ServerJID, "link_code_companion_reg", node{
		Tag: "link_code_companion_reg", Attrs: attrs{"stage": "primary_hello"}, Content: []node{
			{Tag: "link_code_pairing_wrapped_primary_ephemeral_pub", Content: concat(salt, iv, wrapped)},
			{Tag: "primary_identity_pub", Content: p.identity.Pub[:]},
			{Tag: "link_code_pairing_ref", Content: l.ref},
		},
	}))
	return nil
}

// underCode encrypts or decrypts (it is the same) a key with a code.
func underCode(code string, salt, iv, in []byte) ([]byte, error) {
	key, err := pbkdf2.Key(sha256.New, code, salt, codeRounds, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	out := make([]byte, len(in))
	cipher.NewCTR(block, iv).XORKeyStream(out, in)
	return out, nil
}
