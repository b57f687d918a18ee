package httpapi

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// BehindProxies makes RemoteAddr the client's address when the request came through trusted proxies:
// the last address in X-Forwarded-For that is not one of them. Nobody else is believed.
func BehindProxies(trusted []netip.Prefix, next http.Handler) http.Handler {
	if len(trusted) == 0 {
		return next
	}
	isTrusted := func(a netip.Addr) bool {
		return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, err := netip.ParseAddrPort(r.RemoteAddr)
		if err == nil && isTrusted(peer.Addr()) {
			client := peer.Addr()
			hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
			for _, hop := range slices.Backward(hops) {
				a, err := netip.ParseAddr(strings.TrimSpace(hop))
				if err != nil {
					break
				}
				client = a.Unmap()
				if !isTrusted(a) {
					break
				}
			}
			if client != peer.Addr() {
				r = r.Clone(r.Context())
				r.RemoteAddr = netip.AddrPortFrom(client, 0).String()
			}
		}
		next.ServeHTTP(w, r)
	})
}
