package webhook

import (
	"context"
	"errors"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// Render gives the body that an endpoint of the scope is sent for an event, so that the API shows
// what a webhook told. *fleet.CodedError EVENT_GONE around fleet.ErrNotFound: what it tells of is no
// longer stored.
func Render(ctx context.Context, s *store.Store, ev fleet.Event, scope fleet.Scope) ([]byte, error) {
	sub, err := s.EventSubject(ctx, ev)
	if err != nil {
		return nil, err
	}
	body, err := render(ev, scope, sub)
	if errors.Is(err, errGone) {
		return nil, &fleet.CodedError{Code: "EVENT_GONE", Detail: errGone.Error(), Err: fleet.ErrNotFound}
	}
	return body, err
}
