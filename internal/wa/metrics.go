package wa

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/wafleet/wafleet/internal/fleet"
)

// Metrics counts over all sockets of a process. All label sets are closed.
type Metrics struct {
	ends          *prometheus.CounterVec
	sends         *prometheus.CounterVec
	sendTime      prometheus.Histogram
	handlerTime   *prometheus.HistogramVec
	handlerFails  *prometheus.CounterVec
	inbound       *prometheus.CounterVec
	dropped       *prometheus.CounterVec
	receipts      *prometheus.CounterVec
	unhandled     prometheus.Counter
	late          prometheus.Counter
	undecryptable prometheus.Counter
	pingTimeouts  prometheus.Counter
	stragglers    prometheus.Counter
	reachout      prometheus.Counter
	syncErrors    prometheus.Counter
}

// NewMetrics registers the metrics; nil keeps them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: "wafleet_wa_" + name, Help: help})
	}
	vec := func(name, help string, label string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: "wafleet_wa_" + name, Help: help}, []string{label})
	}
	m := &Metrics{
		ends:  vec("generations_ended_total", "Sockets that ended, by reason.", "reason"),
		sends: vec("sends_total", "Sends by outcome.", "outcome"),
		sendTime: f.NewHistogram(prometheus.HistogramOpts{
			Name: "wafleet_wa_send_duration_seconds", Help: "Time from the call of Send to its outcome.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20},
		}),
		handlerTime: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "wafleet_wa_handler_duration_seconds", Help: "Time that WhatsApp's stream was held by our handler.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5},
		}, []string{"handler"}),
		handlerFails:  vec("handler_failures_total", "Handlers that failed and ended their generation.", "kind"),
		inbound:       vec("inbound_messages_total", "Messages given to the handler.", "kind"),
		dropped:       vec("dropped_messages_total", "Messages acknowledged without telling anybody.", "why"),
		receipts:      vec("receipts_total", "Receipts given to the handler.", "status"),
		unhandled:     counter("unhandled_events_total", "Events of a type that this version doesn't know."),
		late:          counter("late_events_total", "Events that came after their generation had ended."),
		undecryptable: counter("undecryptable_messages_total", "Messages that could not be decrypted; the sender is asked again."),
		pingTimeouts:  counter("ping_timeouts_total", "Keepalives without an answer."),
		stragglers:    counter("stragglers_total", "Generations whose goroutines did not end in time."),
		reachout:      counter("reachout_timelocks_total", "Notices that a number may not write to strangers."),
		syncErrors:    counter("app_state_errors_total", "App state collections that could not be read."),
	}
	for _, r := range Reasons() {
		m.ends.WithLabelValues(string(r))
	}
	return m
}

func (m *Metrics) sent(outcome fleet.Outcome, took time.Duration) {
	m.sends.WithLabelValues(string(outcome)).Inc()
	m.sendTime.Observe(took.Seconds())
}
