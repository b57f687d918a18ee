package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/webhook"
)

// defaultKeepHours is how long the secret before stays live in a rotation.
const defaultKeepHours = 24

// Endpoint is a webhook URL and what it hears.
type Endpoint struct {
	EndpointID     fleet.EndpointID  `json:"endpointId" example:"ep_01k8z3v5hq2m6t9x4c7b0n1d8e"`
	OrgID          fleet.OrgID       `json:"orgId,omitempty" doc:"Operator view: whose events. Missing: of every organization."`
	Scope          fleet.Scope       `json:"scope" enum:"organization,operator"`
	URL            string            `json:"url" example:"https://example.com/webhooks/wafleet"`
	Description    string            `json:"description,omitempty"`
	Events         []fleet.EventKind `json:"events" doc:"Empty: all of its scope."`
	MaxConcurrency int               `json:"maxConcurrency" doc:"Deliveries in flight at once."`
	Disabled       bool              `json:"disabled"`
	DisabledWhy    string            `json:"disabledWhy,omitempty" doc:"by_hand, gone (it answered 410) or failing (for days)."`
	Failures       int               `json:"failures,omitempty" doc:"Failed tries in a row."`
	FailingSince   *time.Time        `json:"failingSince,omitempty"`
	PausedUntil    *time.Time        `json:"pausedUntil,omitempty" doc:"No try before this, after too many failures in a row."`
	CreatedAt      *time.Time        `json:"createdAt"`
}

// EndpointSecret is an endpoint in the only answers that show its secret.
type EndpointSecret struct {
	Endpoint
	Secret             string     `json:"secret" doc:"Signs the deliveries, as Standard Webhooks writes it. Shown this once."`
	PreviousSecretEnds *time.Time `json:"previousSecretEnds,omitempty" doc:"Until then the secret before signs too."`
}

func endpointView(e fleet.Endpoint) Endpoint {
	events := e.Events
	if events == nil {
		events = []fleet.EventKind{}
	}
	return Endpoint{
		EndpointID: e.ID, OrgID: e.OrgID, Scope: e.Scope, URL: e.URL, Description: e.Description, Events: events,
		MaxConcurrency: e.MaxConcurrency, Disabled: e.Disabled, DisabledWhy: e.DisabledWhy,
		Failures: e.Failures, FailingSince: when(e.FailingSince), PausedUntil: when(e.OpenUntil), CreatedAt: when(e.CreatedAt),
	}
}

func endpointSecretView(e fleet.Endpoint) *reply[EndpointSecret] {
	v := EndpointSecret{Endpoint: endpointView(e)}
	for i, s := range e.Secrets {
		if i == 0 {
			v.Secret = s.Value
		} else {
			v.PreviousSecretEnds = when(s.ExpiresAt)
		}
	}
	return &reply[EndpointSecret]{v}
}

// side is one of the two sides from which endpoints and deliveries are seen: the consumer's, who has
// its organization's own, and the operator's, who has them all.
type side struct {
	prefix, idSuffix string
	scope            fleet.Scope
	tag              string
	security         []map[string][]string
	// org restricts what is seen; "" = all.
	org func(ctx context.Context) fleet.OrgID
}

var (
	consumerSide = side{
		prefix: "/api/v1", scope: fleet.ScopeOrganization, tag: "Webhooks", security: organizationSecurity,
		org: func(ctx context.Context) fleet.OrgID { return caller(ctx).OrgID },
	}
	operatorSide = side{
		prefix: "/api/admin", idSuffix: "-operator", scope: fleet.ScopeOperator, tag: "Operator webhooks", security: adminSecurity,
		org: func(context.Context) fleet.OrgID { return "" },
	}
)

func (s *side) operation(method, path, id, summary string) huma.Operation {
	return huma.Operation{
		OperationID: id + s.idSuffix, Method: method, Path: s.prefix + path, Tags: []string{s.tag}, Summary: summary, Security: s.security,
	}
}

// NewEndpoint is what its maker says of an endpoint.
type NewEndpoint struct {
	URL            string            `json:"url" doc:"http or https, without credentials." maxLength:"2048" example:"https://example.com/webhooks/wafleet"`
	Description    string            `json:"description,omitempty" maxLength:"500"`
	Events         []fleet.EventKind `json:"events,omitempty" doc:"What it wants to hear. Empty: everything of its scope." maxItems:"50"`
	MaxConcurrency int               `json:"maxConcurrency,omitempty" doc:"Deliveries in flight at once; default 4." minimum:"1" maximum:"64"`
}

// NewOperatorEndpoint may also be restricted to one organization.
type NewOperatorEndpoint struct {
	NewEndpoint
	OrgID fleet.OrgID `json:"orgId,omitempty" doc:"Only events of this organization. Missing: of every one."`
}

// EndpointPath names an endpoint in a path.
type EndpointPath struct {
	EndpointID fleet.EndpointID `path:"endpointId"`
}

