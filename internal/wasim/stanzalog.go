package wasim

// logOut logs a stanza that leaves for a client. Answers to requests are not logged.
func (s *Server) logOut(c *conn, n *node) {
	e := Entry{Dir: DirOut, Kind: n.Tag, ID: attrString(n, "id"), Type: attrString(n, "type")}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.Sender, e.Recipient = s.number(attrJID(n, "from")), c.session()
	switch n.Tag {
	case "iq":
		return
	case "success", "failure":
		return // logged when it was decided
	case "stream:error":
		e.Kind, e.Error = KindStream, attrInt(n, "code")
		if typ := n.GetChildByTag("conflict"); typ.Tag != "" {
			e.Type = attrString(&typ, "type")
		}
		e.Sender, e.Recipient = "", ""
	case KindAck:
		e.Type, e.Error = attrString(n, "class"), attrInt(n, "error")
	case KindMessage:
		s.describeMessage(&e, n)
		if r := attrJID(n, "recipient"); !r.IsEmpty() {
			e.Recipient = s.number(r) // a copy for the sender's other devices
		}
	case KindReceipt:
		e.Retry = retryCount(n)
	}
	s.oracle.add(c.entry(e))
}

// inEntry describes a stanza of a client. The caller holds the lock.
func (s *Server) inEntry(c *conn, n *node) Entry {
	e := c.entry(Entry{Dir: DirIn, Kind: n.Tag, ID: attrString(n, "id"), Type: attrString(n, "type"), Sender: c.session()})
	if to := attrJID(n, "to"); to.User != "" {
		e.Recipient = s.number(to)
	}
	switch n.Tag {
	case KindMessage:
		s.describeMessage(&e, n)
	case KindReceipt:
		e.Retry = retryCount(n)
	case KindAck:
		e.Type = attrString(n, "class")
	case KindRequest:
		e.Type = attrString(n, "xmlns")
	}
	return e
}

// logIgnored logs a stanza that counts for nothing.
func (s *Server) logIgnored(c *conn, n *node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.inEntry(c, n)
	e.Kind, e.Type = KindIgnored, n.Tag
	s.oracle.add(e)
}

func (s *Server) describeMessage(e *Entry, n *node) {
	if attrString(n, "category") == "peer" {
		e.Type = "peer"
	}
	for tag, token := range map[string]string{"tctoken": "tc", "cstoken": "cs"} {
		if _, ok := n.GetOptionalChildByTag(tag); ok {
			e.Token = token
		}
	}
	for _, enc := range n.GetChildrenByTag("enc") {
		e.Retry = max(e.Retry, attrInt(&enc, "count"))
	}
}

func retryCount(n *node) int {
	r := n.GetChildByTag("retry")
	return attrInt(&r, "count")
}
