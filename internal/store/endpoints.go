package store

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

// DefaultMaxConcurrency is how many deliveries of one endpoint may be in flight unless it says
// otherwise; MaxConcurrencyLimit is the most it may say.
const (
	DefaultMaxConcurrency = 4
	MaxConcurrencyLimit   = 64
)

const maxDescription = 500

// secretPrefix is how Standard Webhooks marks a symmetric secret.
const secretPrefix = "whsec_"

// secretText is a secret in the form that Standard Webhooks writes.
func secretText(raw []byte) string { return secretPrefix + base64.StdEncoding.EncodeToString(raw) }

func newSecret() []byte {
	raw := make([]byte, 32)
	_, _ = rand.Read(raw) // never fails: crypto/rand ends the process instead
	return raw
}

const endpointColumns = `e.id, coalesce(e.org_id, ''), e.scope, e.url, e.description, e.events, e.disabled, e.disabled_why,
	e.max_concurrency, e.failures, e.failing_since, e.open_until, e.created_at`

// endpointReturning is the same for RETURNING, where SQLite knows no alias.
var endpointReturning = strings.ReplaceAll(endpointColumns, "e.", "")

func endpointFields(e *fleet.Endpoint, events *string) []any {
	return []any{
		&e.ID, &e.OrgID, &e.Scope, &e.URL, &e.Description, events, &e.Disabled, &e.DisabledWhy,
		&e.MaxConcurrency, &e.Failures,
		at{&e.FailingSince},
		at{&e.OpenUntil},
		at{&e.CreatedAt},
	}
}

func scanEndpoint(row dbutil.Scannable) (fleet.Endpoint, error) {
	var e fleet.Endpoint
	var events string
	if err := row.Scan(endpointFields(&e, &events)...); err != nil {
		return e, err
	}
	e.Events = splitKinds(events)
	return e, nil
}

func splitKinds(events string) []fleet.EventKind {
	if events == "" {
		return nil
	}
	var out []fleet.EventKind
	for kind := range strings.SplitSeq(events, ",") {
		out = append(out, fleet.EventKind(kind))
	}
	return out
}

// joinKinds checks a filter against its scope and writes it in display order, once each.
func joinKinds(scope fleet.Scope, kinds []fleet.EventKind) (string, error) {
	known := fleet.EventKinds(scope)
	for _, k := range kinds {
		if !slices.Contains(known, k) {
			names := make([]string, len(known))
			for i, n := range known {
				names[i] = string(n)
			}
			return "", &fleet.InvalidError{
				Code: "EVENT_UNKNOWN", Field: "events",
				Detail: fmt.Sprintf("%.64q is not an event of this scope: choose from %s, or leave events empty for all of them", string(k), strings.Join(names, ", ")),
			}
		}
	}
	var out []string
	for _, k := range known {
		if slices.Contains(kinds, k) {
			out = append(out, string(k))
		}
	}
	return strings.Join(out, ","), nil
}

func checkEndpoint(e *fleet.Endpoint) (events string, err error) {
	switch {
	case e.Scope != fleet.ScopeOrganization && e.Scope != fleet.ScopeOperator:
		return "", &fleet.InvalidError{Code: "SCOPE_UNKNOWN", Field: "scope", Detail: "must be organization or operator"}
	case e.Scope == fleet.ScopeOrganization && e.OrgID == "":
		return "", &fleet.InvalidError{Code: "ORGANIZATION_MISSING", Field: "orgId", Detail: "an endpoint of organization scope belongs to an organization"}
	case e.URL == "":
		return "", &fleet.InvalidError{Code: "URL_INVALID", Field: "url", Detail: "is empty: give an http or https URL"}
	case len([]rune(e.Description)) > maxDescription:
		return "", &fleet.InvalidError{Code: "DESCRIPTION_TOO_LONG", Field: "description", Detail: fmt.Sprintf("has more than %d characters", maxDescription)}
	case e.MaxConcurrency < 1 || e.MaxConcurrency > MaxConcurrencyLimit:
		return "", &fleet.InvalidError{Code: "CONCURRENCY_INVALID", Field: "maxConcurrency", Detail: fmt.Sprintf("must be from 1 to %d", MaxConcurrencyLimit)}
	}
	return joinKinds(e.Scope, e.Events)
}

