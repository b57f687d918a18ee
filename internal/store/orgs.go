package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

// ErrOrder says that the list given for a new order is not exactly the organization's live sessions.
var ErrOrder = errors.New("order must name every session of the organization exactly once")

const orgColumns = `id, label, strategy, head_session_id, time_zone, affinity_ttl, rate_minute, rate_burst, created_at`

func scanOrg(row dbutil.Scannable) (fleet.Organization, error) {
	var o fleet.Organization
	var ttl int64
	err := row.Scan(&o.ID, &o.Label, &o.Strategy, &o.HeadSessionID, &o.TimeZone, &ttl, &o.Rate.PerMinute, &o.Rate.Burst, at{&o.CreatedAt})
	o.AffinityTTL = time.Duration(ttl) * time.Millisecond
	return o, err
}

// CreateOrganization writes an organization and its project "default". The slug must be valid and
// new: fleet.ErrInvalid, fleet.ErrConflict.
func (s *Store) CreateOrganization(ctx context.Context, o fleet.Organization) (fleet.Organization, error) {
	if !fleet.ValidSlug(string(o.ID)) {
		return o, fmt.Errorf("create organization: %w", fleet.ErrInvalid)
	}
	var out fleet.Organization
	err := s.InTx(ctx, func(ctx context.Context) (err error) {
		out, err = scanOrg(s.row(ctx, `INSERT INTO organizations (id, label, strategy, time_zone, created_at) VALUES ($1, $2, $3, $4, @now@)
			RETURNING `+orgColumns, o.ID, o.Label, o.Strategy, cmp.Or(o.TimeZone, "UTC")))
		if err != nil {
			return unavailable(err)
		}
		_, err = s.exec(ctx, `INSERT INTO projects (id, org_id, name, created_at) VALUES ($1, $2, 'default', @now@)`,
			fleet.NewProjectID(), o.ID)
		if err != nil {
			return err
		}
		return s.audit(ctx, change{action: "organization.create", org: out.ID, subject: string(out.ID), after: auditOrg(&out)})
	})
	if err != nil {
		return o, fmt.Errorf("create organization %s: %w", o.ID, err)
	}
	return out, nil
}

// GetOrganization reads one organization, or fleet.ErrNotFound.
func (s *Store) GetOrganization(ctx context.Context, id fleet.OrgID) (fleet.Organization, error) {
	o, err := scanOrg(s.row(ctx, `SELECT `+orgColumns+` FROM organizations WHERE id = $1 AND deleted_at = 0`, id))
	if err != nil {
		return o, fmt.Errorf("get organization %s: %w", id, notFound(err))
	}
	return o, nil
}

// ListOrganizations reads up to limit organizations in slug order, those after the slug given.
func (s *Store) ListOrganizations(ctx context.Context, after fleet.OrgID, limit int) ([]fleet.Organization, error) {
	var out []fleet.Organization
	err := s.query(ctx, func(row dbutil.Scannable) error {
		o, err := scanOrg(row)
		out = append(out, o)
		return err
	}, `SELECT `+orgColumns+` FROM organizations WHERE id > $1 AND deleted_at = 0 ORDER BY id LIMIT $2`, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list organizations: %w", err)
	}
	return out, nil
}

// OrgChange says what to change of an organization; nil means: leave it.
type OrgChange struct {
	Label    *string
	Strategy *fleet.Strategy
	TimeZone *string                        // an IANA name
	People   func(rules *fleet.PeopleRules) // changes them
	Order    []fleet.SessionSlug            // a new list order: every session of the list exactly once, else ErrOrder

	AffinityTTL           *time.Duration
	RateMinute, RateBurst *int64 // how fast messages may be asked for
	// Add puts a session of the organization back at the end of its list; another organization's is
	// fleet.ErrConflict, one that is there already changes nothing.
	Add fleet.SessionSlug
	// Remove takes a session out of the list: it sends no more, and receives as before.
	Remove fleet.SessionSlug
}

