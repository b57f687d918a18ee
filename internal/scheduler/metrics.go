package scheduler

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	slots   *prometheus.CounterVec
	rows    *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		slots: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wafleet_scheduler_slots_total",
			Help: "Slots of periodic jobs by how they ended: done, failed, released (stopping) or lost (the hold ended first).",
		}, []string{"job", "outcome"}),
		rows: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wafleet_scheduler_rows_total",
			Help: "Rows that periodic jobs changed.",
		}, []string{"job"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "wafleet_scheduler_slot_seconds",
			Help:    "How long a slot of a periodic job took.",
			Buckets: []float64{.01, .05, .25, 1, 5, 30, 120, 600},
		}, []string{"job"}),
	}
	if r != nil {
		r.MustRegister(m.slots, m.rows, m.seconds)
	}
	return m
}
