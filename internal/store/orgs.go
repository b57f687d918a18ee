package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

// ErrOrder says that the list given for a new order is not exactly the organization's live sessions.
var ErrOrder = errors.New("order must name every session of the organization exactly once")

const orgColumns = `id, label, strategy, head_session_id, time_zone, created_at`

func scanOrg(row dbutil.Scannable) (fleet.Organization, error) {
	var o fleet.Organization
	err := row.Scan(&o.ID, &o.Label, &o.Strategy, &o.HeadSessionID, &o.TimeZone, at{&o.CreatedAt})
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
	TimeZone *string // an IANA name
	People   *fleet.PeopleRules
	Order    []fleet.SessionSlug // a new list order: every live session exactly once, else ErrOrder
}

// UpdateOrganization changes one organization, or says fleet.ErrNotFound. The head session stays
// what it is, whatever the order.
func (s *Store) UpdateOrganization(ctx context.Context, id fleet.OrgID, c OrgChange) (fleet.Organization, error) {
	var out fleet.Organization
	err := s.InTx(ctx, func(ctx context.Context) (err error) {
		before, err := s.GetOrganization(ctx, id)
		if err != nil {
			return err
		}
		// Writing the organization first makes changes of its list wait for each other.
		out, err = scanOrg(s.row(ctx, `UPDATE organizations SET label = coalesce($2, label), strategy = coalesce($3, strategy),
				time_zone = coalesce($4, time_zone)
			WHERE id = $1 AND deleted_at = 0 RETURNING `+orgColumns, id, c.Label, c.Strategy, c.TimeZone))
		if err != nil {
			return notFound(err)
		}
		if c.Order != nil {
			if err := s.orderSessions(ctx, id, c.Order); err != nil {
				return err
			}
			if err := s.audit(ctx, change{action: "organization.order", org: id, subject: string(id), after: c.Order}); err != nil {
				return err
			}
		}
		if c.People != nil {
			if err := s.setPeopleRules(ctx, id, *c.People); err != nil {
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

func (s *Store) orderSessions(ctx context.Context, org fleet.OrgID, order []fleet.SessionSlug) error {
	have := map[fleet.SessionSlug]bool{}
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var slug fleet.SessionSlug
		err := row.Scan(&slug)
		have[slug] = true
		return err
	}, `SELECT slug FROM sessions WHERE org_id = $1 AND desired <> 'deleted'`, org)
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
// pairing links stop working, and its name is not used again. Messages and events stay until
// retention removes them. ORGANIZATION_IN_USE while a session is left.
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
		return s.audit(ctx, change{action: "organization.delete", org: id, subject: string(id), before: auditOrg(&o)})
	})
	if err != nil {
		return fmt.Errorf("delete organization %s: %w", id, err)
	}
	return nil
}
