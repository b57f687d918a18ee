package webhook

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

func TestASlowEndpointHoldsUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := org(t, w.s, "org-a"), org(t, w.s, "org-b")
		endpoint(t, w.s, fleet.Endpoint{OrgID: "org-a", URL: "http://slow.example/"})
		endpoint(t, w.s, fleet.Endpoint{OrgID: "org-a", URL: "http://slow2.example/"})
		endpoint(t, w.s, fleet.Endpoint{OrgID: "org-b", URL: "http://b.example/"})
		inside := make(chan int, 1000)
		now := make(chan int, 1)
		now <- 0
		hang := func(_ http.ResponseWriter, r *http.Request, _ *request) {
			n := <-now
			now <- n + 1
			inside <- n + 1
			<-r.Context().Done()
			now <- <-now - 1
		}
		w.rx.on("slow.example", hang)
		w.rx.on("slow2.example", hang)
		o := w.options("w1")
		o.Concurrency, o.Share = 10, 6 // the two slow ones could hold eight
		run(t, o)
		start := time.Now()
		for i := range 40 {
			say(t, w.s, a, contact(i), "x")
			say(t, w.s, b, contact(i), "x")
		}
		pass(2 * time.Second) // a poll at the least; the slow ones take far longer
		got := w.rx.requests("b.example")
		if len(got) != 40 {
			t.Errorf("beside two slow endpoints %d of 40 got through within %v", len(got), time.Since(start))
		}
		pass(2 * time.Minute)
		most := 0
		for len(inside) > 0 {
			most = max(most, <-inside)
		}
		if most != 6 {
			t.Errorf("the organization held up to %d slots, want its share of 6", most)
		}
		for _, d := range deliveries(t, w.s, store.DeliveryQuery{Org: "org-a"}) {
			if d.Attempts > 0 && d.LastError != "no answer in time" && d.LastError != "" {
				t.Errorf("a try of a slow endpoint ended with %q", d.LastError)
			}
		}
	})
}

func TestARedirectIsNotFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := org(t, w.s, "org-a")
		byEndpoint := map[fleet.EndpointID]int{}
		for _, status := range []int{301, 302, 303, 307, 308} {
			host := fmt.Sprintf("a%d.example", status)
			byEndpoint[endpoint(t, w.s, fleet.Endpoint{OrgID: "org-a", URL: "http://" + host + "/"}).ID] = status
			w.rx.on(host, func(rw http.ResponseWriter, _ *http.Request, _ *request) {
				rw.Header().Set("Location", "http://inside.example/")
				rw.WriteHeader(status)
			})
		}
		run(t, w.options("w1"))
		say(t, w.s, a, contact(1), "x")
		pass(2 * time.Second)
		for _, d := range deliveries(t, w.s, store.DeliveryQuery{}) {
			if status := byEndpoint[d.EndpointID]; d.Status != fleet.DeliveryPending || d.LastStatus != status || d.FirstFail.IsZero() {
				t.Errorf("after a redirect with %d: %s with status %d, want it failed and pending", status, d.Status, d.LastStatus)
			}
		}
		if n := len(w.rx.requests("inside.example")); n != 0 {
			t.Errorf("the place that it led to got %d requests, want none", n)
		}
	})
}

func TestRetryAfterIsHonoured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := org(t, w.s, "org-a")
		endpoint(t, w.s, fleet.Endpoint{OrgID: "org-a", URL: "http://a.example/"})
		w.rx.on("a.example", func(rw http.ResponseWriter, _ *http.Request, _ *request) {
			rw.Header().Set("Retry-After", "120")
			rw.WriteHeader(http.StatusTooManyRequests)
		})
		run(t, w.options("w1"))
		say(t, w.s, a, contact(1), "x")
		pass(5 * time.Minute)
		got := w.rx.requests("a.example")
		if len(got) < 2 {
			t.Fatalf("%d tries in five minutes, want at least 2", len(got))
		}
		if gap := got[1].at.Sub(got[0].at); gap < 2*time.Minute || gap > 2*time.Minute+2*time.Second {
			t.Errorf("the second try came after %v, want the two minutes asked for", gap)
		}
	})
}

func TestTheBreakerStopsTheFloodAndOneProbeASecondNoticesTheReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := org(t, w.s, "org-a")
		endpoint(t, w.s, fleet.Endpoint{OrgID: "org-a", URL: "http://a.example/"})
		w.rx.on("a.example", always(500))
		for i := range 50 {
			say(t, w.s, a, contact(i), "x")
		}
		run(t, w.options("w1"))
		pass(900 * time.Millisecond)
		flood := len(w.rx.requests("a.example"))
		if flood < 5 || flood > 5+store.DefaultMaxConcurrency {
			t.Errorf("%d requests before the breaker opened, want five and what was in flight then", flood)
		}
		pass(30*time.Second - 900*time.Millisecond)
		probes := w.rx.requests("a.example")[flood:]
		if len(probes) < 25 || len(probes) > 30 {
			t.Errorf("in half a minute %d more requests, want a probe a second", len(probes))
		}
		for i := 1; i < len(probes); i++ {
			if gap := probes[i].at.Sub(probes[i-1].at); gap < time.Second {
				t.Errorf("probe %d came %v after the one before it, want a second or more", i, gap)
			}
		}
		w.rx.on("a.example", nil)
		pass(1100 * time.Millisecond)
		if done := deliveries(t, w.s, store.DeliveryQuery{Status: fleet.DeliveryDone}); len(done) < 40 {
			t.Errorf("a second after the return %d of 50 are through, want nearly all", len(done))
		}
		pass(time.Minute)
		if done := deliveries(t, w.s, store.DeliveryQuery{Status: fleet.DeliveryDone}); len(done) != 50 {
			t.Errorf("in the end %d of 50 are through", len(done))
		}
	})
}
