package store

import (
	"context"
	"fmt"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

const projectColumns = `id, org_id, name, monthly_quota, max_backlog, rate_minute, rate_burst, requests_minute, created_at`

func scanProject(row dbutil.Scannable) (p fleet.Project, err error) {
	err = row.Scan(&p.ID, &p.OrgID, &p.Name, &p.MonthlyQuota, &p.MaxBacklog, &p.RateMinute, &p.RateBurst, &p.Requests, at{&p.CreatedAt})
	return p, err
}

// CreateProject adds a project to an organization. fleet.ErrNotFound: no such organization.
// fleet.ErrConflict: it has a project of this name, or had one.
func (s *Store) CreateProject(ctx context.Context, p fleet.Project) (out fleet.Project, err error) {
	err = s.InTx(ctx, func(ctx context.Context) error {
		out, err = scanProject(s.row(ctx, `INSERT INTO projects (id, org_id, name, monthly_quota, max_backlog, rate_minute, rate_burst, requests_minute, created_at)
			SELECT $1, o.id, $3, CAST($4 AS BIGINT), CAST($5 AS BIGINT), CAST($6 AS BIGINT), CAST($7 AS BIGINT), CAST($8 AS BIGINT), @now@
			FROM organizations o WHERE o.id = $2 AND o.deleted_at = 0 RETURNING `+projectColumns,
			fleet.NewProjectID(), p.OrgID, p.Name, p.MonthlyQuota, p.MaxBacklog, p.RateMinute, p.RateBurst, p.Requests))
		if err != nil {
			return notFound(err)
		}
		return s.audit(ctx, change{action: "project.create", org: out.OrgID, subject: string(out.ID), after: auditProject(&out)})
	})
	if err != nil {
		return fleet.Project{}, fmt.Errorf("create project in %s: %w", p.OrgID, err)
	}
	return out, nil
}

// GetProject reads one project of an organization, or says fleet.ErrNotFound.
func (s *Store) GetProject(ctx context.Context, org fleet.OrgID, id fleet.ProjectID) (fleet.Project, error) {
	p, err := scanProject(s.row(ctx, `SELECT `+projectColumns+` FROM projects WHERE org_id = $1 AND id = $2 AND deleted_at = 0`, org, id))
	if err != nil {
		return p, fmt.Errorf("get project %s: %w", id, notFound(err))
	}
	return p, nil
}

// ListProjects reads an organization's projects in the order they were made.
func (s *Store) ListProjects(ctx context.Context, org fleet.OrgID) ([]fleet.Project, error) {
	var out []fleet.Project
	err := s.query(ctx, func(row dbutil.Scannable) error {
		p, err := scanProject(row)
		out = append(out, p)
		return err
	}, `SELECT `+projectColumns+` FROM projects WHERE org_id = $1 AND deleted_at = 0 ORDER BY created_at, id`, org)
	if err != nil {
		return nil, fmt.Errorf("list projects of %s: %w", org, err)
	}
	return out, nil
}

// ProjectChange says what to change of a project; nil means: leave it.
type ProjectChange struct {
	Name                                                      *string
	MonthlyQuota, MaxBacklog, RateMinute, RateBurst, Requests *int64
}

// UpdateProject changes one project. fleet.ErrConflict: the name is taken, or is the default
// project's, which keeps its name.
func (s *Store) UpdateProject(ctx context.Context, org fleet.OrgID, id fleet.ProjectID, c ProjectChange) (out fleet.Project, err error) {
	err = s.InTx(ctx, func(ctx context.Context) error {
		before, err := s.GetProject(ctx, org, id)
		if err != nil {
			return err
		}
		if c.Name != nil && before.Name == fleet.DefaultProject && *c.Name != before.Name {
			return errDefaultProject
		}
		out, err = scanProject(s.row(ctx, `UPDATE projects SET name = coalesce($3, name),
				quota_since = CASE WHEN monthly_quota = 0 AND coalesce($4, 0) > 0 THEN @now@ ELSE quota_since END, monthly_quota = coalesce($4, monthly_quota),
				max_backlog = coalesce($5, max_backlog), rate_minute = coalesce($6, rate_minute), rate_burst = coalesce($7, rate_burst),
				requests_minute = coalesce($8, requests_minute)
			WHERE org_id = $1 AND id = $2 AND deleted_at = 0 RETURNING `+projectColumns,
			org, id, c.Name, c.MonthlyQuota, c.MaxBacklog, c.RateMinute, c.RateBurst, c.Requests))
		if err != nil {
			return notFound(err)
		}
		if out.Requests != before.Requests { // it goes with the key
			if err := s.keysChange(ctx); err != nil {
				return err
			}
		}
		return s.audit(ctx, change{action: "project.update", org: org, subject: string(id), before: auditProject(&before), after: auditProject(&out)})
	})
	if err != nil {
		return fleet.Project{}, fmt.Errorf("update project %s: %w", id, err)
	}
	return out, nil
}

var errDefaultProject = &fleet.CodedError{
	Code: "DEFAULT_PROJECT", Detail: "every organization keeps its project \"default\" under this name", Err: fleet.ErrConflict,
}

// DeleteProject ends a project that no live key belongs to (PROJECT_IN_USE otherwise). Its name is
// not used again. The default project stays.
func (s *Store) DeleteProject(ctx context.Context, org fleet.OrgID, id fleet.ProjectID) error {
	err := s.InTx(ctx, func(ctx context.Context) error {
		p, err := s.GetProject(ctx, org, id)
		if err != nil {
			return err
		}
		if p.Name == fleet.DefaultProject {
			return errDefaultProject
		}
		// The row first: a key that is being made for it waits, and finds it deleted.
		n, err := s.exec(ctx, `UPDATE projects SET deleted_at = @now@ WHERE org_id = $1 AND id = $2 AND deleted_at = 0`, org, id)
		if err := exactlyOne(n, err); err != nil {
			return err
		}
		var keys int
		if err := s.row(ctx, `SELECT count(*) FROM api_keys WHERE project_id = $1 AND revoked_at = 0`, id).Scan(&keys); err != nil {
			return unavailable(err)
		}
		if keys > 0 {
			return &fleet.CodedError{Code: "PROJECT_IN_USE", Detail: fmt.Sprintf("it has %d live keys: revoke them first", keys), Err: fleet.ErrConflict}
		}
		return s.audit(ctx, change{action: "project.delete", org: org, subject: string(id), before: auditProject(&p)})
	})
	if err != nil {
		return fmt.Errorf("delete project %s: %w", id, err)
	}
	return nil
}

// DefaultProject reads the project every organization has.
func (s *Store) DefaultProject(ctx context.Context, org fleet.OrgID) (fleet.ProjectID, error) {
	var id fleet.ProjectID
	err := s.row(ctx, `SELECT id FROM projects WHERE org_id = $1 AND name = $2 AND deleted_at = 0`, org, fleet.DefaultProject).Scan(&id)
	if err != nil {
		return "", fmt.Errorf("get default project of %s: %w", org, notFound(err))
	}
	return id, nil
}

// Entitlements reads what a project may do and the time zone that its months are counted in.
func (s *Store) Entitlements(ctx context.Context, id fleet.ProjectID) (e fleet.Entitlements, zone string, err error) {
	err = s.row(ctx, `SELECT p.monthly_quota, p.max_backlog, p.rate_minute, p.rate_burst, p.requests_minute, o.time_zone
		FROM projects p JOIN organizations o ON o.id = p.org_id WHERE p.id = $1`, id).
		Scan(&e.MonthlyQuota, &e.MaxBacklog, &e.RateMinute, &e.RateBurst, &e.Requests, &zone)
	if err != nil {
		return e, "", fmt.Errorf("read entitlements of project %s: %w", id, notFound(err))
	}
	return e, zone, nil
}
