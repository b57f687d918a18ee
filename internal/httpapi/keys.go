package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// Key is what is known of an API key beside the key itself.
type Key struct {
	KeyID     fleet.KeyID     `json:"keyId" example:"key_01k8z3v5hq2m6t9x4c7b0n1d8e"`
	OrgID     fleet.OrgID     `json:"orgId,omitempty" doc:"Missing for an admin key."`
	ProjectID fleet.ProjectID `json:"projectId,omitempty" doc:"The project that it belongs to."`
	Admin     bool            `json:"admin"`
	Label     string          `json:"label"`
	Prefix    string          `json:"prefix" doc:"How the key begins, to tell keys apart." example:"wfk_abcdef"`
	CreatedAt *time.Time      `json:"createdAt"`
	RevokedAt *time.Time      `json:"revokedAt,omitempty"`
}

// NewKey is the only answer that ever shows a key.
type NewKey struct {
	Key
	Secret string `json:"key" doc:"The key. It is not stored and can't be shown again."`
}

func keyView(k fleet.APIKey) Key {
	return Key{
		KeyID: k.ID, OrgID: k.OrgID, ProjectID: k.ProjectID, Admin: k.Admin, Label: k.Label, Prefix: k.Prefix,
		CreatedAt: when(k.CreatedAt), RevokedAt: when(k.RevokedAt),
	}
}

func registerKeys(api huma.API, d *deps) {
	tags := []string{"Keys"}
	huma.Register(api, huma.Operation{
		OperationID: "create-key", Method: http.MethodPost, Path: "/api/admin/keys", Tags: tags,
		Summary: "Create an API key", DefaultStatus: http.StatusCreated, Security: adminSecurity,
		Description: "Of an organization, or with admin true for operating the gateway. The key is shown once.",
	}, func(ctx context.Context, in *struct {
		Body struct {
			OrgID     fleet.OrgID     `json:"orgId,omitempty" example:"org-a"`
			ProjectID fleet.ProjectID `json:"projectId,omitempty" doc:"Default: the organization's project default."`
			Admin     bool            `json:"admin,omitempty"`
			Label     string          `json:"label,omitempty" doc:"Where it is used, for people."`
		}
	},
	) (*reply[NewKey], error) {
		b := in.Body
		if b.Admin == (b.OrgID != "") {
			return nil, invalid("VALIDATION", "orgId", "give either orgId or admin true")
		}
		if b.ProjectID != "" && b.Admin {
			return nil, invalid("VALIDATION", "projectId", "belongs to a key of an organization")
		}
		if err := checkLabel(b.Label); err != nil {
			return nil, err
		}
		secret, k, err := d.auth.Create(ctx, auth.NewKey{Admin: b.Admin, Org: b.OrgID, Project: b.ProjectID, Label: b.Label})
		if err != nil {
			return nil, err
		}
		return &reply[NewKey]{NewKey{keyView(k), secret.Reveal()}}, nil
	})

	huma.Register(api, huma.Operation{
		OperationID: "list-keys", Method: http.MethodGet, Path: "/api/admin/keys", Tags: tags,
		Summary: "List API keys", Security: adminSecurity,
	}, func(ctx context.Context, in *struct {
		Paging
		OrgID fleet.OrgID `query:"orgId" doc:"Only those of one organization."`
	},
	) (*reply[Page[Key]], error) {
		rows, err := d.store.ListKeys(ctx, store.KeyQuery{Org: in.OrgID, After: fleet.KeyID(in.Cursor), Limit: in.Limit + 1})
		if err != nil {
			return nil, err
		}
		return &reply[Page[Key]]{pageOf(rows, in.Limit, keyView, func(k fleet.APIKey) string { return string(k.ID) })}, nil
	})

	huma.Register(api, huma.Operation{
		OperationID: "get-key", Method: http.MethodGet, Path: "/api/admin/keys/{keyId}", Tags: tags,
		Summary: "Get an API key, without the key itself", Security: adminSecurity,
	}, func(ctx context.Context, in *struct {
		KeyID fleet.KeyID `path:"keyId"`
	},
	) (*reply[Key], error) {
		k, err := d.store.GetKey(ctx, in.KeyID)
		if err != nil {
			return nil, err
		}
		return &reply[Key]{keyView(k)}, nil
	})

	huma.Register(api, huma.Operation{
		OperationID: "update-key", Method: http.MethodPatch, Path: "/api/admin/keys/{keyId}", Tags: tags,
		Summary: "Change what is said of an API key", Security: adminSecurity,
		Description: "Only the label: what a key may do never changes, make another one instead.",
	}, func(ctx context.Context, in *struct {
		KeyID fleet.KeyID `path:"keyId"`
		Body  struct {
			Label string `json:"label"`
		}
	},
	) (*reply[Key], error) {
		if err := checkLabel(in.Body.Label); err != nil {
			return nil, err
		}
		k, err := d.store.LabelKey(ctx, in.KeyID, in.Body.Label)
		if err != nil {
			return nil, err
		}
		return &reply[Key]{keyView(k)}, nil
	})

	huma.Register(api, huma.Operation{
		OperationID: "revoke-key", Method: http.MethodDelete, Path: "/api/admin/keys/{keyId}", Tags: tags,
		Summary: "Revoke an API key", Security: adminSecurity,
		Description: "It stops working at once here and within seconds everywhere. The key that asks can't revoke itself, so one admin key is always left.",
	}, func(ctx context.Context, in *struct {
		KeyID fleet.KeyID `path:"keyId"`
	},
	) (*reply[Key], error) {
		if in.KeyID == caller(ctx).KeyID {
			return nil, conflict("OWN_KEY", "a key can't revoke itself: use another admin key")
		}
		k, err := d.auth.Revoke(ctx, in.KeyID)
		if err != nil {
			return nil, err
		}
		return &reply[Key]{keyView(k)}, nil
	})
}
