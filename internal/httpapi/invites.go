package httpapi

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// PairingPath is where the page of pairing links is served; a link is PUBLIC_URL, this, and the token.
const PairingPath = "/pair/"

// Invite is a pairing link as the operator sees it, without its token.
type Invite struct {
	InviteID    fleet.InviteID    `json:"inviteId" example:"inv_01k8z3v5hq2m6t9x4c7b0n1d8e"`
	OrgID       fleet.OrgID       `json:"orgId" example:"org-a"`
	State       fleet.InviteState `json:"state" enum:"live,expired,revoked"`
	MaxSessions int               `json:"maxSessions" doc:"How many numbers it may add."`
	Used        int               `json:"used" doc:"How many it has added, those being linked now included."`
	MadeBy      fleet.KeyID       `json:"madeBy,omitempty" doc:"The admin key that made it."`
	CreatedAt   *time.Time        `json:"createdAt"`
	ExpiresAt   *time.Time        `json:"expiresAt"`
	RevokedAt   *time.Time        `json:"revokedAt,omitempty"`
}

// NewInvite is the only answer that ever shows a link.
type NewInvite struct {
	Invite
	URL string `json:"url" doc:"The link to hand on. It is not stored and can't be shown again." example:"https://wa.example.com/pair/wfp_…"`
}

func inviteView(i fleet.Invite) Invite {
	return Invite{
		InviteID: i.ID, OrgID: i.OrgID, State: i.State(), MaxSessions: i.MaxSessions, Used: i.Used, MadeBy: i.MadeBy,
		CreatedAt: when(i.CreatedAt), ExpiresAt: when(i.ExpiresAt), RevokedAt: when(i.RevokedAt),
	}
}

func registerInvites(api huma.API, d *deps) {
	tags := []string{"Pairing links"}
	huma.Register(api, huma.Operation{
		OperationID: "create-pairing-invite", Method: http.MethodPost, Path: "/api/admin/pairing-invites", Tags: tags,
		Summary: "Make a pairing link", DefaultStatus: http.StatusCreated, Security: adminSecurity,
		Description: "Whoever holds the link may add numbers to the organization by themselves, until it is full, expired or revoked. Nothing is provisioned before somebody presses \"Add a number\". The link is shown once.",
	}, func(ctx context.Context, in *struct {
		Body struct {
			OrgID       fleet.OrgID `json:"orgId" example:"org-a"`
			MaxSessions int         `json:"maxSessions,omitempty" minimum:"1" maximum:"100" default:"5" doc:"How many numbers it may add."`
			TTLHours    int         `json:"ttlHours,omitempty" minimum:"1" maximum:"8760" default:"168" doc:"How long it lives; a week unless said otherwise."`
		}
	},
	) (*reply[NewInvite], error) {
		b := in.Body
		secret, i, err := d.auth.CreateInvite(ctx, auth.NewInvite{
			Org: b.OrgID, MaxSessions: cmp.Or(b.MaxSessions, fleet.DefaultInviteSessions),
			TTL: cmp.Or(time.Duration(b.TTLHours)*time.Hour, fleet.DefaultInviteTTL), MadeBy: caller(ctx).KeyID,
		})
		if err != nil {
			return nil, err
		}
		return &reply[NewInvite]{NewInvite{inviteView(i), d.publicURL + PairingPath + secret.Reveal()}}, nil
	})

	huma.Register(api, huma.Operation{
		OperationID: "list-pairing-invites", Method: http.MethodGet, Path: "/api/admin/pairing-invites", Tags: tags,
		Summary: "List pairing links", Security: adminSecurity,
	}, func(ctx context.Context, in *struct {
		Paging
		OrgID fleet.OrgID `query:"orgId" doc:"Only those of one organization."`
	},
	) (*reply[Page[Invite]], error) {
		rows, err := d.store.ListInvites(ctx, store.InviteQuery{Org: in.OrgID, After: fleet.InviteID(in.Cursor), Limit: in.Limit + 1})
		if err != nil {
			return nil, err
		}
		return &reply[Page[Invite]]{pageOf(rows, in.Limit, inviteView, func(i fleet.Invite) string { return string(i.ID) })}, nil
	})

	huma.Register(api, huma.Operation{
		OperationID: "revoke-pairing-invite", Method: http.MethodPost, Path: "/api/admin/pairing-invites/{inviteId}/revoke", Tags: tags,
		Summary: "Revoke a pairing link", Security: adminSecurity,
		Description: "It opens nothing from now on, and pairings that are under way through it end. Numbers that it linked stay.",
	}, func(ctx context.Context, in *struct {
		InviteID fleet.InviteID `path:"inviteId"`
	},
	) (*reply[Invite], error) {
		i, ended, err := d.store.RevokeInvite(ctx, in.InviteID)
		if err != nil {
			return nil, err
		}
		for _, s := range ended {
			d.nudge(ctx, s)
		}
		return &reply[Invite]{inviteView(i)}, nil
	})
}
