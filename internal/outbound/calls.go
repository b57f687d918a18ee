package outbound

import (
	"context"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
)

// Admitted is what one request to the API found of the limits on requests.
type Admitted struct {
	ledger.Admission
	Limit int64 // of the project in a minute, which Left is about; 0 = it has none
}

// Admit counts a request of any kind against the limits of its project and of all together. A minute's worth may come at once.
func (o *Outbound) Admit(ctx context.Context, p fleet.Principal) (Admitted, error) {
	a := Admitted{Limit: p.Requests}
	var limits []ledger.CallLimit
	add := func(name string, perMinute int64) {
		if perMinute > 0 {
			limits = append(limits, ledger.CallLimit{Name: name, Rate: ledger.Rate{PerSecond: float64(perMinute) / 60, Burst: float64(perMinute)}})
		}
	}
	add("p:"+string(p.ProjectID), p.Requests)
	add("all", o.calls)
	if len(limits) == 0 {
		return a, nil
	}
	var err error
	a.Admission, err = o.ledger.Admit(ctx, limits...)
	return a, err
}