// UpdateOrganization changes one organization, or says fleet.ErrNotFound. The head session stays
// what it is, whatever the order, until it is removed.
func (s *Store) UpdateOrganization(ctx context.Context, id fleet.OrgID, c OrgChange) (fleet.Organization, error) {
	var out fleet.Organization
	err := s.InTx(ctx, func(ctx context.Context) (err error) {
		before, err := s.GetOrganization(ctx, id)
		if err != nil {
			return err
		}
		// Writing the organization first makes changes of its list wait for each other.
		var ttl *int64
		if c.AffinityTTL != nil {
			ms := c.AffinityTTL.Milliseconds()
			ttl = &ms
		}
		out, err = scanOrg(s.row(ctx, `UPDATE organizations SET label = coalesce($2, label), strategy = coalesce($3, strategy),
				time_zone = coalesce($4, time_zone), affinity_ttl = coalesce($5, affinity_ttl),
				rate_minute = coalesce($6, rate_minute), rate_burst = coalesce($7, rate_burst)
			WHERE id = $1 AND deleted_at = 0 RETURNING `+orgColumns, id, c.Label, c.Strategy, c.TimeZone, ttl, c.RateMinute, c.RateBurst))
		if err != nil {
			return notFound(err)
		}
		if err := s.changeList(ctx, id, c); err != nil {
			return err
		}
		if c.Add != "" || c.Remove != "" {
			if out, err = s.GetOrganization(ctx, id); err != nil {
				return err
			}
		}
		if c.People != nil {
			if err := s.changePeopleRules(ctx, id, c.People); err != nil {
				return err
			}
		}
		return s.audit(ctx, change{action: "organization.update", org: id, subject: string(id), before: auditOrg(&before), after: auditOrg(&out)})
	})
	if err != nil {
		return out, fmt.Errorf("update organization %s: %w", id, err)
	}
	return out, nil
}

// changeList changes which sessions are in the list, and their order.
func (s *Store) changeList(ctx context.Context, id fleet.OrgID, c OrgChange) error {
	if c.Add != "" {
		if err := s.attach(ctx, id, c.Add); err != nil {
			return err
		}
		if err := s.audit(ctx, change{action: "organization.add", org: id, subject: string(c.Add)}); err != nil {
			return err
		}
	}
	if c.Remove != "" {
		if err := s.detach(ctx, id, c.Remove); err != nil {
			return err
		}
		if err := s.audit(ctx, change{action: "organization.remove", org: id, subject: string(c.Remove)}); err != nil {
			return err
		}
	}
	if c.Order != nil {
		if err := s.orderSessions(ctx, id, c.Order); err != nil {
			return err
		}
		return s.audit(ctx, change{action: "organization.order", org: id, subject: string(id), after: c.Order})
	}
	return nil
}

// attach puts a session into its organization's list, at the end.
func (s *Store) attach(ctx context.Context, org fleet.OrgID, slug fleet.SessionSlug) error {
	v, err := s.SessionBySlug(ctx, slug)
	switch {
	case err != nil:
		return err
	case v.OrgID != org:
		return fmt.Errorf("session %s belongs to another organization: %w", slug, fleet.ErrConflict)
	case !v.Detached:
		return nil
	}
	_, err = s.exec(ctx, `UPDATE sessions SET detached = FALSE, position = (SELECT coalesce(max(o.position), 0) + 1 FROM sessions o WHERE o.org_id = $2)
		WHERE id = $1`, v.ID, org)
	if err != nil {
		return err
	}
	return s.moveHead(ctx, org)
}

// detach takes a session out of its organization's list.
func (s *Store) detach(ctx context.Context, org fleet.OrgID, slug fleet.SessionSlug) error {
	n, err := s.exec(ctx, `UPDATE sessions SET detached = TRUE WHERE slug = $1 AND org_id = $2 AND desired <> 'deleted'`, slug, org)
	if err := exactlyOne(n, err); err != nil {
		return fmt.Errorf("session %s: %w", slug, err)
	}
	return s.moveHead(ctx, org)
}

