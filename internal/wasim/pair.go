package wasim

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.mau.fi/libsignal/ecc"
	"go.mau.fi/whatsmeow/proto/waAdv"
	"go.mau.fi/whatsmeow/types"
	"google.golang.org/protobuf/proto"
)

// Errors of pairing that a caller may branch on.
var (
	ErrBadQR          = errors.New("not a pairing QR code")
	ErrQRExpired      = errors.New("unknown or expired QR code")
	ErrAlreadyPairing = errors.New("this connection is being paired already")
	ErrNoCodePending  = errors.New("no pairing by code is pending for this number")
)

// qrRefs is how many references a client gets; it shows one after the other and gives up after the last.
const qrRefs = 6

// pairing is a companion that was offered its signed identity and has not signed it yet.
type pairing struct {
	dev     *device
	request string
	details []byte
}

// offerPairing sends the references that a client puts into its QR codes. The caller holds the lock.
func (c *conn) offerPairing() {
	var refs []node
	for range qrRefs {
		ref := "2@" + base64.StdEncoding.EncodeToString(randomBytes(96))
		c.refs = append(c.refs, ref)
		c.srv.refs[ref] = c
		refs = append(refs, node{Tag: "ref", Content: []byte(ref)})
	}
	c.send(node{
		Tag: "iq", Attrs: attrs{"from": types.ServerJID, "type": "set", "id": c.nextID(), "xmlns": "md"},
		Content: []node{{Tag: "pair-device", Content: refs}},
	})
}

// ScanQR plays the user scanning the QR code of a client with this phone. It returns when the client has been
// offered the pairing; the client answers, gets a restart request and logs in.
func (p *Phone) ScanQR(ctx context.Context, qr string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if i := strings.IndexByte(qr, '#'); i >= 0 { // newer clients wrap it in a URL
		qr = qr[i+1:]
	}
	parts := strings.Split(strings.TrimSpace(qr), ",")
	if len(parts) < 4 {
		return ErrBadQR
	}
	var keys [3][]byte // noise key, identity key, secret
	for i := range keys {
		var err error
		if keys[i], err = base64.StdEncoding.DecodeString(parts[i+1]); err != nil || len(keys[i]) != 32 {
			return ErrBadQR
		}
	}
	s := p.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.refs[parts[0]]
	if c == nil {
		return ErrQRExpired
	}
	if !bytes.Equal(c.peer.static, keys[0]) || !bytes.Equal(c.reg.GetEIdent(), keys[1]) {
		return fmt.Errorf("%w: its keys are not those of the connection", ErrBadQR)
	}
	if p.passkey {
		c.send(notification(types.ServerJID, "passkey_prologue_request", node{Tag: "passkey_request_options", Content: []byte(
			`{"challenge":"` + base64.RawURLEncoding.EncodeToString(randomBytes(32)) + `","timeout":60000,"rpId":"web.whatsapp.com","allowCredentials":[],"userVerification":"required"}`)}))
		return nil
	}
	return s.offerIdentity(c, p.account, keys[2])
}

// offerIdentity signs the companion's identity with the phone's key and sends it. The secret, which went from
// the client to the phone past the server, proves the offer. The caller holds the lock.
func (s *Server) offerIdentity(c *conn, a *account, secret []byte) error {
	if c.paired != nil {
		return ErrAlreadyPairing
	}
	d := newDevice(a, a.nextDevice, c.peer.static, c.reg)
	a.nextDevice++
	e2ee := waAdv.ADVEncryptionType_E2EE.Enum()
	details, err := proto.Marshal(&waAdv.ADVDeviceIdentity{
		RawID: proto.Uint32(fromBigEndian(randomBytes(4))), Timestamp: proto.Uint64(uint64(time.Now().Unix())),
		KeyIndex: proto.Uint32(d.keyIndex), AccountType: e2ee, DeviceType: e2ee,
	})
	if err != nil {
		return err
	}
	identity := a.phone.identity
	signed, err := proto.Marshal(&waAdv.ADVSignedDeviceIdentity{
		Details: details, AccountSignatureKey: identity.Pub[:],
		AccountSignature: sign(identity, concat([]byte{6, 0}, details, d.identity)),
	})
	if err != nil {
		return err
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write(signed)
	box, err := proto.Marshal(&waAdv.ADVSignedDeviceIdentityHMAC{Details: signed, HMAC: mac.Sum(nil)})
	if err != nil {
		return err
	}
	c.paired = &pairing{dev: d, request: c.nextID(), details: details}
	c.send(node{
		Tag: "iq", Attrs: attrs{"from": types.ServerJID, "type": "set", "id": c.paired.request, "xmlns": "md", "t": unixNow()},
		Content: []node{{Tag: "pair-success", Content: []node{
			{Tag: "device-identity", Content: box},
			{Tag: "device", Attrs: attrs{"jid": d.jid(false), "lid": d.jid(true)}},
			{Tag: "platform", Attrs: attrs{"name": "android"}},
		}}},
	})
	return nil
}

// finishPairing handles the client's answer to the offer. The caller holds the lock.
func (s *Server) finishPairing(c *conn, n *node) {
	p := c.paired
	if attrString(n, "type") == "error" {
		s.log.LogAttrs(c.life, slog.LevelWarn, "pairing refused by client", slog.Int64("conn", c.seq))
		c.paired = nil
		return
	}
	box := n.GetChildByTag("pair-device-sign")
	var signed waAdv.ADVSignedDeviceIdentity
	if err := proto.Unmarshal(childBytes(box, "device-identity"), &signed); err != nil || !p.signedBy(signed.GetDeviceSignature()) {
		s.log.LogAttrs(c.life, slog.LevelWarn, "device signature does not verify", slog.Int64("conn", c.seq))
		c.drop("bad signature")
		return
	}
	a := p.dev.account
	a.devices[p.dev.id] = p.dev
	s.remember(c.origin, a.pn)
	e := c.entry(Entry{Kind: KindPair})
	e.Session, e.Device = a.pn, p.dev.id
	s.oracle.add(e)
	s.announceDevices(p.dev, "add")
	c.sendLast(node{Tag: "stream:error", Attrs: attrs{"code": "515"}}, "paired") // restart: the client logs in
}

func (p *pairing) signedBy(signature []byte) bool {
	if len(signature) != 64 || len(p.dev.identity) != 32 {
		return false
	}
	account := p.dev.account.phone.identity.Pub[:]
	msg := concat([]byte{6, 1}, p.details, p.dev.identity, account)
	return ecc.VerifySignature(ecc.NewDjbECPublicKey([32]byte(p.dev.identity)), msg, [64]byte(signature))
}

func concat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
