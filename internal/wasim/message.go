package wasim

import "time"

// message takes a message stanza: relay, ack, log. The caller holds the lock.
func (s *Server) message(c *conn, n *node) {
	e := s.inEntry(c, n)
	to := attrJID(n, "to")
	ack := node{Tag: KindAck, Attrs: attrs{"class": "message", "id": n.Attrs["id"], "from": to, "t": unixNow()}}
	fate, code, swallowed := ackNormal, 0, false
	if e.Type != "peer" { // faults concern what people send, not what devices of one account tell each other
		if fate, code = s.faults.forMessage(c.session(), e.Recipient); fate != ackRefused {
			if code, swallowed = s.enforce(c.dev.account, s.lookup(to), n); code != 0 {
				fate = ackRefused
			}
		}
	}
	if fate == ackRefused {
		e.Error = code
		s.oracle.add(e)
		ack.Attrs["error"] = code
		c.sendAfter(ack, s.recipientLatency(c, e.Recipient))
		return
	}
	var r relayed
	if !swallowed {
		r = s.relay(c.dev.account, c.dev.id, n)
	}
	e.Relayed = r.reached
	s.oracle.add(e)
	switch fate {
	case ackLost:
	case ackClosed:
		c.drop("before ack")
	default:
		if r.listHash != "" && n.Attrs["phash"] != r.listHash {
			ack.Attrs["phash"] = r.listHash // the client forgets its device lists
		}
		c.sendAfter(ack, s.recipientLatency(c, e.Recipient))
	}
}

// recipientLatency is what a fault scoped to the recipient adds; latency of the session is added to everything.
func (s *Server) recipientLatency(c *conn, recipient string) (extra time.Duration) {
	if recipient == "" {
		return 0
	}
	return max(0, s.faults.latency(c.session(), recipient)-s.faults.latency(c.session(), ""))
}

// relayed is the outcome of a relay.
type relayed struct {
	reached  bool   // a device of the recipient was given something
	listHash string // set if the sender did not know all devices: the hash over those it should know
}

// parcel is a message stanza taken apart.
type parcel struct {
	to       jid
	stanza   *node
	from     *account
	fromDev  uint16
	order    []jid        // devices as the sender listed them, in PN form
	encs     map[jid]node // ciphertext by device, in PN form
	direct   *node        // ciphertext without a list: for the one device that "to" names
	identity *node        // the sender's signed identity, for devices that start a session
	extra    []node
}

// relay fans a message out to the devices that it has ciphertext for; fromDev 0 is the phone. The server looks
// at ids for nothing: a message that comes twice goes out twice. The caller holds the lock.
func (s *Server) relay(from *account, fromDev uint16, n *node) relayed {
	p := s.unpack(from, fromDev, n)
	target := s.lookup(p.to)
	if target == nil {
		return relayed{}
	}
	if p.direct != nil { // to one device: between own devices, or sent again after a retry receipt
		return relayed{reached: s.hand(target, p.to.Device, p, *p.direct) && target != from}
	}
	var r relayed
	for _, j := range p.order {
		a := s.byPN[j.User]
		if a != target && a != from || a == from && j.Device == fromDev {
			continue // a stale mapping, or the sending device itself
		}
		if s.hand(a, j.Device, p, p.encs[j]) && a == target {
			r.reached = true
		}
	}
	r.listHash = p.missingDevices(target)
	return r
}

func (s *Server) unpack(from *account, fromDev uint16, n *node) *parcel {
	p := &parcel{to: attrJID(n, "to"), stanza: n, from: from, fromDev: fromDev, encs: map[jid]node{}}
	kids := n.GetChildren()
	for i := range kids {
		switch k := &kids[i]; k.Tag {
		case "participants":
			for _, t := range k.GetChildren() {
				j := attrJID(&t, "jid")
				enc, ok := t.GetOptionalChildByTag("enc")
				if a := s.lookup(j); a != nil && ok {
					pn := a.jid(false, j.Device)
					p.order, p.encs[pn] = append(p.order, pn), enc
				}
			}
		case "enc":
			p.direct = k
		case "device-identity":
			p.identity = k
		case "tctoken", "cstoken": // between client and server only
		default:
			p.extra = append(p.extra, *k)
		}
	}
	return p
}

// missingDevices returns the hash over all devices of both sides if the sender had no ciphertext for one.
func (p *parcel) missingDevices(target *account) string {
	sides := []*account{target}
	if target != p.from {
		sides = append(sides, p.from)
	}
	var all []jid
	stale := false
	for _, a := range sides {
		for _, dev := range a.deviceIDs() {
			all = append(all, a.jid(isLID(p.to), dev))
			if _, ok := p.encs[a.jid(false, dev)]; !ok && (a != p.from || dev != p.fromDev) {
				stale = true
			}
		}
	}
	if !stale {
		return ""
	}
	return listHash(all)
}

// hand gives one device its copy. False means that there is no such device or the recipient has blocked the
// sender: the sender is not told.
func (s *Server) hand(a *account, dev uint16, p *parcel, enc node) bool {
	if a.blocked[p.from.pn] {
		return false
	}
	m := s.copyFor(a, p, enc)
	if dev == 0 {
		a.phone.receive(m)
		return true
	}
	d := a.devices[dev]
	if d == nil {
		return false
	}
	d.deliver(m)
	return true
}

// copyFor builds the stanza that a device gets. The other address form goes along: it is how clients learn
// which LID belongs to which number.
func (s *Server) copyFor(a *account, p *parcel, enc node) node {
	n, lid := p.stanza, isLID(p.to)
	hidden := p.from.hidden && a != p.from
	lid = lid || hidden
	at := attrs{"id": n.Attrs["id"], "t": unixNow(), "type": n.Attrs["type"], "notify": p.from.pushName, "from": p.from.jid(lid, p.fromDev)}
	for _, k := range []string{"edit", "category", "push_priority"} {
		if v, ok := n.Attrs[k]; ok {
			at[k] = v
		}
	}
	switch {
	case hidden: // nobody is told the number
	case lid:
		at["sender_pn"] = p.from.jid(false, 0)
	default:
		at["sender_lid"] = p.from.jid(true, 0)
	}
	if a == p.from && attrString(n, "category") != "peer" { // a copy for the sender's other devices
		chat := p.to
		if r := attrJID(n, "recipient"); p.direct != nil && !r.IsEmpty() {
			chat = r
		}
		at["recipient"] = chat.ToNonAD()
		if other := s.lookup(chat); other != nil && isLID(chat) {
			at["peer_recipient_pn"] = other.jid(false, 0)
		} else if other != nil {
			at["peer_recipient_lid"] = other.jid(true, 0)
		}
	}
	content := []node{enc}
	if attrString(&enc, "type") == "pkmsg" && p.identity != nil {
		content = append(content, *p.identity)
	}
	return node{Tag: KindMessage, Attrs: at, Content: append(content, p.extra...)}
}
