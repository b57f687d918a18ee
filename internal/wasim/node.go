package wasim

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	waBinary "go.mau.fi/whatsmeow/binary"
	"go.mau.fi/whatsmeow/types"
)

// Short names for what the wire is made of.
type (
	node  = waBinary.Node
	attrs = waBinary.Attrs
	jid   = types.JID
)

var errBadNode = errors.New("malformed stanza")

// decodeNode reads one decrypted stanza. The decoder was written for a trusted server and panics on some
// malformed input; a client is not trusted here, so a panic becomes an error.
func decodeNode(plain []byte) (n *node, err error) {
	defer func() {
		if r := recover(); r != nil {
			n, err = nil, fmt.Errorf("%w: %v", errBadNode, r)
		}
	}()
	if len(plain) == 0 {
		return nil, fmt.Errorf("%w: empty", errBadNode)
	}
	body, err := waBinary.Unpack(plain)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBadNode, err)
	}
	n, err = waBinary.Unmarshal(body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBadNode, err)
	}
	return n, nil
}

// attrString is the attribute as text, "" if it is missing or an address.
func attrString(n *node, key string) string {
	s, _ := n.Attrs[key].(string)
	return s
}

// attrJID is the attribute as an address, empty if it is missing or plain text.
func attrJID(n *node, key string) jid {
	j, _ := n.Attrs[key].(jid)
	return j
}

// attrInt is the attribute as a number, 0 if it is missing or something else. Stanzas made here may carry it
// as a number, received ones carry text.
func attrInt(n *node, key string) int {
	if i, ok := n.Attrs[key].(int); ok {
		return i
	}
	i, err := strconv.Atoi(attrString(n, key))
	if err != nil {
		return 0
	}
	return i
}

// firstChild returns the first child, or an empty node.
func firstChild(n *node) node {
	if kids := n.GetChildren(); len(kids) > 0 {
		return kids[0]
	}
	return node{}
}

// childBytes is the content of the named child, nil if it has none. Some clients send text where others send
// bytes.
func childBytes(n node, tag string) []byte {
	child := n.GetChildByTag(tag)
	switch v := child.Content.(type) {
	case []byte:
		return v
	case string:
		return []byte(v)
	}
	return nil
}

// withAttr returns a copy of the node with one attribute changed.
func withAttr(n node, key string, value any) node {
	a := maps.Clone(n.Attrs)
	if a == nil {
		a = attrs{}
	}
	a[key] = value
	n.Attrs = a
	return n
}

func isLID(j jid) bool { return j.Server == types.HiddenUserServer }

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

// stanzaID is an id as a phone makes them.
func stanzaID() string { return strings.ToUpper(hex.EncodeToString(randomBytes(10))) }

// unixNow is the present time as stanzas carry it: seconds.
func unixNow() string { return strconv.FormatInt(time.Now().Unix(), 10) }

// bigEndian returns the low n (at most 4) bytes of v.
func bigEndian(v uint32, n int) []byte {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], v)
	return b[4-n:]
}

// fromBigEndian reads up to 4 bytes; longer input counts as 0.
func fromBigEndian(b []byte) uint32 {
	if len(b) > 4 {
		return 0
	}
	var full [4]byte
	copy(full[4-len(b):], b)
	return binary.BigEndian.Uint32(full[:])
}
