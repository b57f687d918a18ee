package wasim

import (
	"bytes"
	"encoding/base64"
	"strconv"

	"go.mau.fi/whatsmeow/proto/waWa6"
	"go.mau.fi/whatsmeow/types"
)

// begin follows the handshake: a registration gets QR references, a login is checked. The caller holds the lock.
func (c *conn) begin(payload *waWa6.ClientPayload) {
	s := c.srv
	if reg := payload.GetDevicePairingData(); reg != nil {
		c.reg = reg
		if c.refusesLogin() {
			return
		}
		c.offerPairing()
		return
	}
	pn := strconv.FormatUint(payload.GetUsername(), 10)
	d := s.companion(pn, uint16(payload.GetDevice()))
	if d == nil || !bytes.Equal(d.noiseKey, c.peer.static) {
		e := c.entry(Entry{Kind: KindFailure, Error: 401, Session: pn, Device: uint16(payload.GetDevice()), Type: "unknown device"})
		s.oracle.add(e)
		c.sendLast(failure(401), "refused")
		return
	}
	c.dev = d
	s.remember(c.origin, pn)
	if s.faults.has(pn, "", func(f *Fault) bool { return f.RefuseDials }) {
		// Not a bare drop: whatsmeow has a race between the end of the handshake and a close that no stanza precedes.
		s.oracle.add(c.entry(Entry{Kind: KindDial, Error: 1}))
		c.sendLast(failure(503), "refused")
		return
	}
	if c.refusesLogin() {
		return
	}
	s.oracle.add(c.entry(Entry{Kind: KindLogin}))
	if d.conn != nil {
		d.conn.sendLast(conflict("replaced"), "replaced")
	}
	d.conn = c
	c.send(node{Tag: "success", Attrs: attrs{
		"t": unixNow(), "props": "27", "companion_enc_static": base64.StdEncoding.EncodeToString(randomBytes(32)),
		"creation": unixNow(), "location": "sim", "lid": d.jid(true), "display_name": d.account.pushName,
		"abprops": "1", "group_abprops": "1",
	}})
	c.send(d.offlinePreview())
}

// refusesLogin applies ConnectFailure. The caller holds the lock.
func (c *conn) refusesLogin() bool {
	f, ok := c.srv.faults.find(c.session(), "", func(f *Fault) bool { return f.ConnectFailure != 0 }, nil)
	if !ok {
		return false
	}
	n := failure(f.ConnectFailure)
	if f.ConnectFailure == 402 {
		n.Attrs["code"], n.Attrs["expire"] = f.BanCode, int(f.BanExpire.Seconds())
	}
	c.srv.oracle.add(c.entry(Entry{Kind: KindFailure, Error: f.ConnectFailure}))
	c.sendLast(n, "refused")
	return true
}

func failure(reason int) node {
	return node{Tag: "failure", Attrs: attrs{"reason": reason, "location": "sim"}}
}

// offlinePreview tells what is coming once the client goes active.
func (d *device) offlinePreview() node {
	count := map[string]int{}
	for i := range d.queue {
		count[d.queue[i].tag]++
	}
	return node{Tag: "ib", Attrs: attrs{"from": types.ServerJID}, Content: []node{{Tag: "offline_preview", Attrs: attrs{
		"count": len(d.queue), "appdata": 0, "message": count["message"], "notification": count["notification"],
		"receipt": count["receipt"], "call": 0,
	}}}}
}

// flush delivers the offline queue, once per connection. The stanzas stay queued until they are acknowledged.
// The caller holds the lock.
func (c *conn) flush() {
	if c.active || c.dev == nil || c.dev.conn != c {
		return
	}
	c.active = true
	for i := range c.dev.queue {
		c.send(withAttr(c.dev.queue[i].stanza, "offline", strconv.Itoa(i)))
	}
	// Some clients stay in a buffering state until they get this.
	c.send(node{Tag: "ib", Attrs: attrs{"from": types.ServerJID}, Content: []node{{Tag: "offline", Attrs: attrs{"count": len(c.dev.queue)}}}})
}
