package httpapi

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wafleet_httpapi_requests_total",
			Help: "Requests by method, route pattern and status class.",
		}, []string{"method", "route", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "wafleet_httpapi_request_seconds",
			Help:    "Time to answer, by route pattern. Requests that asked to wait are in it.",
			Buckets: []float64{.002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"route"}),
	}
	if r != nil {
		r.MustRegister(m.requests, m.duration)
	}
	return m
}

func (m *metrics) observe(method, route string, status int, took time.Duration) {
	switch method { // a client may invent any word
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS":
	default:
		method = "other"
	}
	m.requests.WithLabelValues(method, route, strconv.Itoa(status/100)+"xx").Inc()
	m.duration.WithLabelValues(route).Observe(took.Seconds())
}
