package worker

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wafleet/wafleet/internal/wa"
)

type metrics struct {
	generations   prometheus.Counter
	ends          *prometheus.CounterVec
	sends         *prometheus.CounterVec
	stale         prometheus.Counter
	lookErrors    prometheus.Counter
	unprocessable prometheus.Counter
	braked        prometheus.Counter
	unsettled     prometheus.Counter
	adopted       prometheus.Gauge
}

func newMetrics(r prometheus.Registerer, active func() int) *metrics {
	m := &metrics{
		generations: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wafleet_worker_generations_total", Help: "Sockets opened or tried.",
		}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wafleet_worker_generation_ends_total", Help: "Ended generations by reason.",
		}, []string{"reason"}),
		sends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wafleet_worker_sends_total", Help: "Send attempts by outcome: sent, refused, unknown, nothing.",
		}, []string{"outcome"}),
		stale: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wafleet_worker_stale_events_total", Help: "Events of a generation that was over, dropped unacknowledged.",
		}),
		lookErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wafleet_worker_look_errors_total", Help: "Failed looks for work.",
		}),
		unprocessable: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wafleet_worker_unprocessable_total", Help: "Stanzas kept raw after three failures of our own code.",
		}),
		braked: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wafleet_worker_braked_dials_total", Help: "Connects put off because WhatsApp turned many sessions away within minutes.",
		}),
		unsettled: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wafleet_worker_unsettled_frames_total", Help: "Frames that the ledger could not be told of; what was reserved for them lapses.",
		}),
		adopted: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "wafleet_worker_adopted_shards", Help: "Shards without a worker of their own whose sessions this one takes.",
		}),
	}
	if r != nil {
		r.MustRegister(m.adopted, m.generations, m.ends, m.sends, m.stale, m.lookErrors, m.unprocessable, m.braked, m.unsettled,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "wafleet_worker_sessions_active", Help: "Sessions owned now.",
			}, func() float64 { return float64(active()) }))
	}
	return m
}

func (m *metrics) ended(r wa.Reason) { m.ends.WithLabelValues(string(r)).Inc() }
