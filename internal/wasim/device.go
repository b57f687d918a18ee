package wasim

import (
	"cmp"

	"go.mau.fi/whatsmeow/proto/waWa6"
	"go.mau.fi/whatsmeow/types"
)

// lowPreKeys is the number of one-time keys left at which the server asks for more. Clients react below 5.
const lowPreKeys = 4

type preKey struct{ id, public []byte }

// device is one paired companion. The server's lock guards it.
type device struct {
	account  *account
	id       uint16 // 1 and up
	keyIndex uint32
	noiseKey []byte

	registration               []byte
	identity                   []byte
	signedID, signed, signedBy []byte // signed pre-key: id, public key, signature
	preKeys                    []preKey
	uploaded                   bool

	conn    *conn     // the present login, nil if offline
	queue   []pending // stanzas that the device has not acknowledged, in order
	last    *node     // the last message of a person, for Repeat
	syncing bool      // the first sync was started
	synced  bool      // it has the keys to app state

	presence string
}

// pending is a stanza that stays until the device acknowledges it: the offline queue and the redelivery in one.
type pending struct {
	tag, id     string
	from        jid
	participant jid
	stanza      node
}

func newDevice(a *account, id uint16, noiseKey []byte, reg *waWa6.ClientPayload_DevicePairingRegistrationData) *device {
	return &device{
		account: a, id: id, keyIndex: uint32(id), noiseKey: noiseKey,
		registration: reg.GetERegid(), identity: reg.GetEIdent(),
		signedID: reg.GetESkeyID(), signed: reg.GetESkeyVal(), signedBy: reg.GetESkeySig(),
	}
}

func (d *device) jid(lid bool) jid { return d.account.jid(lid, d.id) }

// deliver queues a stanza until it is acknowledged, and sends it if the device is there. The caller holds the
// lock.
func (d *device) deliver(n node) {
	d.queue = append(d.queue, pending{n.Tag, attrString(&n, "id"), attrJID(&n, "from"), attrJID(&n, "participant"), n})
	if n.Tag == KindMessage && attrString(&n, "category") != "peer" {
		d.last = &n
	}
	if d.conn != nil && d.conn.active {
		d.conn.send(n)
	}
}

// acked takes a stanza off the queue. The caller holds the lock.
func (d *device) acked(class, id string, from, participant jid) {
	for i := range d.queue {
		p := &d.queue[i]
		if p.tag == class && p.id == id && p.from == from && (participant.IsEmpty() || p.participant == participant) {
			d.queue = append(d.queue[:i], d.queue[i+1:]...)
			return
		}
	}
}

// unlink removes a companion and tells it, unless it asked for it itself: a client that logs out deletes its
// store at once and stumbles over a stream error that comes in between. The caller holds the lock.
func (s *Server) unlink(d *device, by string) {
	if d.account.devices[d.id] != d {
		return
	}
	delete(d.account.devices, d.id)
	for _, pn := range sortedKeys(s.byPN) {
		delete(s.byPN[pn].watchers, d)
		delete(s.byPN[pn].subscribers, d)
	}
	e := Entry{Kind: KindLogout, Session: d.account.pn, Device: d.id, Type: by}
	if d.conn != nil {
		e = d.conn.entry(e)
	}
	s.oracle.add(e)
	if d.conn != nil && by != "client" {
		d.conn.sendLast(node{Tag: "stream:error", Attrs: attrs{"code": "401"}, Content: []node{{Tag: "conflict", Attrs: attrs{"type": "device_removed"}}}}, "unlinked")
	}
	s.announceDevices(d, "remove")
}

// announceDevices tells everyone who knows the device list that it changed: what is "add" or "remove". The
// caller holds the lock.
func (s *Server) announceDevices(changed *device, what string) {
	a := changed.account
	var own []node
	for _, j := range a.addresses(false) {
		own = append(own, node{Tag: "device", Attrs: attrs{"jid": j}})
	}
	for _, w := range sortedKeysFunc(a.watchers, compareDevices) {
		if w == changed {
			continue
		}
		forms := a.watchers[w]
		if w.account == a {
			w.deliver(notification(a.jid(false, 0), "account_sync",
				node{Tag: "devices", Attrs: attrs{"dhash": listHash(a.addresses(false))}, Content: own}))
			forms.pn = false // account_sync covers the list by number, not the one by LID
		}
		// A client ignores the notification unless it has the list cached under exactly this address: one each.
		for _, lid := range []bool{false, true} {
			if (lid && !forms.lid) || (!lid && !forms.pn) {
				continue
			}
			w.deliver(notification(a.jid(lid, 0), "devices", node{
				Tag: what, Attrs: attrs{"device_hash": listHash(a.addresses(lid))}, Content: []node{
					{Tag: "device", Attrs: attrs{"jid": a.jid(lid, changed.id), "key-index": changed.keyIndex}},
					{Tag: "key-index-list", Attrs: attrs{"ts": unixNow()}},
				},
			}))
		}
	}
}

func compareDevices(a, b *device) int {
	return cmp.Or(cmp.Compare(a.account.pn, b.account.pn), cmp.Compare(a.id, b.id))
}

// notification is a stanza that the server sends on its own account or on a user's.
func notification(from jid, typ string, content ...node) node {
	return node{Tag: "notification", Attrs: attrs{"from": from, "type": typ, "id": stanzaID(), "t": unixNow()}, Content: content}
}

// bundle hands out what is needed to start a session with the device, with one one-time key while there are
// some. The caller holds the lock.
func (d *device) bundle() []node {
	var one *preKey
	if len(d.preKeys) > 0 {
		one, d.preKeys = &d.preKeys[0], d.preKeys[1:]
		if len(d.preKeys) == lowPreKeys {
			d.deliver(notification(types.ServerJID, "encrypt", node{Tag: "count", Attrs: attrs{"value": len(d.preKeys)}}))
		}
	}
	return bundleNodes(d.registration, d.identity, preKey{d.signedID, d.signed}, d.signedBy, one)
}

func bundleNodes(registration, identity []byte, signed preKey, signature []byte, one *preKey) []node {
	out := []node{
		{Tag: "registration", Content: registration},
		{Tag: "type", Content: []byte{5}},
		{Tag: "identity", Content: identity},
	}
	if one != nil {
		out = append(out, node{Tag: "key", Content: []node{{Tag: "id", Content: one.id}, {Tag: "value", Content: one.public}}})
	}
	return append(out, node{Tag: "skey", Content: []node{
		{Tag: "id", Content: signed.id}, {Tag: "value", Content: signed.public}, {Tag: "signature", Content: signature},
	}})
}
