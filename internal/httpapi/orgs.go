package httpapi

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/keyword"
	"github.com/wafleet/wafleet/internal/store"
)

// Organization is an organization as the operator sees it.
type Organization struct {
	OrgID    fleet.OrgID    `json:"orgId" example:"org-a"`
	Label    string         `json:"label" example:"Example Ltd"`
	Strategy fleet.Strategy `json:"strategy" enum:"weighted,priority,round-robin" doc:"How the router orders the sessions that may send."`
	TimeZone string         `json:"timeZone" doc:"Its months, for quotas, begin there." example:"America/Sao_Paulo"`
	Affinity int            `json:"affinityTtlSeconds" doc:"How long a person keeps the number that wrote to them last." example:"86400"`
	Rate
	CreatedAt *time.Time `json:"createdAt"`
}

// OrganizationDetail also lists its sessions.
type OrganizationDetail struct {
	Organization
	Sessions []fleet.SessionSlug `json:"sessions" doc:"In list order, which is the priority order."`
	HeadID   fleet.SessionSlug   `json:"headSessionId,omitempty" doc:"The one that consumers see as sessionId, whichever number sends."`

	Region             string                    `json:"region,omitempty" doc:"Whose numbers may come without a country code." example:"BR"`
	Keywords           map[string]fleet.Keywords `json:"keywords" doc:"By language: what opts out and in when it is the whole message. STOP and START always do."`
	OptOutConfirmation string                    `json:"optOutConfirmation,omitempty" doc:"Sent once to who opts out. Missing: nothing is."`
}

func organizationView(o fleet.Organization) Organization {
	return Organization{
		OrgID: o.ID, Label: o.Label, Strategy: o.Strategy, TimeZone: o.TimeZone, Affinity: int(o.AffinityTTL / time.Second),
		Rate: rateView(o.Rate), CreatedAt: when(o.CreatedAt),
	}
}

// OrgPath names an organization in a path.
type OrgPath struct {
	OrgID fleet.OrgID `path:"orgId" doc:"The organization." example:"org-a"`
}

