package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// Purge is the deletion of what belonged to a session or an organization that was deleted.
type Purge struct {
	Kind       string            `json:"kind" enum:"session,organization"`
	OrgID      fleet.OrgID       `json:"orgId" example:"org-a"`
	SessionID  fleet.SessionSlug `json:"sessionId,omitempty" doc:"Of a session's purge." example:"org-a-01"`
	Steps      int               `json:"steps" doc:"How many steps it has." example:"16"`
	StepsDone  int               `json:"stepsDone" example:"4"`
	Rows       int64             `json:"rows" doc:"Rows deleted so far, without WhatsApp's keys."`
	CreatedAt  *time.Time        `json:"createdAt"`
	FinishedAt *time.Time        `json:"finishedAt,omitempty" doc:"Missing: it goes on."`
}

func purgeView(p store.Purge) Purge {
	return Purge{
		Kind: p.Kind, OrgID: p.Org, SessionID: p.Slug, Steps: p.Steps, StepsDone: p.Step, Rows: p.Deleted,
		CreatedAt: when(p.CreatedAt), FinishedAt: when(p.FinishedAt),
	}
}

func registerPurges(api huma.API, d *deps) {
	huma.Register(api, huma.Operation{
		OperationID: "list-purges", Method: http.MethodGet, Path: "/api/admin/purges", Tags: []string{"Purges"},
		Summary: "List purges", Security: adminSecurity,
		Description: "What is being deleted of sessions and organizations, newest first, 200 at most. Finished ones are listed for as long as ended commands are kept.",
	}, func(ctx context.Context, in *struct {
		OrgID fleet.OrgID `query:"orgId" doc:"Only of one organization."`
	},
	) (*reply[Page[Purge]], error) {
		rows, err := d.store.ListPurges(ctx, in.OrgID, 200)
		if err != nil {
			return nil, err
		}
		return wholeList(rows, purgeView), nil
	})
}
