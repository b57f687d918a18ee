package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wafleet/wafleet/internal/config"
)

// recorder notes when parts end.
type recorder struct {
	mu  sync.Mutex
	log []string
}

func (r *recorder) note(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, s)
}

// part runs until its context ends, and then for as long as settle.
func (r *recorder) part(name string, stage int, settle time.Duration) part {
	return part{name, stage, func(ctx context.Context) error {
		<-ctx.Done()
		time.Sleep(settle)
		r.note(name)
		return nil
	}}
}

func TestAStopEndsStageAfterStage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			time.Sleep(time.Hour)
			cancel()
		}()
		err := runParts(ctx, slog.New(slog.DiscardHandler), stopLimit, []part{
			r.part("back", stageBack, 0), r.part("slow work", stageWork, 10*time.Second), r.part("quick work", stageWork, time.Second), r.part("front", stageFront, 2*time.Second),
		}, func() { r.note("not ready") })
		if d := cmp.Diff([]string{"not ready", "front", "quick work", "slow work", "back"}, r.log); err != nil || d != "" {
			t.Errorf("runParts = %v (-want +got):\n%s", err, d)
		}
	})
}

func TestErrorsInTheLogShowNoPhoneNumber(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		log := newLogger(&out, &config.Logging{LogFormat: format})
		log.Info("it failed", slog.Any("err", fmt.Errorf("send: %w", errors.New("no session with 5511900000001:3@s.whatsapp.net"))), slog.Int64("n", 5511900000001))
		if got := out.String(); strings.Contains(got, "5511900000001:3") || !strings.Contains(got, "send: no session with …0001:3@s.whatsapp.net") || !strings.Contains(got, "=5511900000001") && !strings.Contains(got, ":5511900000001") {
			t.Errorf("%s: %s", format, got)
		}
	}
}

func TestAPartThatEndsStopsTheProcessWithItsError(t *testing.T) {
	broken := errors.New("broken")
	for name, end := range map[string]error{"with an error": broken, "without one": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var r recorder
				err := runParts(t.Context(), slog.New(slog.DiscardHandler), stopLimit, []part{
					r.part("front", stageFront, 0), r.part("back", stageBack, 0),
					{"worker", stageWork, func(context.Context) error {
						time.Sleep(time.Minute)
						return end
					}},
				}, func() {})
				if err == nil || !strings.Contains(err.Error(), "worker") || (end != nil && !errors.Is(err, broken)) {
					t.Errorf("runParts = %v, want the worker's end", err)
				}
				if d := cmp.Diff([]string{"front", "back"}, r.log); d != "" {
					t.Errorf("stopped (-want +got):\n%s", d)
				}
			})
		})
	}
}

func TestAStopIsBoundedAndNamesWhatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		release := make(chan struct{})
		start := time.Now()
		err := runParts(ctx, slog.New(slog.DiscardHandler), stopLimit, []part{
			{"hangs", stageWork, func(context.Context) error { <-release; return nil }}, r.part("back", stageBack, 0),
		}, func() {})
		if took := time.Since(start); took != stopLimit || err == nil || !strings.Contains(err.Error(), "hangs") {
			t.Errorf("runParts = %v after %v, want the hanging part's name after %v", err, took, stopLimit)
		}
		close(release)
	})
}

func TestReadinessNamesWhatIsMissing(t *testing.T) {
	bad := errors.New("no answer")
	for _, tc := range []struct {
		name     string
		err      error
		draining bool
		status   int
		want     readyAnswer
	}{
		{"all is well", nil, false, 200, readyAnswer{Status: "ready", Checks: map[string]string{"database": "ok", "bus": "ok"}}},
		{"the bus is away", bad, false, 503, readyAnswer{Status: "not_ready", Checks: map[string]string{"database": "ok", "bus": "no answer"}}},
		{"a stop has begun", nil, true, 503, readyAnswer{Status: "draining", Checks: map[string]string{"database": "ok", "bus": "ok"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := &readiness{checks: []check{{"database", func(context.Context) error { return nil }}, {"bus", func(context.Context) error { return tc.err }}}}
			r.draining.Store(tc.draining)
			h := opsHandler(r, versions{Version: "v1"}, newRegistry())
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
			var got readyAnswer
			if err := json.Unmarshal(rec.Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, got); rec.Code != tc.status || d != "" {
				t.Errorf("/readyz = %d, want %d (-want +got):\n%s", rec.Code, tc.status, d)
			}
		})
	}
}

func TestReadinessDoesNotWaitForWhatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &readiness{checks: []check{{"database", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}}}
		start := time.Now()
		if _, ok := r.look(t.Context()); ok || time.Since(start) != checkTime {
			t.Errorf("look = %v after %v, want false after %v", ok, time.Since(start), checkTime)
		}
	})
}

func TestOpsListenerAnswersHealthVersionAndMetrics(t *testing.T) {
	reg := newRegistry()
	reg.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "wafleet_test_things", Help: "Things."}))
	h := opsHandler(&readiness{}, versions{Version: "v1.2.3"}, reg)
	for _, tc := range []struct {
		method, path string
		status       int
		want         []string
	}{
		{"GET", "/healthz", 200, []string{"alive"}},
		{"GET", "/version", 200, []string{`"version":"v1.2.3"`}},
		{"GET", "/metrics", 200, []string{"wafleet_test_things 0", "process_resident_memory_bytes", "go_sched_latencies_seconds_bucket", "go_goroutines"}},
		{"POST", "/healthz", 405, nil},
		{"GET", "/", 404, nil},
		{"GET", "/debug/pprof/", 404, nil},
	} {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), tc.method, tc.path, nil))
		for _, want := range tc.want {
			if !strings.Contains(rec.Body.String(), want) {
				t.Errorf("%s lacks %q", tc.path, want)
			}
		}
		if rec.Code != tc.status {
			t.Errorf("%s %s = %d, want %d", tc.method, tc.path, rec.Code, tc.status)
		}
	}
}

func TestRequestsFinishInPeaceAndWaitingOnesAreEnded(t *testing.T) {
	began, release := make(chan string, 2), make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/quick", func(w http.ResponseWriter, _ *http.Request) {
		began <- "quick"
		<-release
		w.WriteHeader(http.StatusAccepted)
	})
	mux.HandleFunc("/waiting", func(w http.ResponseWriter, r *http.Request) {
		began <- "waiting"
		<-r.Context().Done()
		w.WriteHeader(http.StatusTeapot)
	})
	ctx, cancel := context.WithCancel(t.Context())
	ln, err := listen(ctx, "LISTEN", "127.0.0.1:0", false, mux, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- ln.serve(ctx) }()
	statuses := make(chan int, 2)
	for _, path := range []string{"/quick", "/waiting"} {
		go func() {
			status, _ := get(t, ln.url()+path, "")
			statuses <- status
		}()
		<-began
	}
	cancel()
	close(release)
	got := []int{<-statuses, <-statuses}
	slices.Sort(got)
	if err := <-served; err != nil {
		t.Errorf("serve = %v, want nil", err)
	}
	if d := cmp.Diff([]int{http.StatusAccepted, http.StatusTeapot}, got); d != "" {
		t.Errorf("answers (-want +got):\n%s", d)
	}
	if status, _ := get(t, ln.url()+"/quick", ""); status != 0 {
		t.Errorf("a request after the stop = %d, want no connection", status)
	}
	if _, err := listen(t.Context(), "LISTEN", "256.0.0.1:1", false, mux, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "LISTEN 256.0.0.1:1 can't be listened on") {
		t.Errorf("listen on a bad address = %v", err)
	}
}
