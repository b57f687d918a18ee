package wasim

// receipt acknowledges a receipt, takes its messages off the queue and forwards it. The caller holds the lock.
func (s *Server) receipt(c *conn, n *node) {
	to, participant := attrJID(n, "to"), attrJID(n, "participant")
	ids := []string{attrString(n, "id")}
	list := n.GetChildByTag("list")
	for _, item := range list.GetChildren() {
		ids = append(ids, attrString(&item, "id"))
	}
	// whatsmeow answers a message with a receipt and no ack, and one that it can't decrypt with a retry receipt and an
	// ack, which may come after the copy that the receipt has asked for.
	if attrString(n, "type") != "retry" {
		for _, id := range ids {
			c.dev.acked(KindMessage, id, to, participant)
		}
	}
	ack := attrs{"class": "receipt", "id": n.Attrs["id"], "from": to}
	for _, k := range []string{"type", "participant"} {
		if v, ok := n.Attrs[k]; ok {
			ack[k] = v
		}
	}
	c.send(node{Tag: KindAck, Attrs: ack})
	s.forwardReceipt(c.dev.account, c.dev.id, n)
}

// forwardReceipt brings a receipt of a device (0 is the phone) to whom it is addressed. The caller holds the lock.
func (s *Server) forwardReceipt(from *account, fromDev uint16, n *node) {
	to, typ := attrJID(n, "to"), attrString(n, "type")
	target := s.lookup(to)
	if target == nil {
		return
	}
	at := attrs{"id": n.Attrs["id"], "t": unixNow(), "from": from.jid(isLID(to), fromDev)}
	if typ != "" {
		at["type"] = typ
	}
	if typ == "read" || typ == "played" { // these speak for the user, not for the device
		at["from"] = from.jid(isLID(to), 0)
	}
	if r, ok := n.Attrs["recipient"]; ok {
		at["recipient"] = r
	}
	out := node{Tag: KindReceipt, Attrs: at, Content: n.Content}
	switch typ {
	case "retry", "enc_rekey_retry", "peer_msg", "hist_sync", "server-error": // for the one device
		if to.Device == 0 {
			target.phone.receive(out)
		} else if d := target.devices[to.Device]; d != nil {
			d.deliver(out)
		}
	default: // for all devices of the user
		target.phone.receive(out)
		for _, d := range target.companions() {
			if target != from || d.id != fromDev {
				d.deliver(out)
			}
		}
	}
}