// moveHead makes the first session of the list the head if the head is not in the list. Without any it stays.
func (s *Store) moveHead(ctx context.Context, org fleet.OrgID) error {
	_, err := s.exec(ctx, `UPDATE organizations SET head_session_id = coalesce(
			(SELECT s.id FROM sessions s WHERE s.org_id = $1 AND s.desired <> 'deleted' AND NOT s.detached ORDER BY s.position, s.slug LIMIT 1), head_session_id)
		WHERE id = $1 AND NOT EXISTS (SELECT 1 FROM sessions h WHERE h.id = head_session_id AND h.desired <> 'deleted' AND NOT h.detached)`, org)
	return err
}

func (s *Store) orderSessions(ctx context.Context, org fleet.OrgID, order []fleet.SessionSlug) error {
	have := map[fleet.SessionSlug]bool{}
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var slug fleet.SessionSlug
		err := row.Scan(&slug)
		have[slug] = true
		return err
	}, `SELECT slug FROM sessions WHERE org_id = $1 AND desired <> 'deleted' AND NOT detached`, org)
	if err != nil {
		return err
	}
	if len(order) != len(have) {
		return ErrOrder
	}
	for i, slug := range order {
		if !have[slug] {
			return ErrOrder // unknown, another organization's, or named twice
		}
		delete(have, slug)
		if _, err := s.exec(ctx, `UPDATE sessions SET position = $3 WHERE slug = $1 AND org_id = $2`, slug, org, i+1); err != nil {
			return err
		}
	}
	return nil
}

// DeleteOrganization ends an organization that has no session any more: its keys, endpoints and
// pairing links stop working, its name is not used again, and all that is left of it is purged: messages, contacts,
// opt-outs. ORGANIZATION_IN_USE while a session is left.
func (s *Store) DeleteOrganization(ctx context.Context, id fleet.OrgID) error {
	err := s.InTx(ctx, func(ctx context.Context) error {
		o, err := s.GetOrganization(ctx, id)
		if err != nil {
			return err
		}
		if err := s.holdOrg(ctx, id); err != nil {
			return err
		}
		var sessions int
		if err := s.row(ctx, `SELECT count(*) FROM sessions WHERE org_id = $1 AND desired <> 'deleted'`, id).Scan(&sessions); err != nil {
			return unavailable(err)
		}
		if sessions > 0 {
			return &fleet.CodedError{
				Code: "ORGANIZATION_IN_USE", Detail: fmt.Sprintf("it has %d sessions: delete them first", sessions), Err: fleet.ErrConflict,
			}
		}
		for _, end := range []string{
			`UPDATE organizations SET deleted_at = @now@ WHERE id = $1`,
			`UPDATE projects SET deleted_at = @now@ WHERE org_id = $1 AND deleted_at = 0`,
			`UPDATE api_keys SET revoked_at = @now@ WHERE org_id = $1 AND revoked_at = 0`,
			`UPDATE pairing_invites SET revoked_at = @now@ WHERE org_id = $1 AND revoked_at = 0`,
			`UPDATE endpoints SET deleted_at = @now@ WHERE org_id = $1 AND deleted_at = 0`,
			`UPDATE deliveries SET status = 'dead', finished_at = @now@, locked_until = 0, last_error = 'organization deleted'
				WHERE status = 'pending' AND endpoint_id IN (SELECT id FROM endpoints WHERE org_id = $1)`,
		} {
			if _, err := s.exec(ctx, end, id); err != nil {
				return err
			}
		}
		if err := s.keysChange(ctx); err != nil {
			return err
		}
		if err := s.addPurge(ctx, PurgeOrganization, string(id), id); err != nil {
			return err
		}
		return s.audit(ctx, change{action: "organization.delete", org: id, subject: string(id), before: auditOrg(&o)})
	})
	if err != nil {
		return fmt.Errorf("delete organization %s: %w", id, err)
	}
	return nil
}