// CreateEndpoint stores a new endpoint and returns it with the secret made for it, which is the
// only time that the secret is shown. OrgID may be "" for operator scope only. MaxConcurrency 0
// means the default. The URL must have passed webhook.CheckURL. Unknown organization:
// fleet.ErrNotFound. Filters and limits that make no sense: *fleet.InvalidError.
func (s *Store) CreateEndpoint(ctx context.Context, e fleet.Endpoint) (fleet.Endpoint, error) {
	if e.MaxConcurrency == 0 {
		e.MaxConcurrency = DefaultMaxConcurrency
	}
	events, err := checkEndpoint(&e)
	if err != nil {
		return fleet.Endpoint{}, fmt.Errorf("create endpoint: %w", err)
	}
	e.ID = fleet.NewEndpointID()
	secret := newSecret()
	err = s.InTx(ctx, func(ctx context.Context) error {
		if e.OrgID != "" {
			var one int
			if err := s.row(ctx, `SELECT 1 FROM organizations WHERE id = $1 AND deleted_at = 0`, e.OrgID).Scan(&one); err != nil {
				return fmt.Errorf("organization %q: %w", e.OrgID, notFound(err))
			}
		}
		err := s.row(ctx, `INSERT INTO endpoints (id, org_id, scope, url, description, events, secret, max_concurrency, created_at)
			VALUES ($1, nullif(CAST($2 AS TEXT), ''), $3, $4, $5, $6, $7, $8, @now@) RETURNING created_at`,
			e.ID, e.OrgID, e.Scope, e.URL, e.Description, events, s.ring.Seal(string(e.ID), secret), e.MaxConcurrency).Scan(at{&e.CreatedAt})
		if err != nil {
			return unavailable(err)
		}
		return s.audit(ctx, change{action: "endpoint.create", org: e.OrgID, subject: string(e.ID), after: auditEndpoint(&e)})
	})
	if err != nil {
		return fleet.Endpoint{}, fmt.Errorf("create endpoint: %w", err)
	}
	e.Events = splitKinds(events)
	e.Secrets = []fleet.Secret{{Value: secretText(secret)}}
	return e, nil
}

// endpointScope restricts a statement to what org may see: an organization sees its endpoints of
// organization scope, the operator (org "") sees every endpoint. $1 is org.
const endpointScope = ` e.deleted_at = 0 AND (CAST($1 AS TEXT) = '' OR e.scope = 'organization' AND e.org_id = CAST($1 AS TEXT)) `

// ListEndpoints returns the live endpoints that org may see ("" = operator: all), oldest first,
// without secrets.
func (s *Store) ListEndpoints(ctx context.Context, org fleet.OrgID) ([]fleet.Endpoint, error) {
	out := []fleet.Endpoint{}
	err := s.query(ctx, func(row dbutil.Scannable) error {
		e, err := scanEndpoint(row)
		out = append(out, e)
		return err
	}, `SELECT `+endpointColumns+` FROM endpoints e WHERE`+endpointScope+`ORDER BY e.created_at, e.id`, org)
	if err != nil {
		return nil, fmt.Errorf("list endpoints: %w", err)
	}
	return out, nil
}

// GetEndpoint returns one live endpoint that org may see ("" = operator), without secrets.
func (s *Store) GetEndpoint(ctx context.Context, org fleet.OrgID, id fleet.EndpointID) (fleet.Endpoint, error) {
	e, err := scanEndpoint(s.row(ctx, `SELECT `+endpointColumns+` FROM endpoints e WHERE`+endpointScope+`AND e.id = $2`, org, id))
	if err != nil {
		return fleet.Endpoint{}, fmt.Errorf("endpoint %q: %w", id, notFound(err))
	}
	return e, nil
}

// holdEndpoint locks endpoint rows against each other's changes, but not against the deliveries that
// AppendEvent adds: their foreign key takes KEY SHARE, which FOR UPDATE would block.
func (s *Store) holdEndpoint(how string) string {
	if !s.Postgres() {
		return ""
	}
	return " FOR NO KEY UPDATE" + how
}

// EndpointChange names what to change; nil leaves it.
type EndpointChange struct {
	URL            *string // must have passed webhook.CheckURL
	Description    *string
	Events         *[]fleet.EventKind // empty = all of the scope
	Disabled       *bool              // false also forgets past failures and lets waiting deliveries go on
	MaxConcurrency *int
}

