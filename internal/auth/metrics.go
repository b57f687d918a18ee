package auth

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	requests      *prometheus.CounterVec
	verifications prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wafleet_auth_requests_total",
			Help: "Presented API keys by result: ok, malformed, refused (unknown or revoked), error (database).",
		}, []string{"result"}),
		verifications: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wafleet_auth_verifications_total",
			Help: "argon2id verifications; the rest was answered from memory.",
		}),
	}
	if r != nil {
		r.MustRegister(m.requests, m.verifications)
	}
	return m
}
