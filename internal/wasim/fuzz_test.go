package wasim

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	waBinary "go.mau.fi/whatsmeow/binary"
	"go.mau.fi/whatsmeow/proto/waWa6"
	"go.mau.fi/whatsmeow/types"
)

// pieces yields the input in pieces of a size, then EOF.
func pieces(data []byte, size int) byteSource {
	return func(context.Context) ([]byte, error) {
		if len(data) == 0 {
			return nil, io.EOF
		}
		n := min(max(1, size), len(data))
		piece := data[:n]
		data = data[n:]
		return piece, nil
	}
}

func TestFramesComeOutWholeHoweverTheyArrive(t *testing.T) {
	var stream []byte
	want := [][]byte{[]byte("one"), {}, bytes.Repeat([]byte{7}, 70000)}
	for _, p := range want {
		f, err := frame(p)
		if err != nil {
			t.Fatal(err)
		}
		stream = append(stream, f...)
	}
	for _, size := range []int{1, 2, 3, 5, 1 << 20} {
		r := &frameReader{source: pieces(stream, size)}
		for i, p := range want {
			got, err := r.next(t.Context())
			if err != nil || !bytes.Equal(got, p) {
				t.Errorf("pieces of %d: frame %d = %d bytes, %v, want %d", size, i, len(got), err, len(p))
			}
		}
		if _, err := r.next(t.Context()); !errors.Is(err, io.EOF) {
			t.Errorf("pieces of %d: after the last frame = %v, want EOF", size, err)
		}
	}
	if _, err := frame(make([]byte, maxFrame+1)); !errors.Is(err, errFrameSize) {
		t.Errorf("frame of more than 24 bits of length = %v, want errFrameSize", err)
	}
}

func TestTheIntroMayCarryARoutingHint(t *testing.T) {
	for name, tc := range map[string]struct {
		in   string
		fail bool
	}{
		"plain":             {"WA\x06\x03", false},
		"with routing hint": {"ED\x00\x01\x00\x00\x03abcWA\x06\x03", false},
		"other dictionary":  {"WA\x06\x02", true},
		"another protocol":  {"GET ", true},
		"hint without end":  {"ED\x00\x01\x00\x00\xffabc", true},
		"hint, then noise":  {"ED\x00\x01\x00\x00\x00HTTP", true},
	} {
		r := &frameReader{source: pieces([]byte(tc.in), 3)}
		if _, err := r.intro(t.Context()); (err != nil) != tc.fail {
			t.Errorf("%s: intro(%q) = %v, want failure %v", name, tc.in, err, tc.fail)
		}
	}
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte("WA\x06\x03\x00\x00\x01x"), 1)
	f.Add([]byte("ED\x00\x01\x00\x00\x02hiWA\x06\x03\x00\x00\x00"), 3)
	f.Add([]byte("WA\x06\x03\xff\xff\xff"), 100)
	f.Fuzz(func(t *testing.T, in []byte, size int) {
		r := &frameReader{source: pieces(in, size)}
		left := len(in)
		if _, err := r.intro(t.Context()); err != nil {
			return
		}
		for {
			p, err := r.next(t.Context())
			if err != nil {
				break
			}
			if left -= 3 + len(p); left < 0 {
				t.Fatalf("frames hold more bytes than came in")
			}
		}
	})
}

func FuzzHandshake(f *testing.F) {
	ca, err := newAuthority()
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("WA\x06\x03\x00\x00\x00\x00\x00\x00"))
	f.Add(append([]byte("WA\x06\x03\x00\x00\x24\x12\x22\x0a\x20"), bytes.Repeat([]byte{9}, 60)...))
	f.Fuzz(func(t *testing.T, in []byte) {
		discard := func(context.Context, []byte) error { return nil }
		if _, err := handshake(t.Context(), &frameReader{source: pieces(in, 64)}, discard, ca); err == nil {
			t.Fatal("a handshake without keys succeeded")
		}
	})
}

