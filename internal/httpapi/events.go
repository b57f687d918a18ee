package httpapi

import (
	"context"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/webhook"
)

func registerEvents(api huma.API, d *deps, s side) {
	get := s.operation(http.MethodGet, "/events/{eventId}", "get-event", "Get an event as webhooks told it")
	get.Responses = map[string]*huma.Response{"200": {Description: "OK", Content: map[string]*huma.MediaType{
		"application/json": {Schema: api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[webhook.Envelope](), true, "Event")},
	}}}
	huma.Register(api, get, func(ctx context.Context, in *struct {
		EventID fleet.EventID `path:"eventId"`
	},
	) (*fileReply, error) {
		ev, err := d.store.GetEvent(ctx, s.org(ctx), in.EventID)
		if err != nil {
			return nil, err
		}
		body, err := webhook.Render(ctx, d.store, ev, s.scope)
		if err != nil {
			return nil, err
		}
		return &fileReply{"application/json", body}, nil
	})
}
