package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// Project is a slice of an organization with limits of its own.
type Project struct {
	ProjectID fleet.ProjectID `json:"projectId" example:"prj_01k8z3v5hq2m6t9x4c7b0n1d8e"`
	OrgID     fleet.OrgID     `json:"orgId" example:"org-a"`
	Name      string          `json:"name" example:"default"`
	Entitlements
	CreatedAt *time.Time `json:"createdAt"`
}

// Entitlements are what a project may do.
type Entitlements struct {
	MonthlyQuota int64 `json:"monthlyQuota" minimum:"0" maximum:"1000000000" doc:"Messages in a month of the organization's time zone. 0: no limit."`
	MaxBacklog   int64 `json:"maxBacklog" minimum:"0" maximum:"1000000000" doc:"Messages that wait to be sent. 0: no limit."`
	Requests     int64 `json:"requestsPerMinute" minimum:"0" maximum:"10000000" doc:"Requests of any kind with keys of the project in a minute, on average. 0: no limit."`
	Rate
}

// Rate is how fast messages are accepted.
type Rate struct {
	RatePerMinute int64 `json:"ratePerMinute" minimum:"0" maximum:"10000000" doc:"Messages accepted in a minute, on average. 0: no limit."`
	RateBurst     int64 `json:"rateBurst" minimum:"0" maximum:"10000000" doc:"Of these, at once. 0: a minute's worth."`
}

// RateEdit changes it; what is missing stays as it is.
type RateEdit struct {
	RatePerMinute *int64 `json:"ratePerMinute,omitempty" minimum:"0" maximum:"10000000" doc:"Messages accepted in a minute, on average. 0: no limit."`
	RateBurst     *int64 `json:"rateBurst,omitempty" minimum:"0" maximum:"10000000" doc:"Of these, at once. 0: a minute's worth."`
}

func rateView(r fleet.Rate) Rate { return Rate{int64(r.PerMinute), int64(r.Burst)} }

func projectView(p fleet.Project) Project {
	return Project{
		ProjectID: p.ID, OrgID: p.OrgID, Name: p.Name, CreatedAt: when(p.CreatedAt),
		Entitlements: Entitlements{MonthlyQuota: p.MonthlyQuota, MaxBacklog: p.MaxBacklog, Requests: p.Requests, Rate: Rate{p.RateMinute, p.RateBurst}},
	}
}

// ProjectPath names a project in a path.
type ProjectPath struct {
	OrgPath
	ProjectID fleet.ProjectID `path:"projectId" doc:"The project."`
}

// ProjectEdit is what an operator says of a project; what is missing stays as it is, or has no limit.
type ProjectEdit struct {
	MonthlyQuota *int64 `json:"monthlyQuota,omitempty" minimum:"0" maximum:"1000000000" doc:"Messages in a month of the organization's time zone, from when it is set. 0: no limit."`
	MaxBacklog   *int64 `json:"maxBacklog,omitempty" minimum:"0" maximum:"1000000000" doc:"Messages that wait to be sent. 0: no limit."`
	Requests     *int64 `json:"requestsPerMinute,omitempty" minimum:"0" maximum:"10000000" doc:"Requests of any kind with keys of the project in a minute, on average. 0: no limit."`
	RateEdit
}

func registerProjects(api huma.API, d *deps) {
	const path = "/api/admin/organizations/{orgId}/projects"
	operation := func(method, suffix, id, summary string) huma.Operation {
		return huma.Operation{
			OperationID: id, Method: method, Path: path + suffix, Tags: []string{"Organizations"}, Summary: summary, Security: adminSecurity,
		}
	}
	create := operation(http.MethodPost, "", "create-project", "Create a project")
	create.DefaultStatus = http.StatusCreated
	create.Description = "A slice of an organization with limits of its own; every organization has one called default. Keys belong to one."
	huma.Register(api, create, func(ctx context.Context, in *struct {
		OrgPath
		Body struct {
			Name string `json:"name" maxLength:"63" example:"crm"`
			ProjectEdit
		}
	},
	) (*reply[Project], error) {
		b := in.Body
		if err := checkProjectName(b.Name); err != nil {
			return nil, err
		}
		p, err := d.store.CreateProject(ctx, fleet.Project{OrgID: in.OrgID, Name: b.Name, Entitlements: fleet.Entitlements{
			MonthlyQuota: orNone(b.MonthlyQuota), MaxBacklog: orNone(b.MaxBacklog), RateMinute: orNone(b.RatePerMinute), RateBurst: orNone(b.RateBurst),
			Requests: orNone(b.Requests),
		}})
		if err != nil {
			return nil, err
		}
		return &reply[Project]{projectView(p)}, nil
	})

	huma.Register(api, operation(http.MethodGet, "", "list-projects", "List an organization's projects"),
		func(ctx context.Context, in *OrgPath) (*reply[Page[Project]], error) {
			if _, err := d.store.GetOrganization(ctx, in.OrgID); err != nil {
				return nil, err
			}
			rows, err := d.store.ListProjects(ctx, in.OrgID)
			if err != nil {
				return nil, err
			}
			return wholeList(rows, projectView), nil
		})

	huma.Register(api, operation(http.MethodGet, "/{projectId}", "get-project", "Get a project"),
		func(ctx context.Context, in *ProjectPath) (*reply[Project], error) {
			p, err := d.store.GetProject(ctx, in.OrgID, in.ProjectID)
			if err != nil {
				return nil, err
			}
			return &reply[Project]{projectView(p)}, nil
		})

	update := operation(http.MethodPatch, "/{projectId}", "update-project", "Change a project")
	update.Description = "It counts on the next send."
	huma.Register(api, update,
		func(ctx context.Context, in *struct {
			ProjectPath
			Body struct {
				Name *string `json:"name,omitempty" maxLength:"63"`
				ProjectEdit
			}
		},
		) (*reply[Project], error) {
			b := in.Body
			if b.Name == nil && b.ProjectEdit == (ProjectEdit{}) {
				return nil, errNothingToChange
			}
			if b.Name != nil {
				if err := checkProjectName(*b.Name); err != nil {
					return nil, err
				}
			}
			var p fleet.Project
			err := d.outbound.Changing(ctx, in.OrgID, func() (err error) {
				p, err = d.store.UpdateProject(ctx, in.OrgID, in.ProjectID, store.ProjectChange{
					Name: b.Name, MonthlyQuota: b.MonthlyQuota, MaxBacklog: b.MaxBacklog, RateMinute: b.RatePerMinute, RateBurst: b.RateBurst, Requests: b.Requests,
				})
				return err
			})
			if err != nil {
				return nil, err
			}
			return &reply[Project]{projectView(p)}, nil
		})

	remove := operation(http.MethodDelete, "/{projectId}", "delete-project", "Delete a project")
	remove.DefaultStatus = http.StatusNoContent
	remove.Description = "Its keys must be revoked before. The project default stays."
	huma.Register(api, remove, func(ctx context.Context, in *ProjectPath) (*struct{}, error) {
		return nil, d.store.DeleteProject(ctx, in.OrgID, in.ProjectID)
	})
}

func orNone(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

func checkProjectName(name string) error {
	if !fleet.ValidSlug(name) {
		return invalid("PROJECT_NAME_INVALID", "name", "must be 1 to 63 lower-case letters, digits and single inner hyphens")
	}
	return nil
}
