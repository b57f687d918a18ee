package wasim

import (
	"strings"

	"go.mau.fi/whatsmeow/types"
)

// usync answers what clients ask about users: devices, LIDs, whether they exist. The caller holds the lock.
func (s *Server) usync(c *conn, n *node, kind node) {
	query, list := kind.GetChildByTag("query"), kind.GetChildByTag("list")
	asked := map[string]bool{}
	var result, users []node
	for _, q := range query.GetChildren() {
		if !asked[q.Tag] {
			result = append(result, node{Tag: q.Tag})
		}
		asked[q.Tag] = true
	}
	for _, u := range list.GetChildren() {
		users = append(users, s.usyncUser(c, u, asked))
	}
	c.reply(n, node{
		Tag:   "usync",
		Attrs: attrs{"sid": kind.Attrs["sid"], "mode": kind.Attrs["mode"], "index": "0", "last": "true", "context": kind.Attrs["context"]},
		Content: []node{
			{Tag: "result", Content: result},
			{Tag: "list", Content: users},
		},
	})
}

// usyncUser answers for one user, in the address form asked for: clients cache by it.
func (s *Server) usyncUser(c *conn, u node, asked map[string]bool) node {
	j, byNumber := attrJID(&u, "jid"), []byte(nil)
	if j.IsEmpty() { // "+5511900000001", with or without "@c.us"
		byNumber = childBytes(u, "contact")
		number := strings.TrimPrefix(strings.TrimSuffix(string(byNumber), "@c.us"), "+")
		if own, ok := s.forms[number]; ok {
			number = own
		}
		j = jid{User: number, Server: types.DefaultUserServer}
	}
	a := s.lookup(j)
	var out []node
	if asked["contact"] {
		contact := node{Tag: "contact", Attrs: attrs{"type": "out"}}
		if a != nil {
			contact.Attrs["type"] = "in"
		}
		if byNumber != nil {
			contact.Content = byNumber
		}
		out = append(out, contact)
	}
	if a != nil {
		if asked["devices"] {
			out = append(out, a.deviceList())
			forms := a.watchers[c.dev]
			forms.lid, forms.pn = forms.lid || isLID(j), forms.pn || !isLID(j)
			a.watchers[c.dev] = forms
		}
		if asked["lid"] && !isLID(j) {
			out = append(out, node{Tag: "lid", Attrs: attrs{"val": a.jid(true, 0)}})
		}
		if asked["status"] {
			out = append(out, node{Tag: "status", Attrs: attrs{"t": unixNow()}, Content: []byte("simulated")})
		}
		if asked["picture"] {
			out = append(out, node{Tag: "picture", Attrs: attrs{"id": "1"}})
		}
	}
	if byNumber != nil && a != nil {
		// Who asks by number is told both addresses, in the server's own digits.
		return node{Tag: "user", Attrs: attrs{"jid": a.jid(true, 0), "pn_jid": a.jid(false, 0)}, Content: out}
	}
	return node{Tag: "user", Attrs: attrs{"jid": j.ToNonAD()}, Content: out}
}

// deviceList names the phone too: clients count on it. Companions without a key index would be skipped.
func (a *account) deviceList() node {
	list := []node{{Tag: "device", Attrs: attrs{"id": 0}}}
	for _, d := range a.companions() {
		list = append(list, node{Tag: "device", Attrs: attrs{"id": int(d.id), "key-index": d.keyIndex}})
	}
	return node{Tag: "devices", Content: []node{
		{Tag: "device-list", Content: list},
		{Tag: "key-index-list", Attrs: attrs{"ts": unixNow()}},
	}}
}
