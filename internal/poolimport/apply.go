package poolimport

import (
	"context"
	"fmt"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// Apply does what the plan says, one organization at a time: all of it or nothing. What exists is left
// as it is. Keys are taken over only if withKeys says that they can be found here.
func (p *Plan) Apply(ctx context.Context, s *store.Store, withKeys bool) error {
	for i := range p.Organizations {
		o := &p.Organizations[i]
		err := s.InTx(ctx, func(ctx context.Context) error { return o.apply(ctx, s, withKeys) })
		if err != nil {
			return fmt.Errorf("import pool %s: %w", o.Pool, err)
		}
	}
	return nil
}

func (o *Organization) apply(ctx context.Context, s *store.Store, withKeys bool) error {
	if !o.Exists {
		if _, err := s.CreateOrganization(ctx, o.Organization); err != nil {
			return err
		}
	}
	for _, v := range o.Sessions {
		if v.Exists {
			continue
		}
		if err := v.apply(ctx, s, o.ID); err != nil {
			return err
		}
	}
	if !withKeys {
		return nil
	}
	project, err := s.DefaultProject(ctx, o.ID)
	if err != nil {
		return err
	}
	for _, k := range o.Keys {
		if k.Exists {
			continue
		}
		k.ID, k.ProjectID = fleet.NewKeyID(), project
		if _, err := s.InsertKey(ctx, k.APIKey); err != nil {
			return err
		}
	}
	return nil
}

func (v *Session) apply(ctx context.Context, s *store.Store, org fleet.OrgID) error {
	_, err := s.CreateSession(ctx, store.NewSession{Org: org, Slug: v.Slug, Label: v.Label, Warmed: true, WarmupAt: v.WarmupAt, Phone: v.Phone})
	if err != nil {
		return err
	}
	c := store.SessionChange{}
	if v.Paused {
		c.Paused = &v.Paused
	}
	if v.Budget != fleet.NoBudget {
		c.Budget = &v.Budget
	}
	if c == (store.SessionChange{}) {
		return nil
	}
	_, err = s.UpdateSession(ctx, v.Slug, c)
	return err
}
