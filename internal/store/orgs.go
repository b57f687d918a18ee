package store

import (
	"context"
	"errors"
	"fmt"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

// ErrOrder says that the list given for a new order is not exactly the organization's live sessions.
var ErrOrder = errors.New("order must name every session of the organization exactly once")

const orgColumns = `id, label, strategy, head_session_id, created_at`

func scanOrg(row dbutil.Scannable) (fleet.Organization, error) {
	var o fleet.Organization
	err := row.Scan(&o.ID, &o.Label, &o.Strategy, &o.HeadSessionID, at{&o.CreatedAt})
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
		out, err = scanOrg(s.row(ctx, `INSERT INTO organizations (id, label, strategy, created_at) VALUES ($1, $2, $3, @now@)
			RETURNING `+orgColumns, o.ID, o.Label, o.Strategy))
		if err != nil {
			return unavailable(err)
		}
		_, err = s.exec(ctx, `INSERT INTO projects (id, org_id, name, created_at) VALUES ($1, $2, 'default', @now@)`,
			fleet.NewProjectID(), o.ID)
		return err
	})
	if err != nil {
		return o, fmt.Errorf("create organization %s: %w", o.ID, err)
	}
	return out, nil
}

// GetOrganization reads one organization, or fleet.ErrNotFound.
func (s *Store) GetOrganization(ctx context.Context, id fleet.OrgID) (fleet.Organization, error) {
	o, err := scanOrg(s.row(ctx, `SELECT `+orgColumns+` FROM organizations WHERE id = $1`, id))
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
	}, `SELECT `+orgColumns+` FROM organizations WHERE id > $1 ORDER BY id LIMIT $2`, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list organizations: %w", err)
	}
	return out, nil
}

// OrgChange says what to change of an organization; nil means: leave it.
type OrgChange struct {
	Label    *string
	Strategy *fleet.Strategy
	Order    []fleet.SessionSlug // a new list order: every live session exactly once, else ErrOrder
}

// UpdateOrganization changes one organization, or says fleet.ErrNotFound. The head session stays
// what it is, whatever the order.
func (s *Store) UpdateOrganization(ctx context.Context, id fleet.OrgID, c OrgChange) (fleet.Organization, error) {
	var out fleet.Organization
	err := s.InTx(ctx, func(ctx context.Context) (err error) {
		// Writing the organization first makes changes of its list wait for each other.
		out, err = scanOrg(s.row(ctx, `UPDATE organizations SET label = coalesce($2, label), strategy = coalesce($3, strategy)
			WHERE id = $1 RETURNING `+orgColumns, id, c.Label, c.Strategy))
		if err != nil {
			return notFound(err)
		}
		if c.Order == nil {
			return nil
		}
		return s.orderSessions(ctx, id, c.Order)
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

// DefaultProject reads the project every organization has.
func (s *Store) DefaultProject(ctx context.Context, org fleet.OrgID) (fleet.ProjectID, error) {
	var id fleet.ProjectID
	err := s.row(ctx, `SELECT id FROM projects WHERE org_id = $1 AND name = 'default'`, org).Scan(&id)
	if err != nil {
		return "", fmt.Errorf("get default project of %s: %w", org, notFound(err))
	}
	return id, nil
}
