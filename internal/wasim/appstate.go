package wasim

import (
	"go.mau.fi/whatsmeow/proto/waServerSync"
	"google.golang.org/protobuf/proto"
)

// The server keeps app state as patches that it cannot read: settings, here mostly the push name.

// appStateRequest answers fetches and takes uploads. The caller holds the lock.
func (s *Server) appStateRequest(c *conn, n *node, kind node) {
	a := c.dev.account
	var out []node
	for _, col := range kind.GetChildren() {
		name, have := attrString(&col, "name"), attrInt(&col, "version")
		current := len(a.appState[name])
		answer := node{Tag: "collection", Attrs: attrs{"name": name, "version": current}}
		patch := childBytes(col, "patch")
		switch {
		case patch != nil && have != current:
			answer.Attrs["type"] = "error"
			answer.Content = []node{{Tag: "error", Attrs: attrs{"code": 409, "text": "conflict"}}, a.patches(name, have)}
		case patch != nil:
			if err := s.addPatch(a, name, patch, c.dev); err != nil {
				answer.Attrs["type"] = "error"
				answer.Content = []node{{Tag: "error", Attrs: attrs{"code": 400, "text": "bad-request"}}}
				break
			}
			answer.Attrs["version"] = current + 1
		default:
			e := Entry{Kind: KindAppState, Dir: DirIn, Type: name}
			if have == 0 {
				e.Text = "full"
			}
			s.oracle.add(c.entry(e))
			if current > have {
				answer.Content = []node{s.spoiled(c.session(), a.patches(name, have))}
			}
		}
		out = append(out, answer)
	}
	c.reply(n, node{Tag: "sync", Content: out})
}

// patches are those newer than the given version.
func (a *account) patches(name string, version int) node {
	all := a.appState[name]
	var out []node
	for _, b := range all[min(max(0, version), len(all)):] {
		out = append(out, node{Tag: "patch", Content: b})
	}
	return node{Tag: "patches", Content: out}
}

// spoiled applies BadPatches: the last patch no longer fits the state that it claims to lead to.
func (s *Server) spoiled(session string, patches node) node {
	_, bad := s.faults.find(session, "", func(f *Fault) bool { return f.BadPatches != 0 }, func(f *Fault) {
		f.BadPatches = max(f.BadPatches-1, min(f.BadPatches, 0))
	})
	all := patches.GetChildren()
	if !bad || len(all) == 0 {
		return patches
	}
	var patch waServerSync.SyncdPatch
	raw, _ := all[len(all)-1].Content.([]byte)
	if err := proto.Unmarshal(raw, &patch); err != nil || len(patch.SnapshotMAC) == 0 {
		return patches // not one that a client can check
	}
	patch.SnapshotMAC[0] ^= 1
	raw, err := proto.Marshal(&patch)
	if err != nil {
		return patches
	}
	all[len(all)-1].Content = raw
	return patches
}

// addPatch stores a patch and tells the other companions that have the keys to read it. Clients upload patches
// without their version; the server writes it in. The caller holds the lock.
func (s *Server) addPatch(a *account, name string, raw []byte, from *device) error {
	var patch waServerSync.SyncdPatch
	if err := proto.Unmarshal(raw, &patch); err != nil {
		return err
	}
	version := len(a.appState[name]) + 1
	patch.Version = &waServerSync.SyncdVersion{Version: proto.Uint64(uint64(version))}
	stamped, err := proto.Marshal(&patch)
	if err != nil {
		return err
	}
	a.appState[name] = append(a.appState[name], stamped)
	for _, d := range a.companions() {
		// One that has no keys yet fetches everything when it gets them; told earlier it would fail for good.
		if d != from && d.synced {
			d.deliver(notification(a.jid(false, 0), "server_sync", node{Tag: "collection", Attrs: attrs{"name": name, "version": version}}))
		}
	}
	return nil
}
