package cli

import (
	"errors"
	"log/slog"
	"net/http"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/fleet"
)

// channelsPath is what connectors of other makes ask for the sessions that should be connected.
const channelsPath = "/internal/v1/channels/active"

// channels answers an admin key with the ids of all sessions that workers claim, whatever their shard: each connector picks
// its own, by the rule of fleet.ShardOf.
func (pr *process) channels(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, code string) { writeJSON(w, status, map[string]string{"code": code}) }
	if pr.auth == nil {
		http.NotFound(w, r)
		return
	}
	switch p, err := pr.auth.Authenticate(r.Context(), auth.Presented(r.Header)); {
	case errors.Is(err, auth.ErrUnauthorized):
		w.Header().Set("WWW-Authenticate", `Bearer realm="wafleet"`)
		refuse(http.StatusUnauthorized, "UNAUTHORIZED")
		return
	case err == nil && !p.Admin:
		refuse(http.StatusForbidden, "ADMIN_KEY_REQUIRED")
		return
	case err == nil:
		ids, err := pr.store.ActiveSessions(r.Context())
		if err == nil {
			writeJSON(w, http.StatusOK, map[string]any{"channels": append([]fleet.SessionID{}, ids...)})
			return
		}
		pr.log.WarnContext(r.Context(), "could not list active channels", slog.Any("err", err))
	}
	w.Header().Set("Retry-After", "1")
	refuse(http.StatusServiceUnavailable, "DATABASE_UNAVAILABLE")
}
