package lease

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wafleet/wafleet/internal/fleet"
)

type metrics struct {
	terms        prometheus.GaugeFunc
	claims       prometheus.Counter
	ends         *prometheus.CounterVec
	beatSeconds  prometheus.Histogram
	beatFailures prometheus.Counter
	claimErrors  prometheus.Counter
	locked       prometheus.Gauge
}

// Why a term ended.
const (
	endLost       = "lost"        // an answered beat left it out, or a write found the row gone
	endNotRenewed = "not_renewed" // no beat was answered in time
	endReleased   = "released"
	endStopped    = "stopped" // the process stopped without releasing, or a supervisor gave up
)

func newMetrics(r prometheus.Registerer, terms func() float64) *metrics {
	m := &metrics{
		terms: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "wafleet_lease_terms", Help: "Sessions this process owns now.",
		}, terms),
		claims: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wafleet_lease_claims_total", Help: "Sessions claimed.",
		}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wafleet_lease_ends_total", Help: "Terms that ended, by why.",
		}, []string{"why"}),
		beatSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "wafleet_lease_beat_seconds", Help: "Duration of answered beats.",
			Buckets: []float64{.002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}),
		beatFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wafleet_lease_beat_failures_total", Help: "Beats that got no answer and were tried again.",
		}),
		claimErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wafleet_lease_claim_errors_total", Help: "Claims that failed and are tried again with the next poll.",
		}),
		locked: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "wafleet_lease_locked_leases", Help: "Leases the last claim passed over because another transaction holds their row; more than a moment of it is a frozen owner.",
		}),
	}
	for _, why := range []string{endLost, endNotRenewed, endReleased, endStopped} {
		m.ends.WithLabelValues(why)
	}
	if r != nil {
		r.MustRegister(m.terms, m.claims, m.ends, m.beatSeconds, m.beatFailures, m.claimErrors, m.locked)
	}
	return m
}

func (m *metrics) ended(why error) {
	label := endStopped
	switch {
	case errors.Is(why, errNotRenewed):
		label = endNotRenewed
	case errors.Is(why, ErrReleased):
		label = endReleased
	case errors.Is(why, fleet.ErrLeaseLost):
		label = endLost
	}
	m.ends.WithLabelValues(label).Inc()
}
