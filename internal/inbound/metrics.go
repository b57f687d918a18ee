package inbound

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wafleet/wafleet/internal/fleet"
)

type metrics struct {
	messages *prometheus.CounterVec
	receipts *prometheus.CounterVec
	seconds  prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wafleet_inbound_messages_total",
			Help: "Messages that people sent, by result: new, repeated (WhatsApp delivered it again) or unprocessable.",
		}, []string{"result"}),
		receipts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wafleet_inbound_receipts_total",
			Help: "Receipts by the status that they tell.",
		}, []string{"status"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "wafleet_inbound_store_seconds",
			Help:    "Time from a decrypted message to its commit, before which WhatsApp gets no ack.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
	}
	if r != nil {
		r.MustRegister(m.messages, m.receipts, m.seconds)
	}
	return m
}

func result(kind fleet.EventKind, fresh bool) string {
	switch {
	case !fresh:
		return "repeated"
	case kind == fleet.EventMessageUnprocessable:
		return "unprocessable"
	default:
		return "new"
	}
}
