package httpapi

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"
)

func TestOnlyTrustedProxiesAreBelieved(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")}
	for _, tc := range []struct {
		name, peer string
		forwarded  []string
		want       string
	}{
		{"a stranger says nothing", "192.0.2.1:1234", nil, "192.0.2.1:1234"},
		{"a stranger is not believed", "192.0.2.1:1234", []string{"198.51.100.1"}, "192.0.2.1:1234"},
		{"a proxy is", "10.1.1.1:1234", []string{"198.51.100.1"}, "198.51.100.1:0"},
		{"the last stranger counts", "10.1.1.1:1234", []string{"203.0.113.9, 198.51.100.1, 10.2.2.2"}, "198.51.100.1:0"},
		{"also over several headers", "10.1.1.1:1234", []string{"203.0.113.9", "198.51.100.1"}, "198.51.100.1:0"},
		{"a proxy's own request", "10.1.1.1:1234", nil, "10.1.1.1:1234"},
		{"only proxies on the way", "10.1.1.1:1234", []string{"10.2.2.2"}, "10.2.2.2:0"},
		{"rubbish ends the chain", "10.1.1.1:1234", []string{"198.51.100.1, unknown, 10.2.2.2"}, "10.2.2.2:0"},
		{"IPv6", "[2001:db8::1]:1234", []string{"2001:4860::8"}, "[2001:4860::8]:0"},
		{"IPv4 in IPv6", "[::ffff:10.1.1.1]:1234", []string{"::ffff:198.51.100.1"}, "198.51.100.1:0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got string
			h := BehindProxies(trusted, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.RemoteAddr }))
			req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
			req.RemoteAddr = tc.peer
			req.Header["X-Forwarded-For"] = tc.forwarded
			h.ServeHTTP(httptest.NewRecorder(), req)
			if got != tc.want {
				t.Errorf("RemoteAddr = %s, want %s", got, tc.want)
			}
		})
	}
}

func FuzzBehindProxies(f *testing.F) {
	f.Add("10.1.1.1:1234", "203.0.113.9, 198.51.100.1, 10.2.2.2", "")
	f.Add("[::ffff:10.1.1.1]:1", "::ffff:10.1.1.2", "unknown,")
	f.Add("192.0.2.1:1", "fe80::1%eth0", "10.0.0.1")
	f.Add("@", "\x00", ", ,")
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")}
	isTrusted := func(a netip.Addr) bool {
		return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
	}
	f.Fuzz(func(t *testing.T, peer, first, second string) {
		var got string
		r := &http.Request{RemoteAddr: peer, Header: http.Header{"X-Forwarded-For": {first, second}}}
		BehindProxies(trusted, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.RemoteAddr })).
			ServeHTTP(httptest.NewRecorder(), r)
		from, err := netip.ParseAddrPort(peer)
		if err != nil || !isTrusted(from.Addr()) {
			if got != peer {
				t.Errorf("a stranger %q saying %q, %q is taken for %q", peer, first, second, got)
			}
			return
		}
		if client, err := netip.ParseAddrPort(got); err != nil || !client.IsValid() {
			t.Errorf("a proxy saying %q, %q makes the client %q, which is no address: %v", first, second, got, err)
		}
	})
}