// UpdateEndpoint changes an endpoint that org may see ("" = operator).
func (s *Store) UpdateEndpoint(ctx context.Context, org fleet.OrgID, id fleet.EndpointID, c EndpointChange) (fleet.Endpoint, error) {
	var e fleet.Endpoint
	err := s.InTx(ctx, func(ctx context.Context) (err error) {
		e, err = scanEndpoint(s.row(ctx, `SELECT `+endpointColumns+` FROM endpoints e WHERE`+endpointScope+`AND e.id = $2`+s.holdEndpoint(""), org, id))
		if err != nil {
			return notFound(err)
		}
		before := e
		if c.URL != nil {
			e.URL = *c.URL
		}
		if c.Description != nil {
			e.Description = *c.Description
		}
		if c.Events != nil {
			e.Events = *c.Events
		}
		if c.MaxConcurrency != nil {
			e.MaxConcurrency = *c.MaxConcurrency
		}
		enabled := false
		if c.Disabled != nil {
			enabled = e.Disabled && !*c.Disabled
			e.Disabled = *c.Disabled
			switch {
			case enabled:
				e.DisabledWhy, e.Failures, e.FailingSince, e.OpenUntil = "", 0, time.Time{}, time.Time{}
			case e.Disabled && e.DisabledWhy == "":
				e.DisabledWhy = DisabledByHand
			}
		}
		events, err := checkEndpoint(&e)
		if err != nil {
			return err
		}
		e.Events = splitKinds(events)
		_, err = s.exec(ctx, `UPDATE endpoints SET url = $2, description = $3, events = $4, disabled = $5, disabled_why = $6, max_concurrency = $7,
				failures = $8, failing_since = $9, open_until = $10 WHERE id = $1`,
			e.ID, e.URL, e.Description, events, e.Disabled, e.DisabledWhy, e.MaxConcurrency, e.Failures, ms(e.FailingSince), ms(e.OpenUntil))
		if err != nil {
			return err
		}
		if enabled {
			if err := s.promoteAll(ctx, e.ID); err != nil {
				return err
			}
		}
		return s.audit(ctx, change{action: "endpoint.update", org: e.OrgID, subject: string(e.ID), before: auditEndpoint(&before), after: auditEndpoint(&e)})
	})
	if err != nil {
		return fleet.Endpoint{}, fmt.Errorf("update endpoint %q: %w", id, err)
	}
	return e, nil
}

// RotateSecret gives an endpoint a new secret and returns it; the one before stays live for keep, and
// the one before that ends now.
func (s *Store) RotateSecret(ctx context.Context, org fleet.OrgID, id fleet.EndpointID, keep time.Duration) (fleet.Endpoint, error) {
	secret := newSecret()
	var e fleet.Endpoint
	var ends time.Time
	var previous []byte
	err := s.InTx(ctx, func(ctx context.Context) error {
		if _, err := s.GetEndpoint(ctx, org, id); err != nil {
			return err
		}
		var events string
		err := s.row(ctx, `UPDATE endpoints SET previous_secret = secret, previous_secret_ends = @now@ + CAST($2 AS BIGINT), secret = $3
			WHERE id = $1 AND deleted_at = 0 RETURNING previous_secret, previous_secret_ends, `+endpointReturning,
			id, keep.Milliseconds(), s.ring.Seal(string(id), secret)).Scan(append([]any{&previous, at{&ends}}, endpointFields(&e, &events)...)...)
		e.Events = splitKinds(events)
		if err != nil {
			return notFound(err)
		}
		return s.Audit(ctx, "endpoint.rotate_secret", e.OrgID, string(e.ID), map[string]any{"previousEnds": ends.UTC()})
	})
	if err != nil {
		return fleet.Endpoint{}, fmt.Errorf("rotate secret of endpoint %q: %w", id, err)
	}
	e.Secrets = []fleet.Secret{{Value: secretText(secret)}}
	if keep > 0 {
		old, err := s.ring.Open(string(id), previous)
		if err != nil {
			return fleet.Endpoint{}, fmt.Errorf("rotate secret of endpoint %q: %w", id, err)
		}
		e.Secrets = append(e.Secrets, fleet.Secret{Value: secretText(old), ExpiresAt: ends})
	}
	return e, nil
}