func registerOrganizations(api huma.API, d *deps) {
	tags := []string{"Organizations"}
	huma.Register(api, huma.Operation{
		OperationID: "create-organization", Method: http.MethodPost, Path: "/api/admin/organizations", Tags: tags,
		Summary: "Create an organization", DefaultStatus: http.StatusCreated, Security: adminSecurity,
	}, func(ctx context.Context, in *struct {
		Body struct {
			OrgID    fleet.OrgID    `json:"orgId" doc:"Its name for ever: lower-case letters, digits, single hyphens." maxLength:"56" example:"org-a"`
			Label    string         `json:"label,omitempty" doc:"For people; default: the orgId."`
			Strategy fleet.Strategy `json:"strategy,omitempty" enum:"weighted,priority,round-robin" default:"weighted"`
			TimeZone string         `json:"timeZone,omitempty" doc:"IANA name; default UTC." maxLength:"64" example:"America/Sao_Paulo"`
		}
	},
	) (*reply[Organization], error) {
		b := in.Body
		if !fleet.ValidSlug(string(b.OrgID)) || len(b.OrgID) > fleet.MaxOrgID {
			return nil, invalid("ORG_ID_INVALID", "orgId", "must be 1 to 56 lower-case letters, digits and single inner hyphens")
		}
		if err := checkLabel(b.Label); err != nil {
			return nil, err
		}
		if err := checkTimeZone(b.TimeZone); b.TimeZone != "" && err != nil {
			return nil, err
		}
		o, err := d.store.CreateOrganization(ctx, fleet.Organization{
			ID: b.OrgID, Label: cmp.Or(b.Label, string(b.OrgID)), Strategy: b.Strategy, TimeZone: b.TimeZone,
		})
		if err != nil {
			return nil, err
		}
		return &reply[Organization]{organizationView(o)}, nil
	})

	huma.Register(api, huma.Operation{
		OperationID: "list-organizations", Method: http.MethodGet, Path: "/api/admin/organizations", Tags: tags,
		Summary: "List organizations", Security: adminSecurity,
	}, func(ctx context.Context, in *Paging) (*reply[Page[Organization]], error) {
		rows, err := d.store.ListOrganizations(ctx, fleet.OrgID(in.Cursor), in.Limit+1)
		if err != nil {
			return nil, err
		}
		return &reply[Page[Organization]]{pageOf(rows, in.Limit, organizationView, func(o fleet.Organization) string { return string(o.ID) })}, nil
	})

	huma.Register(api, huma.Operation{
		OperationID: "get-organization", Method: http.MethodGet, Path: "/api/admin/organizations/{orgId}", Tags: tags,
		Summary: "Get an organization and its sessions", Security: adminSecurity,
	}, func(ctx context.Context, in *OrgPath) (*reply[OrganizationDetail], error) {
		o, err := d.store.GetOrganization(ctx, in.OrgID)
		if err != nil {
			return nil, err
		}
		return d.organizationDetail(ctx, o)
	})

	huma.Register(api, huma.Operation{
		OperationID: "update-organization", Method: http.MethodPatch, Path: "/api/admin/organizations/{orgId}", Tags: tags,
		Summary: "Change an organization", Security: adminSecurity,
		Description: "Changes the label, the strategy, how long a person keeps their number, how fast its projects together may ask for messages, what counts about opt-outs, or its list of sessions: op \"add\" puts one of its sessions back at the end, " +
			"\"remove\" takes one out (it receives as before and never sends), \"reorder\" sets the order. It counts on the next send.",
	}, func(ctx context.Context, in *struct {
		OrgPath
		Body organizationChange
	},
	) (*reply[OrganizationDetail], error) {
		change, err := in.Body.change()
		if err != nil {
			return nil, err
		}
		var removed []fleet.SessionSlug
		if change.Remove != "" {
			removed = append(removed, change.Remove)
		}
		var o fleet.Organization
		err = d.outbound.Changing(ctx, in.OrgID, func() error {
			o, err = d.store.UpdateOrganization(ctx, in.OrgID, change)
			return err
		}, removed...)
		if err != nil {
			return nil, err
		}
		return d.organizationDetail(ctx, o)
	})

	huma.Register(api, huma.Operation{
		OperationID: "delete-organization", Method: http.MethodDelete, Path: "/api/admin/organizations/{orgId}", Tags: tags,
		Summary: "Delete an organization", DefaultStatus: http.StatusNoContent, Security: adminSecurity,
		Description: "Its sessions must be deleted before. Its keys, endpoints and pairing links stop working, and its id is not used again. A minute later all that is left of it is purged for good: messages, events, contacts, opt-outs, WhatsApp's keys.",
	}, func(ctx context.Context, in *OrgPath) (*struct{}, error) {
		if err := d.store.DeleteOrganization(ctx, in.OrgID); err != nil {
			return nil, err
		}
		d.auth.KeysChanged(ctx, "")
		return nil, nil //nolint:nilnil // huma's way to say 204
	})
}

// checkTimeZone takes names of the time zone database; "Local" would mean another thing on every machine.
func checkTimeZone(name string) error {
	if _, err := time.LoadLocation(name); err != nil || name == "" || name == "Local" {
		return invalid("TIME_ZONE_INVALID", "timeZone", "is not a name of the time zone database, such as America/Sao_Paulo")
	}
	return nil
}

// organizationChange is the body of a change; what is missing stays as it is.
type organizationChange struct {
	Label              *string         `json:"label,omitempty"`
	Strategy           *fleet.Strategy `json:"strategy,omitempty" enum:"weighted,priority,round-robin"`
	TimeZone           *string         `json:"timeZone,omitempty" maxLength:"64"`
	AffinityTTLSeconds *int            `json:"affinityTtlSeconds,omitempty" minimum:"60" maximum:"31536000" doc:"How long a person keeps the number that wrote to them last; 86,400 at first." example:"86400"`
	RateEdit
	PeopleChange
	Op        string              `json:"op,omitempty" enum:"add,remove,reorder"`
	SessionID fleet.SessionSlug   `json:"sessionId,omitempty" doc:"With op \"add\" and \"remove\"." example:"org-a-04"`
	Sessions  []fleet.SessionSlug `json:"sessions,omitempty" doc:"With op \"reorder\": every session of the list, once each." maxItems:"10000"`
}

