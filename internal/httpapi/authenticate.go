package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

const (
	adminPrefix    = "/api/admin/"
	consumerPrefix = "/api/v1/"
	sendPath       = consumerPrefix + "messages"
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
			if !p.Admin && !d.admit(w, r, p) {
				return
			}
			ctx := auth.WithPrincipal(r.Context(), p)
			if p.Admin {
				ctx = store.AsActor(ctx, string(p.KeyID))
			}
			next.ServeHTTP(w, r.WithContext(ctx))
		}
	})
}

// admitTime bounds what asking for room for a request may cost it.
const admitTime = 200 * time.Millisecond

// admit lets a request past that the limits on requests have room for, and says in its headers what is left of its project's:
// what is left for all together is nobody's business. A send's headers are about what its numbers have left. A ledger that
// does not answer keeps nobody out: a send asks it again.
func (d *deps) admit(w http.ResponseWriter, r *http.Request, p fleet.Principal) bool {
	ctx, cancel := context.WithTimeout(r.Context(), admitTime)
	defer cancel()
	a, err := d.outbound.Admit(ctx, p)
	if err != nil {
		d.log.DebugContext(r.Context(), "request not counted", slog.Any("err", err))
		return true
	}
	if a.Limit > 0 && (a.Wait > 0 || r.Method != http.MethodPost || r.URL.Path != sendPath) {
		w.Header().Set("RateLimit-Limit", strconv.FormatInt(a.Limit, 10))
		w.Header().Set("RateLimit-Remaining", strconv.Itoa(a.Left))
	}
	if a.Wait > 0 {
		writeProblem(w, r, problemFor(&fleet.CodedError{
			Code: "API_RATE_LIMITED", Detail: "requests come faster than the limit allows", RetryAfter: a.Wait, Err: fleet.ErrLimited,
		}))
		return false
	}
	return true
}
