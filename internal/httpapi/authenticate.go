package httpapi

import (
	"net/http"
	"strings"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/store"
)

const (
	adminPrefix    = "/api/admin/"
	consumerPrefix = "/api/v1/"
)

var (
	errNeedsAdmin        = problem(http.StatusForbidden, "ADMIN_KEY_REQUIRED", "this needs an admin key (wfa_…)")
	errNeedsOrganization = problem(http.StatusForbidden, "ORGANIZATION_KEY_REQUIRED", "this speaks for one organization: use a key of that organization (wfk_…)")
)

// authenticate lets nobody past who has no key of the right kind. It covers every path under /api/,
// known or not, so that a path can't be probed without a key and a new route can't forget it.
func (d *deps) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api" && !strings.HasPrefix(r.URL.Path, "/api/") {
			next.ServeHTTP(w, r)
			return
		}
		p, err := d.auth.Authenticate(r.Context(), auth.Presented(r.Header))
		if err != nil {
			writeProblem(w, r, problemFor(err))
			return
		}
		x := exchangeFrom(r.Context())
		x.principal, x.known = p, true
		switch {
		case strings.HasPrefix(r.URL.Path, adminPrefix) && !p.Admin:
			writeProblem(w, r, errNeedsAdmin)
		case strings.HasPrefix(r.URL.Path, consumerPrefix) && p.Admin:
			writeProblem(w, r, errNeedsOrganization)
		default:
			ctx := auth.WithPrincipal(r.Context(), p)
			if p.Admin {
				ctx = store.AsActor(ctx, string(p.KeyID))
			}
			next.ServeHTTP(w, r.WithContext(ctx))
		}
	})
}