func registerEndpoints(api huma.API, d *deps) {
	create := consumerSide.operation(http.MethodPost, "/endpoints", "create-endpoint", "Create a webhook endpoint")
	create.DefaultStatus = http.StatusCreated
	create.Description = "Its secret is in the answer, this once."
	huma.Register(api, create, func(ctx context.Context, in *struct{ Body NewEndpoint }) (*reply[EndpointSecret], error) {
		return d.createEndpoint(ctx, in.Body, caller(ctx).OrgID, fleet.ScopeOrganization)
	})
	registerEndpointsOf(api, d, consumerSide)

	create = operatorSide.operation(http.MethodPost, "/endpoints", "create-endpoint", "Create an operator's webhook endpoint")
	create.DefaultStatus = http.StatusCreated
	create.Description = "It hears true ids and session events. Its secret is in the answer, this once."
	huma.Register(api, create, func(ctx context.Context, in *struct{ Body NewOperatorEndpoint }) (*reply[EndpointSecret], error) {
		return d.createEndpoint(ctx, in.Body.NewEndpoint, in.Body.OrgID, fleet.ScopeOperator)
	})
	registerEndpointsOf(api, d, operatorSide)
}

func (d *deps) createEndpoint(ctx context.Context, b NewEndpoint, org fleet.OrgID, scope fleet.Scope) (*reply[EndpointSecret], error) {
	if err := webhook.CheckURLHost(ctx, b.URL, d.allowPrivateWebhooks); err != nil {
		return nil, err
	}
	e, err := d.store.CreateEndpoint(ctx, fleet.Endpoint{
		OrgID: org, Scope: scope, URL: b.URL, Description: b.Description, Events: b.Events, MaxConcurrency: b.MaxConcurrency,
	})
	if err != nil {
		return nil, err
	}
	return endpointSecretView(e), nil
}

func registerEndpointsOf(api huma.API, d *deps, s side) {
	huma.Register(api, s.operation(http.MethodGet, "/endpoints", "list-endpoints", "List webhook endpoints"),
		func(ctx context.Context, _ *struct{}) (*reply[Page[Endpoint]], error) {
			rows, err := d.store.ListEndpoints(ctx, s.org(ctx))
			if err != nil {
				return nil, err
			}
			return wholeList(rows, endpointView), nil
		})

	huma.Register(api, s.operation(http.MethodGet, "/endpoints/{endpointId}", "get-endpoint", "Get a webhook endpoint"),
		func(ctx context.Context, in *EndpointPath) (*reply[Endpoint], error) {
			e, err := d.store.GetEndpoint(ctx, s.org(ctx), in.EndpointID)
			if err != nil {
				return nil, err
			}
			return &reply[Endpoint]{endpointView(e)}, nil
		})

	update := s.operation(http.MethodPatch, "/endpoints/{endpointId}", "update-endpoint", "Change a webhook endpoint")
	update.Description = "disabled false also forgets its failures, and what waits is delivered."
	huma.Register(api, update, func(ctx context.Context, in *struct {
		EndpointPath
		Body struct {
			URL            *string            `json:"url,omitempty" maxLength:"2048"`
			Description    *string            `json:"description,omitempty" maxLength:"500"`
			Events         *[]fleet.EventKind `json:"events,omitempty" maxItems:"50"`
			MaxConcurrency *int               `json:"maxConcurrency,omitempty" minimum:"1" maximum:"64"`
			Disabled       *bool              `json:"disabled,omitempty"`
		}
	},
	) (*reply[Endpoint], error) {
		b := in.Body
		if b.URL == nil && b.Description == nil && b.Events == nil && b.MaxConcurrency == nil && b.Disabled == nil {
			return nil, errNothingToChange
		}
		if b.URL != nil {
			if err := webhook.CheckURLHost(ctx, *b.URL, d.allowPrivateWebhooks); err != nil {
				return nil, err
			}
		}
		e, err := d.store.UpdateEndpoint(ctx, s.org(ctx), in.EndpointID, store.EndpointChange{
			URL: b.URL, Description: b.Description, Events: b.Events, Disabled: b.Disabled, MaxConcurrency: b.MaxConcurrency,
		})
		if err != nil {
			return nil, err
		}
		d.publish(ctx, bus.TopicWebhooks, string(e.OrgID))
		return &reply[Endpoint]{endpointView(e)}, nil
	})

	rotate := s.operation(http.MethodPost, "/endpoints/{endpointId}/rotate-secret", "rotate-endpoint-secret", "Give a webhook endpoint a new secret")
	rotate.Description = "The secret before signs beside the new one until its time ends, so receivers can change over."
	huma.Register(api, rotate, func(ctx context.Context, in *struct {
		EndpointPath
		Body *struct {
			KeepHours *int `json:"keepHours,omitempty" doc:"How long the secret before stays live; default 24, 0 ends it now." minimum:"0" maximum:"168"`
		}
	},
	) (*reply[EndpointSecret], error) {
		keep := defaultKeepHours
		if in.Body != nil && in.Body.KeepHours != nil {
			keep = *in.Body.KeepHours
		}
		e, err := d.store.RotateSecret(ctx, s.org(ctx), in.EndpointID, time.Duration(keep)*time.Hour)
		if err != nil {
			return nil, err
		}
		return endpointSecretView(e), nil
	})

	remove := s.operation(http.MethodDelete, "/endpoints/{endpointId}", "delete-endpoint", "Delete a webhook endpoint")
	remove.DefaultStatus = http.StatusNoContent
	huma.Register(api, remove, func(ctx context.Context, in *EndpointPath) (*struct{}, error) {
		return nil, d.store.DeleteEndpoint(ctx, s.org(ctx), in.EndpointID)
	})
}
