package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// Usage is what a project sent in a day, or what its organization received.
type Usage struct {
	Day       string          `json:"day" doc:"Of the organization's time zone." example:"2026-11-30"`
	OrgID     fleet.OrgID     `json:"orgId" example:"org-a"`
	ProjectID fleet.ProjectID `json:"projectId,omitempty" doc:"Missing: what came in, which is no project's."`
	Accepted  int64           `json:"accepted" doc:"Messages that were accepted that day."`
	Sent      int64           `json:"sent" doc:"Of these: WhatsApp took them."`
	Delivered int64           `json:"delivered" doc:"Of these: they arrived, as far as is known two days later."`
	Failed    int64           `json:"failed" doc:"Of these: they ended unsent: failed, expired, cancelled or suppressed."`
	Received  int64           `json:"received" doc:"Messages that came in."`
}

// mostUsage bounds an answer; whoever wants more asks for fewer days at a time.
const mostUsage = 10_000

func registerUsage(api huma.API, d *deps) {
	huma.Register(api, huma.Operation{
		OperationID: "list-usage", Method: http.MethodGet, Path: "/api/admin/usage", Tags: []string{"Usage"},
		Summary: "List usage by day and project", Security: adminSecurity,
		Description: "Counted every quarter of an hour; a day is counted again for two more days, as receipts come late. Days are kept for as long as their organization.",
	}, func(ctx context.Context, in *struct {
		From  string      `query:"from" required:"true" doc:"First day." example:"2026-11-01"`
		To    string      `query:"to" required:"true" doc:"Last day." example:"2026-11-30"`
		OrgID fleet.OrgID `query:"orgId" doc:"Only of one organization."`
	},
	) (*reply[Page[Usage]], error) {
		for name, day := range map[string]string{"from": in.From, "to": in.To} {
			if _, err := time.Parse(time.DateOnly, day); err != nil {
				return nil, invalid("VALIDATION", name, "must be a day such as 2026-11-30")
			}
		}
		if in.To < in.From {
			return nil, invalid("VALIDATION", "to", "is before from")
		}
		rows, err := d.store.ListUsage(ctx, store.UsageQuery{Org: in.OrgID, From: in.From, To: in.To, Limit: mostUsage + 1})
		if err != nil {
			return nil, err
		}
		if len(rows) > mostUsage {
			return nil, invalid("VALIDATION", "to", fmt.Sprintf("more than %d lines: ask for fewer days, or for one organization", mostUsage))
		}
		return wholeList(rows, func(u fleet.Usage) Usage {
			return Usage{
				Day: u.Day, OrgID: u.OrgID, ProjectID: u.ProjectID, Accepted: u.Accepted, Sent: u.Sent, Delivered: u.Delivered, Failed: u.Failed, Received: u.Received,
			}
		}), nil
	})
}