// DeleteEndpoint ends an endpoint that org may see ("" = operator). What it is still owed becomes
// dead, and deliveries in flight end without effect.
func (s *Store) DeleteEndpoint(ctx context.Context, org fleet.OrgID, id fleet.EndpointID) error {
	err := s.InTx(ctx, func(ctx context.Context) error {
		e, err := s.GetEndpoint(ctx, org, id)
		if err != nil {
			return err
		}
		n, err := s.exec(ctx, `UPDATE endpoints AS e SET deleted_at = @now@ WHERE`+endpointScope+`AND e.id = $2`, org, id)
		if err != nil {
			return err
		}
		if n == 0 {
			return fleet.ErrNotFound
		}
		_, err = s.exec(ctx, `UPDATE deliveries SET status = 'dead', finished_at = @now@, locked_until = 0, last_error = 'endpoint deleted'
			WHERE endpoint_id = $1 AND status = 'pending'`, id)
		if err != nil {
			return err
		}
		return s.audit(ctx, change{action: "endpoint.delete", org: e.OrgID, subject: string(id), before: auditEndpoint(&e)})
	})
	if err != nil {
		return fmt.Errorf("delete endpoint %q: %w", id, err)
	}
	return nil
}

// Reasons for which an endpoint is disabled.
const (
	DisabledByHand  = "by_hand"
	DisabledGone    = "gone"    // it answered 410
	DisabledFailing = "failing" // it failed for days
)

// DisableEndpoint stops an endpoint and tells operators with endpoint.disabled, once. Its
// undelivered events wait until it is enabled again or retention removes them; new events are not
// kept for it. It reports whether the endpoint was enabled before.
func (s *Store) DisableEndpoint(ctx context.Context, id fleet.EndpointID, why string) (bool, error) {
	changed := false
	err := s.InTx(ctx, func(ctx context.Context) error {
		var org fleet.OrgID
		var now time.Time
		err := s.row(ctx, `UPDATE endpoints SET disabled = TRUE, disabled_why = $2 WHERE id = $1 AND NOT disabled AND deleted_at = 0
			RETURNING coalesce(org_id, ''), @now@`, id, why).Scan(&org, at{&now})
		if err = notFound(err); errors.Is(err, fleet.ErrNotFound) {
			return nil
		} else if err != nil {
			return err
		}
		changed = true
		_, err = s.AppendEvent(ctx, fleet.Event{
			OrgID: org, Kind: fleet.EventEndpointDisabled,
			Data: fleet.EventData{Endpoint: string(id), Reason: why, At: ms(now)},
		})
		return err
	})
	if err != nil {
		return false, fmt.Errorf("disable endpoint %s: %w", id, err)
	}
	return changed, nil
}

// EndpointSuccess closes the endpoint's breaker. While all is well it writes at most once a second.
func (s *Store) EndpointSuccess(ctx context.Context, id fleet.EndpointID) error {
	_, err := s.exec(ctx, `UPDATE endpoints SET failures = 0, failing_since = 0, open_until = 0, last_success_at = @now@
		WHERE id = $1 AND (failures > 0 OR failing_since > 0 OR open_until > 0 OR last_success_at < @now@ - 1000)`, id)
	if err != nil {
		return fmt.Errorf("note success of endpoint %s: %w", id, err)
	}
	return nil
}

// EndpointFailure counts one failed try in a row and opens the breaker for as long as open says of the
// new count and of how long the endpoint has been failing (0 = not). Tries that began before the
// breaker opened don't count again. It returns since when the endpoint has been failing, and for how
// long from now it is left alone, 0 while the breaker is closed.
func (s *Store) EndpointFailure(ctx context.Context, id fleet.EndpointID, open func(failures int, failing time.Duration) time.Duration) (since time.Time, left time.Duration, err error) {
	err = s.InTx(ctx, func(ctx context.Context) error {
		var failures int
		var until, now time.Time
		err := s.row(ctx, `UPDATE endpoints SET failures = failures + CASE WHEN open_until <= @now@ THEN 1 ELSE 0 END,
				failing_since = CASE WHEN failing_since = 0 THEN @now@ ELSE failing_since END
			WHERE id = $1 RETURNING failures, failing_since, open_until, @now@`, id).Scan(&failures, at{&since}, at{&until}, at{&now})
		if err != nil {
			return notFound(err)
		}
		if left = until.Sub(now); left > 0 {
			return nil
		}
		if left = open(failures, now.Sub(since)); left > 0 {
			_, err = s.exec(ctx, `UPDATE endpoints SET open_until = @now@ + CAST($2 AS BIGINT) WHERE id = $1`, id, left.Milliseconds())
		}
		return err
	})
	if err != nil {
		return time.Time{}, 0, fmt.Errorf("note failure of endpoint %s: %w", id, err)
	}
	return since, left, nil
}
