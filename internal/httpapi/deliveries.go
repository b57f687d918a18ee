package httpapi

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// Delivery is one event owed to one endpoint.
type Delivery struct {
	DeliveryID fleet.DeliveryID     `json:"deliveryId" example:"dlv_01k8z3v5hq2m6t9x4c7b0n1d8e"`
	EndpointID fleet.EndpointID     `json:"endpointId" example:"ep_01k8z3v5hq2m6t9x4c7b0n1d8e"`
	EventID    fleet.EventID        `json:"eventId" example:"evt_01k8z3v5hq2m6t9x4c7b0n1d8e"`
	Status     fleet.DeliveryStatus `json:"status" enum:"pending,done,dead"`
	Ordered    bool                 `json:"ordered" doc:"False once it stepped aside for those behind it, and for a replay."`
	Replay     bool                 `json:"replay"`
	Attempts   int                  `json:"attempts"`
	LastStatus int                  `json:"lastStatus,omitempty" doc:"HTTP status of the last try, if one came." example:"503"`
	LastError  string               `json:"lastError,omitempty"`
	DueAt      *time.Time           `json:"dueAt,omitempty" doc:"When the next try is due."`
	CreatedAt  *time.Time           `json:"createdAt"`
	FinishedAt *time.Time           `json:"finishedAt,omitempty"`
}

func deliveryView(v fleet.Delivery) Delivery {
	out := Delivery{
		DeliveryID: v.ID, EndpointID: v.EndpointID, EventID: v.EventID, Status: v.Status, Ordered: v.Ordered, Replay: v.Replay,
		Attempts: v.Attempts, LastStatus: v.LastStatus, LastError: v.LastError, CreatedAt: when(v.CreatedAt), FinishedAt: when(v.FinishedAt),
	}
	if v.Status == fleet.DeliveryPending {
		out.DueAt = when(v.DueAt)
	}
	return out
}

func registerDeliveries(api huma.API, d *deps, s side) {
	huma.Register(api, s.operation(http.MethodGet, "/deliveries", "list-deliveries", "List deliveries, newest first"),
		func(ctx context.Context, in *struct {
			Paging
			Status     fleet.DeliveryStatus `query:"status" enum:"pending,done,dead"`
			EndpointID fleet.EndpointID     `query:"endpointId" doc:"Only those to one endpoint."`
			EventID    fleet.EventID        `query:"eventId" doc:"Only those of one event."`
		},
		) (*reply[Page[Delivery]], error) {
			before, err := numberCursor(in.Cursor)
			if err != nil {
				return nil, err
			}
			rows, err := d.store.ListDeliveries(ctx, store.DeliveryQuery{
				Org: s.org(ctx), Endpoint: in.EndpointID, Event: in.EventID, Status: in.Status, Before: before, Limit: in.Limit + 1,
			})
			if err != nil {
				return nil, err
			}
			return &reply[Page[Delivery]]{pageOf(rows, in.Limit, deliveryView, func(v fleet.Delivery) string { return strconv.FormatInt(v.N, 10) })}, nil
		})

	replay := s.operation(http.MethodPost, "/deliveries/{deliveryId}/replay", "replay-delivery", "Deliver an event again")
	replay.DefaultStatus = http.StatusAccepted
	replay.Description = "Owes the same event, with the same event id, to the same endpoint once more, outside the order of its conversation."
	huma.Register(api, replay, func(ctx context.Context, in *struct {
		DeliveryID fleet.DeliveryID `path:"deliveryId"`
	},
	) (*reply[Delivery], error) {
		v, err := d.store.ReplayDelivery(ctx, s.org(ctx), in.DeliveryID)
		if err != nil {
			return nil, err
		}
		d.publish(ctx, bus.TopicWebhooks, string(v.OrgID))
		return &reply[Delivery]{deliveryView(v)}, nil
	})
}

// numberCursor reads the cursor of a list that is ordered by a number; "" = from the newest.
func numberCursor(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 {
		return 0, invalid("CURSOR_INVALID", "cursor", "is not one that this list gave")
	}
	return n, nil
}
