package store

import (
	"context"
	"fmt"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
)

// When logouts are a trouble of the fleet and not of single numbers.
const (
	logoutSpan  = 5 * time.Minute // within so long …
	logoutLeast = 3               // … at least so many …
	logoutShare = 10              // … and at least one in so many
	alertRest   = time.Hour       // then nothing is told for so long: one alert and not a page per number
)

// When a logout is taken for WhatsApp's answer to a send.
const (
	afterSend     = 10 * time.Second
	unhealthySpan = 30 * 24 * time.Hour
)

// TellLogouts writes one fleet.alert when WhatsApp ended many logins within minutes, and none for an
// hour after it. Logouts that somebody asked for don't count. It returns how many alerts it wrote.
func (s *Store) TellLogouts(ctx context.Context) (told int, err error) {
	err = s.InTx(ctx, func(ctx context.Context) error {
		told = 0
		var ended, of int
		err := s.row(ctx, `SELECT coalesce(sum(CASE WHEN revoked_at > 0 THEN 1 ELSE 0 END), 0), count(*) FROM sessions s
			WHERE s.device_jid <> '' AND s.desired <> 'deleted' AND (s.revoked_at = 0 OR s.revoked_at > @now@ - $1)
			AND NOT EXISTS (SELECT 1 FROM commands c WHERE c.session_id = s.id AND c.kind = 'logout' AND c.created_at > @now@ - 2 * $1)`,
			logoutSpan.Milliseconds()).Scan(&ended, &of)
		if err != nil {
			return unavailable(err)
		}
		if ended < logoutLeast || ended*logoutShare < of {
			return nil
		}
		var before bool
		err = s.row(ctx, `SELECT EXISTS (SELECT 1 FROM events WHERE stream = $1 AND kind = $2 AND created_at > @now@ - $3)`,
			operatorStream, string(fleet.EventFleetAlert), alertRest.Milliseconds()).Scan(&before)
		if err != nil || before {
			return unavailable(err)
		}
		_, err = s.AppendEvent(ctx, fleet.Event{Kind: fleet.EventFleetAlert, Data: fleet.EventData{
			Reason: fleet.AlertLogouts, Sessions: ended, Of: of,
			Detail: fmt.Sprintf("WhatsApp ended %d of %d logins within %v; something may be wrong with more than the numbers", ended, of, logoutSpan),
		}})
		if err == nil {
			told = 1
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("look for a burst of logouts: %w", err)
	}
	return told, nil
}

// LogoutReason looks at what preceded a logout by WhatsApp: fleet.ReasonAfterSend when a frame left
// within the last seconds, fleet.ReasonUnhealthy when that is so for the second time within weeks, and
// "" when nothing was sent.
func (s *Store) LogoutReason(ctx context.Context, session fleet.SessionID) (string, error) {
	var sent, before bool
	err := s.row(ctx, `SELECT EXISTS (SELECT 1 FROM attempts WHERE session_id = $1 AND at > @now@ - $2),
			EXISTS (SELECT 1 FROM events WHERE stream = $1 AND kind = $3 AND created_at > @now@ - $4 AND data LIKE $5)`,
		session, afterSend.Milliseconds(), string(fleet.EventSessionStatus), unhealthySpan.Milliseconds(),
		`%"reason":"`+fleet.ReasonAfterSend+`"%`).Scan(&sent, &before)
	switch {
	case err != nil:
		return "", fmt.Errorf("look at what preceded the logout of session %s: %w", session, unavailable(err))
	case !sent:
		return "", nil
	case before:
		return fleet.ReasonUnhealthy, nil
	default:
		return fleet.ReasonAfterSend, nil
	}
}
