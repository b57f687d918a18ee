package webhook

import "github.com/prometheus/client_golang/prometheus"

// Results of a try, for the label "result".
const (
	resultDone     = "done"
	resultRetry    = "retry"    // failed, to be tried again
	resultDead     = "dead"     // failed for good
	resultLost     = "lost"     // another worker had taken it over when this one was through
	resultReleased = "released" // given back at shutdown
)

type metrics struct {
	tries    *prometheus.CounterVec
	seconds  prometheus.Histogram
	inFlight prometheus.Gauge
	disabled prometheus.Counter
	errors   prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		tries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wafleet_webhook_tries_total",
			Help: "Tries to deliver an event, by result: done, retry, dead, lost or released.",
		}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "wafleet_webhook_request_seconds",
			Help:    "Time of one request to an endpoint, connecting included.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 13),
		}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "wafleet_webhook_in_flight_tries",
			Help: "Tries under way in this process.",
		}),
		disabled: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wafleet_webhook_disabled_endpoints_total",
			Help: "Endpoints disabled because they answered 410 or failed for days.",
		}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wafleet_webhook_store_errors_total",
			Help: "Claims and results that the database did not take.",
		}),
	}
	if r != nil {
		r.MustRegister(m.tries, m.seconds, m.inFlight, m.disabled, m.errors)
	}
	return m
}
