package outbound

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wafleet/wafleet/internal/fleet"
)

type metrics struct{ requests *prometheus.CounterVec }

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{requests: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "wafleet_outbound_requests_total",
		Help: "Requests to send a message by what became of them: accepted, replayed, invalid, conflict, limited, unavailable or failed.",
	}, []string{"result"})}
	if r != nil {
		r.MustRegister(m.requests)
	}
	return m
}

func (m *metrics) accept(a Accepted, err error) {
	result := "failed"
	switch {
	case a.Replayed:
		result = "replayed"
	case err == nil:
		result = "accepted"
	case errors.Is(err, fleet.ErrInvalid):
		result = "invalid"
	case errors.Is(err, fleet.ErrConflict):
		result = "conflict"
	case errors.Is(err, fleet.ErrLimited):
		result = "limited"
	case errors.Is(err, fleet.ErrUnavailable):
		result = "unavailable"
	}
	m.requests.WithLabelValues(result).Inc()
}
