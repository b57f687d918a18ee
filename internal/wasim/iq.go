package wasim

import (
	"log/slog"

	"go.mau.fi/whatsmeow/types"
)

// handle takes one stanza of a client.
func (s *Server) handle(c *conn, n *node) {
	if n.Tag == "iq" {
		s.request(c, n)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.dev == nil {
		return // unpaired connections have nothing but requests
	}
	switch n.Tag {
	case KindMessage:
		s.counts.Messages++
		s.message(c, n)
		return
	case KindReceipt:
		s.counts.Receipts++
		s.oracle.add(s.inEntry(c, n))
		s.receipt(c, n)
		return
	case "xmlstreamend":
		return
	}
	s.oracle.add(s.inEntry(c, n))
	switch n.Tag {
	case "ib":
		if _, ok := n.GetOptionalChildByTag("offline_batch"); ok {
			c.flush()
			c.dev.account.phone.companionActive(c.dev)
		}
	case KindAck:
		c.dev.acked(attrString(n, "class"), attrString(n, "id"), attrJID(n, "to"), attrJID(n, "participant"))
	case "presence":
		s.presence(c, n)
	case "chatstate":
		s.chatState(c, n)
	default:
		s.log.LogAttrs(c.life, slog.LevelDebug, "stanza not handled", slog.String("tag", n.Tag))
	}
}

// request handles an iq. Every request gets an answer, or the client would wait for more than a minute.
func (s *Server) request(c *conn, n *node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := attrString(n, "type"); t == "result" || t == "error" {
		if c.paired != nil && attrString(n, "id") == c.paired.request {
			s.finishPairing(c, n)
		}
		return
	}
	s.counts.Requests++
	kind, namespace := firstChild(n), attrString(n, "xmlns")
	if namespace == "w:p" { // keepalive: empty from whatsmeow, <ping/> from others
		if !s.faults.has(c.session(), "", func(f *Fault) bool { return f.MutePings }) {
			c.reply(n)
		}
		return
	}
	s.oracle.add(s.inEntry(c, n))
	switch {
	case namespace == "md" && kind.Tag == "link_code_companion_reg":
		s.linkRequest(c, n, kind)
	case c.dev == nil:
		c.replyError(n, 401, "not-authorized")
	default:
		s.accountRequest(c, n, namespace, kind)
	}
}

// accountRequest handles a request of a logged-in companion. The caller holds the lock.
func (s *Server) accountRequest(c *conn, n *node, namespace string, kind node) {
	switch namespace {
	case "passive":
		c.reply(n)
		if kind.Tag == "active" {
			c.flush()
			c.dev.account.phone.companionActive(c.dev)
		}
	case "encrypt":
		s.keyRequest(c, n, kind)
	case "usync":
		s.usync(c, n, kind)
	case "w:sync:app:state":
		s.appStateRequest(c, n, kind)
	case "md":
		c.reply(n)
		if kind.Tag == "remove-companion-device" {
			j := attrJID(&kind, "jid")
			if d := c.dev.account.devices[j.Device]; d == c.dev {
				s.unlink(d, "client")
			} else if d != nil {
				s.unlink(d, "companion")
			}
		}
	case "privacy":
		if attrString(n, "type") == "get" {
			c.reply(n, privacySettings())
			return
		}
		c.reply(n)
	case "blocklist":
		c.reply(n, node{Tag: "list", Attrs: attrs{"dhash": "0"}})
	case "abt":
		c.reply(n, node{Tag: "props", Attrs: attrs{"protocol": "1", "refresh": "86400", "refresh_id": "1", "hash": "sim"}})
	case "w:profile:picture":
		c.replyError(n, 404, "item-not-found")
	default: // statistics, dirty bits, push registration, status, disappearing mode and so on
		s.log.LogAttrs(c.life, slog.LevelDebug, "request answered empty", slog.String("xmlns", namespace))
		c.reply(n)
	}
}

func privacySettings() node {
	var all []node
	for _, name := range []string{"readreceipts", "profile", "status", "online", "last", "groupadd", "calladd", "messages", "defense", "stickers"} {
		all = append(all, node{Tag: "category", Attrs: attrs{"name": name, "value": "all"}})
	}
	return node{Tag: "privacy", Content: all}
}

// reply answers a request.
func (c *conn) reply(request *node, content ...node) {
	r := response(request, "result")
	if len(content) > 0 {
		r.Content = content
	}
	c.send(r)
}

// replyError answers a request with a failure.
func (c *conn) replyError(request *node, code int, text string) {
	r := response(request, "error")
	r.Content = []node{{Tag: "error", Attrs: attrs{"code": code, "text": text}}}
	c.send(r)
}

// response comes from where the request went to, with the same id: clients match both.
func response(request *node, typ string) node {
	r := node{Tag: "iq", Attrs: attrs{"from": types.ServerJID, "type": typ, "id": request.Attrs["id"]}}
	if to := attrJID(request, "to"); !to.IsEmpty() {
		r.Attrs["from"] = to
	}
	return r
}
