package wasim

import "time"

// keyRequest handles pre-keys: counting, upload, rotation and handing out. The caller holds the lock.
func (s *Server) keyRequest(c *conn, n *node, kind node) {
	d := c.dev
	switch {
	case kind.Tag == "count":
		count := len(d.preKeys)
		if s.opts.FewKeys && !d.uploaded {
			count = 1
		}
		c.reply(n, node{Tag: "count", Attrs: attrs{"value": count}})
	case kind.Tag == "digest": // some clients compare it with what they have, and upload again if it differs
		c.reply(n, node{Tag: "digest", Content: bundleNodes(d.registration, d.identity, preKey{d.signedID, d.signed}, d.signedBy, nil)})
	case kind.Tag == "rotate":
		d.takeSignedKey(kind)
		c.reply(n)
	case kind.Tag == "key":
		s.handOutKeys(c, n, kind)
	case attrString(n, "type") == "set":
		d.takeUpload(n)
		c.reply(n)
	default:
		c.reply(n)
	}
}

func (d *device) takeUpload(n *node) {
	d.uploaded = true
	if r := childBytes(*n, "registration"); len(r) == 4 {
		d.registration = r
	}
	d.takeSignedKey(*n)
	list := n.GetChildByTag("list")
	for _, k := range list.GetChildren() {
		if id, public := childBytes(k, "id"), childBytes(k, "value"); len(id) == 3 && len(public) == 32 {
			d.preKeys = append(d.preKeys, preKey{id, public})
		}
	}
}

func (d *device) takeSignedKey(n node) {
	sk := n.GetChildByTag("skey")
	id, public, signature := childBytes(sk, "id"), childBytes(sk, "value"), childBytes(sk, "signature")
	if len(id) == 3 && len(public) == 32 && len(signature) == 64 {
		d.signedID, d.signed, d.signedBy = id, public, signature
	}
}

// handOutKeys answers in the address form asked for: clients look for exactly that.
func (s *Server) handOutKeys(c *conn, n *node, kind node) {
	users := kind.GetChildren()
	late := time.Duration(0)
	for _, u := range users {
		number := s.number(attrJID(&u, "jid"))
		f, _ := s.faults.find(c.session(), number, func(f *Fault) bool { return f.KeyLatency > 0 }, nil)
		late = max(late, f.KeyLatency)
		if f, ok := s.faults.find(c.session(), number, func(f *Fault) bool { return f.KeyFetch != 0 }, nil); ok {
			if f.KeyFetch > 0 {
				c.replyError(n, f.KeyFetch, failureText(f.KeyFetch))
			}
			return
		}
	}
	var out []node
	for _, u := range users {
		j := attrJID(&u, "jid")
		answer := node{Tag: "user", Attrs: attrs{"jid": j}}
		if b := s.bundleOf(j); b != nil {
			answer.Content = b
		} else {
			answer.Content = []node{{Tag: "error", Attrs: attrs{"code": 404, "text": "item-not-found"}}}
		}
		out = append(out, answer)
	}
	answer := response(n, "result")
	answer.Content = []node{{Tag: "list", Content: out}}
	c.sendAfter(answer, late)
}

// bundleOf returns the bundle of any device, nil if there is none. The caller holds the lock.
func (s *Server) bundleOf(j jid) []node {
	a := s.lookup(j)
	switch {
	case a == nil:
		return nil
	case j.Device == 0:
		return a.phone.bundle()
	case a.devices[j.Device] != nil:
		return a.devices[j.Device].bundle()
	}
	return nil
}

func failureText(code int) string {
	if code == 429 {
		return "rate-overlimit"
	}
	return "error"
}
