package wasim

const (
	presenceAvailable   = "available"
	presenceUnavailable = "unavailable"
)

// presence handles push name, subscription and coming and going. The caller holds the lock.
func (s *Server) presence(c *conn, n *node) {
	if name := attrString(n, "name"); name != "" {
		c.dev.account.pushName = name
	}
	switch typ := attrString(n, "type"); typ {
	case "subscribe":
		to := attrJID(n, "to")
		a := s.lookup(to)
		if a == nil {
			return
		}
		a.subscribers[c.dev] = to
		c.send(presenceNode(to, a.presence()))
	case presenceAvailable, presenceUnavailable:
		s.setPresence(c.dev, typ)
	}
}

// setPresence tells subscribers, if it changed. The caller holds the lock.
func (s *Server) setPresence(d *device, presence string) {
	if d.presence == presence {
		return
	}
	d.presence = presence
	a := d.account
	for _, w := range sortedKeysFunc(a.subscribers, compareDevices) {
		if w.conn != nil {
			w.conn.send(presenceNode(a.subscribers[w], presence))
		}
	}
}

func (a *account) presence() string {
	for _, d := range a.companions() {
		if d.presence == presenceAvailable {
			return presenceAvailable
		}
	}
	return presenceUnavailable
}

func presenceNode(from jid, presence string) node {
	n := node{Tag: "presence", Attrs: attrs{"from": from, "type": presence}}
	if presence == presenceUnavailable {
		n.Attrs["last"] = unixNow()
	}
	return n
}

// chatState forwards typing to who is online; it is never queued. The caller holds the lock.
func (s *Server) chatState(c *conn, n *node) {
	to := attrJID(n, "to")
	a := s.lookup(to)
	if a == nil || a == c.dev.account {
		return
	}
	for _, d := range a.companions() {
		if d.conn != nil {
			d.conn.send(node{Tag: "chatstate", Attrs: attrs{"from": c.dev.account.jid(isLID(to), 0)}, Content: n.Content})
		}
	}
}
