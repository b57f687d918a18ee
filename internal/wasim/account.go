package wasim

import (
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strings"
	"time"

	"go.mau.fi/whatsmeow/types"
)

// account is one number. The server's lock guards everything but the phone, which has its own.
type account struct {
	pn, lid    string // digits; user parts of the two addresses
	pushName   string
	phone      *Phone
	devices    map[uint16]*device
	nextDevice uint16
	blocked    map[string]bool     // numbers whose messages are swallowed
	hidden     bool                // what it sends shows its LID alone
	appState   map[string][][]byte // patches by collection; version n is at n-1
	// subscribers of the presence, with the address form they asked with.
	subscribers map[*device]jid
	// watchers asked for the device list, and with which address forms.
	watchers map[*device]addressForms

	limits  enforced
	heard   map[string]time.Time // when people's phones last wrote to it
	wrote   map[string]bool      // whom its companions wrote to
	trusted map[string]trust     // tokens that people gave it
}

// addressForms remembers how somebody addressed a user. Clients cache what they learn by the form they used.
type addressForms struct{ pn, lid bool }

// account finds or makes the account of a number. The caller holds the lock.
func (s *Server) account(pn string) *account {
	if a := s.byPN[pn]; a != nil {
		return a
	}
	a := &account{
		pn: pn, lid: "1" + strings.Repeat("0", max(0, 14-len(pn))) + pn, pushName: "Sim " + pn,
		devices: map[uint16]*device{}, nextDevice: 1, blocked: map[string]bool{}, appState: map[string][][]byte{},
		subscribers: map[*device]jid{}, watchers: map[*device]addressForms{},
		heard: map[string]time.Time{}, wrote: map[string]bool{}, trusted: map[string]trust{},
	}
	a.phone = newPhone(s, a)
	s.byPN[a.pn], s.byLID[a.lid] = a, a
	return a
}

// lookup finds the account of an address in either form, nil if there is none. The caller holds the lock.
func (s *Server) lookup(j jid) *account {
	if isLID(j) {
		return s.byLID[j.User]
	}
	return s.byPN[j.User]
}

// number is the number behind an address, or its user part if it belongs to nobody here. The caller holds the
// lock.
func (s *Server) number(j jid) string {
	if a := s.lookup(j); a != nil {
		return a.pn
	}
	return j.User
}

// jid is the address of a device of the account in one of the two forms.
func (a *account) jid(lid bool, dev uint16) jid {
	if lid {
		return jid{User: a.lid, Device: dev, Server: types.HiddenUserServer}
	}
	return jid{User: a.pn, Device: dev, Server: types.DefaultUserServer}
}

// deviceIDs are all devices in order, the phone (0) first.
func (a *account) deviceIDs() []uint16 {
	return append([]uint16{0}, sortedKeys(a.devices)...)
}

// companions are the paired devices in order.
func (a *account) companions() []*device {
	out := make([]*device, 0, len(a.devices))
	for _, id := range sortedKeys(a.devices) {
		out = append(out, a.devices[id])
	}
	return out
}

// addresses are the addresses of all devices.
func (a *account) addresses(lid bool) []jid {
	var out []jid
	for _, id := range a.deviceIDs() {
		out = append(out, a.jid(lid, id))
	}
	return out
}

// listHash is how clients and server compare device lists.
func listHash(list []jid) string {
	texts := make([]string, 0, len(list))
	for _, j := range list {
		texts = append(texts, j.ADString())
	}
	slices.Sort(texts)
	sum := sha256.Sum256([]byte(strings.Join(texts, "")))
	return "2:" + base64.RawStdEncoding.EncodeToString(sum[:6])
}

// validNumber tells whether pn looks like a number in international form without the plus.
func validNumber(pn string) bool {
	return len(pn) >= 5 && len(pn) <= 15 && pn[0] != '0' && strings.Trim(pn, "0123456789") == ""
}