func (b *organizationChange) change() (store.OrgChange, error) {
	c := store.OrgChange{Label: b.Label, Strategy: b.Strategy, TimeZone: b.TimeZone, RateMinute: b.RatePerMinute, RateBurst: b.RateBurst}
	if b.AffinityTTLSeconds != nil {
		ttl := time.Duration(*b.AffinityTTLSeconds) * time.Second
		c.AffinityTTL = &ttl
	}
	if b.Label != nil {
		if err := checkLabel(*b.Label); err != nil {
			return c, err
		}
	}
	if b.TimeZone != nil {
		if err := checkTimeZone(*b.TimeZone); err != nil {
			return c, err
		}
	}
	var err error
	if c.People, err = b.PeopleChange.change(); err != nil {
		return c, err
	}
	switch {
	case b.Sessions != nil && b.Op != "reorder":
		return c, invalid("VALIDATION", "sessions", "belongs to op \"reorder\"")
	case b.SessionID != "" && b.Op != "add" && b.Op != "remove":
		return c, invalid("VALIDATION", "sessionId", "belongs to op \"add\" or \"remove\"")
	case (b.Op == "add" || b.Op == "remove") && !fleet.ValidSlug(string(b.SessionID)):
		return c, invalid("VALIDATION", "sessionId", "must name a session")
	}
	switch b.Op {
	case "add":
		c.Add = b.SessionID
	case "remove":
		c.Remove = b.SessionID
	case "reorder":
		c.Order = append([]fleet.SessionSlug{}, b.Sessions...)
	default:
		if b.Label == nil && b.Strategy == nil && b.TimeZone == nil && c.AffinityTTL == nil && b.RateEdit == (RateEdit{}) && c.People == nil {
			return c, errNothingToChange
		}
	}
	return c, nil
}

var errNothingToChange = invalid("VALIDATION", "body", "names nothing to change")

func (d *deps) organizationDetail(ctx context.Context, o fleet.Organization) (*reply[OrganizationDetail], error) {
	sessions, err := d.store.OrgSessions(ctx, o.ID)
	if err != nil {
		return nil, err
	}
	rules, err := d.store.PeopleRules(ctx, o.ID)
	if err != nil {
		return nil, err
	}
	out := OrganizationDetail{
		Organization: organizationView(o), Sessions: []fleet.SessionSlug{},
		Region: rules.Region, Keywords: keyword.Effective(rules.Keywords), OptOutConfirmation: rules.Confirmation,
	}
	for _, s := range sessions {
		if !s.Detached {
			out.Sessions = append(out.Sessions, s.Slug)
		}
		if s.ID == o.HeadSessionID {
			out.HeadID = s.Slug
		}
	}
	return &reply[OrganizationDetail]{out}, nil
}

// OwnOrganization is an organization as its own key sees it: no other number's identity, no worker.
type OwnOrganization struct {
	OrgID     fleet.OrgID       `json:"orgId" example:"org-a"`
	Label     string            `json:"label" example:"Example Ltd"`
	SessionID fleet.SessionSlug `json:"sessionId,omitempty" doc:"What messages and events carry as sessionId, whichever number sends."`
	Sessions  struct {
		Total     int `json:"total" doc:"Numbers of the organization."`
		Connected int `json:"connected" doc:"Of these: connected now and not paused."`
	} `json:"sessions"`
}

func registerOwnOrganization(api huma.API, d *deps) {
	huma.Register(api, huma.Operation{
		OperationID: "get-own-organization", Method: http.MethodGet, Path: "/api/v1/organization", Tags: []string{"Organization"},
		Summary: "Get the organization that the key speaks for", Security: organizationSecurity,
	}, func(ctx context.Context, _ *struct{}) (*reply[OwnOrganization], error) {
		o, err := d.store.GetOrganization(ctx, caller(ctx).OrgID)
		if err != nil {
			return nil, err
		}
		sessions, err := d.store.OrgSessions(ctx, o.ID)
		if err != nil {
			return nil, err
		}
		out := OwnOrganization{OrgID: o.ID, Label: o.Label}
		for _, s := range sessions {
			if s.ID == o.HeadSessionID {
				out.SessionID = s.Slug
			}
			if s.Detached {
				continue
			}
			out.Sessions.Total++
			if sessionView(s).Connected && !s.Paused {
				out.Sessions.Connected++
			}
		}
		return &reply[OwnOrganization]{out}, nil
	})
}
