package auth

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/wafleet/wafleet/internal/fleet"
)

type principalKey struct{}

// WithPrincipal returns a context that says who the request speaks for.
func WithPrincipal(ctx context.Context, p fleet.Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalFrom says who the request speaks for; false outside an authenticated request.
func PrincipalFrom(ctx context.Context) (fleet.Principal, bool) {
	p, ok := ctx.Value(principalKey{}).(fleet.Principal)
	return p, ok
}

// Presented takes the key from the headers of a request: "Authorization: Bearer …" or "X-Api-Key".
// It never looks at the URL, which ends up in logs of every proxy on the way. "" = none, or several
// that differ: what looked at one of them on the way must not have meant another caller than we do.
func Presented(h http.Header) string {
	var keys []string
	for _, value := range h.Values("Authorization") {
		if scheme, key, _ := strings.Cut(value, " "); strings.EqualFold(scheme, "Bearer") {
			keys = append(keys, strings.TrimSpace(key))
		}
	}
	for _, key := range h.Values("X-Api-Key") {
		if key != "" {
			keys = append(keys, key)
		}
	}
	if keys = slices.Compact(keys); len(keys) != 1 {
		return ""
	}
	return keys[0]
}
