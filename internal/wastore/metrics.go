package wastore

import "github.com/prometheus/client_golang/prometheus"

// What an error of the key store ended.
const (
	endedTerm       = "term"
	endedSend       = "send"
	endedGeneration = "generation"
	endedNothing    = "nothing"
)

type metrics struct {
	errors *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{errors: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "wafleet_wastore_errors_total",
		Help: "Errors of whatsmeow's store, by what each of them ended: a term, a send, a generation or nothing.",
	}, []string{"ended"})}
	for _, ended := range []string{endedTerm, endedSend, endedGeneration, endedNothing} {
		m.errors.WithLabelValues(ended)
	}
	if r != nil {
		r.MustRegister(m.errors)
	}
	return m
}