// FuzzStanza feeds stanzas to a logged-in and to an unpaired connection: none may panic.
func FuzzStanza(f *testing.F) {
	const pn, contact = "5511900000001", "5511900000002"
	to := jid{User: contact, Server: types.DefaultUserServer}
	for _, n := range []node{
		{Tag: "iq", Attrs: attrs{"id": "1", "type": "get", "xmlns": "encrypt", "to": types.ServerJID}, Content: []node{{Tag: "key", Content: []node{{Tag: "user", Attrs: attrs{"jid": to}}}}}},
		{Tag: "iq", Attrs: attrs{"id": "1", "type": "set", "xmlns": "encrypt"}, Content: []node{{Tag: "registration", Content: []byte{1}}, {Tag: "skey"}, {Tag: "list", Content: []node{{Tag: "key"}}}}},
		{Tag: "iq", Attrs: attrs{"id": "1", "type": "get", "xmlns": "usync"}, Content: []node{{Tag: "usync", Content: []node{{Tag: "query", Content: []node{{Tag: "devices"}, {Tag: "contact"}, {Tag: "lid"}}}, {Tag: "list", Content: []node{{Tag: "user", Attrs: attrs{"jid": to}}, {Tag: "user", Content: []node{{Tag: "contact", Content: []byte("+1")}}}}}}}}},
		{Tag: "iq", Attrs: attrs{"id": "1", "type": "set", "xmlns": "md"}, Content: []node{{Tag: "link_code_companion_reg", Attrs: attrs{"stage": "companion_finish"}}}},
		{Tag: "iq", Attrs: attrs{"id": "1", "type": "set", "xmlns": "md"}, Content: []node{{Tag: "remove-companion-device", Attrs: attrs{"jid": to}}}},
		{Tag: "iq", Attrs: attrs{"id": "1", "type": "set", "xmlns": "w:sync:app:state"}, Content: []node{{Tag: "sync", Content: []node{{Tag: "collection", Attrs: attrs{"name": "regular", "version": "-3"}, Content: []node{{Tag: "patch", Content: []byte{1}}}}}}}},
		{Tag: "message", Attrs: attrs{"id": "1", "to": to, "type": "text"}, Content: []node{{Tag: "participants", Content: []node{{Tag: "to", Attrs: attrs{"jid": to}, Content: []node{{Tag: "enc", Attrs: attrs{"type": "msg"}, Content: []byte{51}}}}}}}},
		{Tag: "message", Attrs: attrs{"id": "1", "to": to}, Content: []node{{Tag: "enc", Attrs: attrs{"type": "pkmsg"}}}},
		{Tag: "receipt", Attrs: attrs{"id": "1", "to": to, "type": "retry"}, Content: []node{{Tag: "retry", Attrs: attrs{"count": "1"}}}},
		{Tag: "ack", Attrs: attrs{"id": "1", "class": "message", "to": to}},
		{Tag: "presence", Attrs: attrs{"type": "subscribe", "to": to}},
		{Tag: "chatstate", Attrs: attrs{"to": to}, Content: []node{{Tag: "composing"}}},
		{Tag: "ib", Content: []node{{Tag: "offline_batch"}}},
	} {
		b, err := waBinary.Marshal(n)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{})
	f.Add([]byte{2, 1, 2, 3})
	f.Fuzz(func(t *testing.T, in []byte) {
		n, err := decodeNode(in)
		if err != nil {
			return
		}
		s, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		reg := &waWa6.ClientPayload_DevicePairingRegistrationData{EIdent: bytes.Repeat([]byte{1}, 32)}
		life, end := context.WithCancel(t.Context())
		defer end()
		unpaired := &conn{srv: s, life: life, end: end, reg: reg, peer: &peer{}, wake: make(chan struct{}, 1)}
		s.mu.Lock()
		d := newDevice(s.account(pn), 1, nil, reg)
		s.account(contact)
		s.byPN[pn].devices[1] = d
		logged := &conn{srv: s, life: life, end: end, dev: d, peer: &peer{}, wake: make(chan struct{}, 1)}
		d.conn = logged
		s.mu.Unlock()
		for _, c := range []*conn{unpaired, logged} {
			s.handle(c, n)
			for {
				o, ok, _, _ := c.next()
				if !ok {
					break
				}
				s.logOut(c, &o.stanza)
			}
		}
	})
}

// FuzzScanQR feeds texts to the phone's camera: none may panic or pair.
func FuzzScanQR(f *testing.F) {
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{1}, 32))
	f.Add("2@ref," + key + "," + key + "," + key)
	f.Add("https://example.com/qr#ref," + key + "," + key + "," + key + ",1")
	f.Add("#,,,,")
	f.Add("")
	f.Fuzz(func(t *testing.T, qr string) {
		s, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		life, end := context.WithCancel(t.Context())
		defer end()
		s.refs["ref"] = &conn{
			srv: s, life: life, end: end, wake: make(chan struct{}, 1), peer: &peer{static: bytes.Repeat([]byte{2}, 32)},
			reg: &waWa6.ClientPayload_DevicePairingRegistrationData{EIdent: bytes.Repeat([]byte{1}, 32)},
		}
		if err := s.Phone("5511900000001").ScanQR(t.Context(), qr); !errors.Is(err, ErrBadQR) && !errors.Is(err, ErrQRExpired) {
			t.Errorf("ScanQR(%q) = %v, want ErrBadQR or ErrQRExpired", qr, err)
		}
	})
}

// FuzzControl feeds requests to the control API: every answer is JSON or a page, and none is the server's own failure.
func FuzzControl(f *testing.F) {
	for _, seed := range [][3]string{
		{"GET", "/sim/log?after=-1", ""},
		{"POST", "/sim/phones", `{"pn":"5511900000001"}`},
		{"POST", "/sim/phones/5511900000001/send", `{"to":"5511900000002","text":"hi"}`},
		{"POST", "/sim/phones/5511900000001/scan", `{"qr":"x"}`},
		{"POST", "/sim/phones/0/read", `{}`},
		{"PUT", "/sim/faults", `{"session":"5511900000001","fault":{"dropAcks":true,"latencyMs":-5}}`},
		{"POST", "/sim/sessions/5511900000001/1/kick", ""},
		{"POST", "/sim/log/lease", `{"epoch":1e9}`},
		{"GET", "/sim/page/..%2f..", ""},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, method, target, body string) {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			return
		}
		s, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		s.Phone("5511900000001")
		r := &http.Request{Method: method, URL: u, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}
		if strings.HasPrefix(u.Path, "/ws/") || r.Method == http.MethodConnect {
			return // a socket needs a connection; FuzzHandshake and FuzzStanza are what comes in there
		}
		rec := httptest.NewRecorder()
		s.Handler().ServeHTTP(rec, r.WithContext(t.Context()))
		if rec.Code >= 500 {
			t.Errorf("%s %s %s = %d %s", method, target, body, rec.Code, rec.Body)
		}
		if rec.Header().Get("Content-Type") == "application/json" && !json.Valid(rec.Body.Bytes()) {
			t.Errorf("%s %s %s answers what is not JSON: %s", method, target, body, rec.Body)
		}
	})
}
