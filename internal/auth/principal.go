package auth

import (
	"context"
	"net/http"
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
// It never looks at the URL, which ends up in logs of every proxy on the way. "" = none.
func Presented(h http.Header) string {
	if key := h.Get("X-Api-Key"); key != "" {
		return key
	}
	scheme, key, _ := strings.Cut(h.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(key)
}
