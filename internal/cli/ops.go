package cli

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// checkTime bounds one look at readiness.
const checkTime = 3 * time.Second

// check is one thing that must hold for a process to be ready.
type check struct {
	name string
	fn   func(ctx context.Context) error
}

// readiness says whether a process should get work.
type readiness struct {
	checks   []check
	warnings []check // what people should see to, though this process can work
	draining atomic.Bool
}

type readyAnswer struct {
	Status   string            `json:"status"`             // ready, not_ready or draining
	Checks   map[string]string `json:"checks"`             // "ok", or what is wrong
	Warnings map[string]string `json:"warnings,omitempty"` // what is wrong with the fleet
}

func (r *readiness) look(ctx context.Context) (readyAnswer, bool) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	errs := make([]error, len(r.checks))
	var wg sync.WaitGroup
	for i, c := range r.checks {
		wg.Go(func() { errs[i] = c.fn(ctx) })
	}
	wg.Wait()
	answer := readyAnswer{Status: "ready", Checks: map[string]string{}}
	for i, c := range r.checks {
		answer.Checks[c.name] = "ok"
		if errs[i] != nil {
			answer.Checks[c.name] = errs[i].Error()
			answer.Status = "not_ready"
		}
	}
	for _, c := range r.warnings {
		if err := c.fn(ctx); err != nil {
			if answer.Warnings == nil {
				answer.Warnings = map[string]string{}
			}
			answer.Warnings[c.name] = err.Error()
		}
	}
	if r.draining.Load() {
		answer.Status = "draining"
	}
	return answer, answer.Status == "ready"
}

// newRegistry returns a registry with what is known of the process and the Go runtime, its scheduler's
// latencies included: they say what an event loop's lag says elsewhere.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.MetricsScheduler, collectors.MetricsGC)),
	)
	return reg
}

// opsHandler answers /healthz, /readyz, /version and /metrics.
func opsHandler(r *readiness, v any, reg *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "alive"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, req *http.Request) {
		answer, ok := r.look(req.Context())
		status := http.StatusOK
		if !ok {
			status = http.StatusServiceUnavailable
			w.Header().Set("Retry-After", "1")
		}
		writeJSON(w, status, answer)
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, v) })
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{Registry: reg}))
	return mux
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may have gone
}
