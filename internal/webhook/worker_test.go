package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// pass lets fake time go by.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestAnEventReachesItsEndpointSignedAndNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := org(t, w.s, "org-a")
		org(t, w.s, "org-b")
		e := endpoint(t, w.s, fleet.Endpoint{OrgID: "org-a", URL: "http://a.example/hook?token=quitesecret"})
		endpoint(t, w.s, fleet.Endpoint{OrgID: "org-a", URL: "http://a-status.example/", Events: []fleet.EventKind{fleet.EventMessageStatus}})
		endpoint(t, w.s, fleet.Endpoint{OrgID: "org-b", URL: "http://b.example/"})
		endpoint(t, w.s, fleet.Endpoint{Scope: fleet.ScopeOperator, URL: "http://operator.example/"})
		rotated, err := w.s.RotateSecret(t.Context(), "org-a", e.ID, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		run(t, w.options("w1"))
		id := say(t, w.s, a, contact(1), "olá")
		if err := w.bus.Publish(t.Context(), bus.TopicWebhooks, "org-a"); err != nil {
			t.Fatal(err)
		}
		pass(500 * time.Millisecond) // half a poll
		got := w.rx.requests("a.example")
		if len(got) != 1 {
			t.Fatalf("the endpoint got %d requests, want 1", len(got))
		}
		q := got[0]
		if q.ID != id || q.Event != fleet.EventMessage || q.Seq != 1 || q.Payload.Text != "olá" || q.header.Get(HeaderID) != string(id) || q.header.Get(HeaderOrdered) != "" {
			t.Errorf("request = %s %v, want event %s in order", q.body, q.header, id)
		}
		for i, secret := range rotated.Secrets {
			verifier, err := standardwebhooks.NewWebhook(secret.Value)
			if err != nil {
				t.Fatal(err)
			}
			if err := verifier.Verify(q.body, q.header); err != nil {
				t.Errorf("the public library with live secret %d: %v", i, err)
			}
		}
		if n := len(w.rx.requests("operator.example")); n != 1 {
			t.Errorf("the operator got %d requests, want 1", n)
		}
		for _, host := range []string{"b.example", "a-status.example"} {
			if n := len(w.rx.requests(host)); n != 0 {
				t.Errorf("%s got %d requests, want none", host, n)
			}
		}
		list := deliveries(t, w.s, store.DeliveryQuery{Endpoint: e.ID})
		if len(list) != 1 || list[0].Status != fleet.DeliveryDone || list[0].LastStatus != 200 {
			t.Errorf("deliveries = %+v, want one done with 200", list)
		}

		// The old secret ends, a failure is logged, and no secret is in any line.
		w.rx.on("a.example", always(500))
		pass(2 * time.Minute)
		say(t, w.s, a, contact(1), "tudo bem")
		pass(2 * time.Second)
		q = w.rx.requests("a.example")[1]
		old, err := standardwebhooks.NewWebhook(rotated.Secrets[1].Value)
		if err != nil {
			t.Fatal(err)
		}
		if err := old.Verify(q.body, q.header); err == nil {
			t.Error("the old secret still signs after its time")
		}
		logs := w.logs.String()
		if !strings.Contains(logs, "delivery failed") {
			t.Errorf("the failure is not logged: %s", logs)
		}
		for _, secret := range []string{rotated.Secrets[0].Value[6:], rotated.Secrets[1].Value[6:], "quitesecret", "tudo bem", contact(1)} {
			if strings.Contains(logs, secret) {
				t.Errorf("the log holds %q", secret)
			}
		}
	})
}

func TestALostNudgeCostsASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := org(t, w.s, "org-a")
		endpoint(t, w.s, fleet.Endpoint{OrgID: "org-a", URL: "http://a.example/"})
		run(t, w.options("w1"))
		pass(300 * time.Millisecond)
		start := time.Now()
		say(t, w.s, a, contact(1), "x")
		pass(time.Second)
		got := w.rx.requests("a.example")
		if len(got) != 1 || got[0].at.Sub(start) > time.Second {
			t.Fatalf("requests = %d, want one within a second", len(got))
		}
	})
}

func TestADeadEndpointEndsInADeadLetterThatCanBeReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := org(t, w.s, "org-a")
		e := endpoint(t, w.s, fleet.Endpoint{OrgID: "org-a", URL: "http://a.example/"})
		w.rx.on("a.example", always(504))
		o := w.options("w1")
		o.Poll = 10 * time.Minute
		stop := run(t, o)
		start := time.Now()
		id := say(t, w.s, a, contact(1), "x")
		pass(3 * time.Hour)
		stop() // its age counts, not who was there to see it
		pass(MaxAge - 9*time.Hour)
		run(t, o)
		pass(12 * time.Hour)
		got := w.rx.requests("a.example")
		for i := 1; i < min(len(got), breakerThreshold); i++ {
			gap, step := got[i].at.Sub(got[i-1].at), steps[i-1]
			least := time.Duration(float64(step) * 0.8)
			if step == 10*time.Minute {
				least = time.Second // cut short to step aside
			}
			if gap < least || gap > step*6/5+o.Poll {
				t.Errorf("pause %d is %v, want about %v, poll included", i, gap, step)
			}
		}
		if last := got[len(got)-1].at.Sub(start); last < MaxAge || last > MaxAge+breakerLimit+o.Poll {
			t.Errorf("the last of %d tries came after %v, want %v or a little more", len(got), last, MaxAge)
		}
		if gap := got[len(got)-1].at.Sub(got[len(got)-2].at); gap < breakerLimit {
			t.Errorf("a dead endpoint was asked again after %v, want %v in the end", gap, breakerLimit)
		}
		list := deliveries(t, w.s, store.DeliveryQuery{Endpoint: e.ID})
		if len(list) != 1 || list[0].Status != fleet.DeliveryDead || list[0].LastStatus != 504 || list[0].LastError != "HTTP 504" {
			t.Fatalf("deliveries = %+v, want one dead letter with 504", list)
		}
		w.rx.on("a.example", nil)
		again, err := w.s.ReplayDelivery(t.Context(), "org-a", list[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		pass(20 * time.Minute)
		got = w.rx.requests("a.example")
		last := got[len(got)-1]
		if last.status != 200 || last.ID != id || last.header.Get(HeaderOrdered) != "false" || !slices.Equal(last.body, got[0].body) {
			t.Errorf("replay = %d %s %v, want the same event, marked as out of order", last.status, last.body, last.header)
		}
		if list := deliveries(t, w.s, store.DeliveryQuery{Status: fleet.DeliveryDone}); len(list) != 1 || list[0].ID != again.ID {
			t.Errorf("done = %+v, want the replay", list)
		}
	})
}

func TestADeliveryThatFailsAloneIsGivenUpAfterMaxTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := org(t, w.s, "org-a")
		endpoint(t, w.s, fleet.Endpoint{OrgID: "org-a", URL: "http://a.example/"})
		w.rx.on("a.example", func(rw http.ResponseWriter, _ *http.Request, q *request) {
			if q.Payload.Text == "poison" {
				rw.WriteHeader(http.StatusUnprocessableEntity)
			}
		})
		o := w.options("w1")
		o.Poll = 30 * time.Minute
		run(t, o)
		say(t, w.s, a, contact(1), "poison")
		for range 3 * 12 {
			say(t, w.s, a, contact(2), "others")
			pass(2 * time.Hour)
		}
		dead := deliveries(t, w.s, store.DeliveryQuery{Status: fleet.DeliveryDead})
		if len(dead) != 1 || dead[0].Attempts != MaxTries {
			t.Errorf("dead letters %+v, want one after %d tries", dead, MaxTries)
		}
	})
}

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

func TestGoneDisablesTheEndpointAndTellsOperators(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := org(t, w.s, "org-a")
		e := endpoint(t, w.s, fleet.Endpoint{OrgID: "org-a", URL: "http://a.example/"})
		endpoint(t, w.s, fleet.Endpoint{Scope: fleet.ScopeOperator, URL: "http://operator.example/", Events: []fleet.EventKind{fleet.EventEndpointDisabled}})
		w.rx.on("a.example", always(http.StatusGone))
		run(t, w.options("w1"))
		say(t, w.s, a, contact(1), "x")
		say(t, w.s, a, contact(1), "y")
		pass(time.Minute)
		if n := len(w.rx.requests("a.example")); n != 1 {
			t.Errorf("an endpoint that is gone got %d requests, want 1", n)
		}
		got, err := w.s.GetEndpoint(t.Context(), "org-a", e.ID)
		if err != nil || !got.Disabled || got.DisabledWhy != store.DisabledGone {
			t.Errorf("endpoint = %+v, %v, want it disabled as gone", got, err)
		}
		told := w.rx.requests("operator.example")
		if len(told) != 1 || told[0].Event != fleet.EventEndpointDisabled || !strings.Contains(string(told[0].body), string(e.ID)) {
			t.Errorf("operators were told %d times, want once of %s", len(told), e.ID)
		}
	})
}

func TestFiveDaysOfFailureDisableAnEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := org(t, w.s, "org-a")
		e := endpoint(t, w.s, fleet.Endpoint{OrgID: "org-a", URL: "http://a.example/"})
		w.rx.on("a.example", always(500))
		o := w.options("w1")
		o.Poll = 10 * time.Minute
		disabled := func() bool {
			t.Helper()
			got, err := w.s.GetEndpoint(t.Context(), "", e.ID)
			if err != nil || got.Disabled && got.DisabledWhy != store.DisabledFailing {
				t.Fatalf("endpoint = %+v, %v", got, err)
			}
			return got.Disabled
		}
		try := func() {
			t.Helper()
			before := len(w.rx.requests("a.example"))
			stop := run(t, o)
			say(t, w.s, a, contact(before), "x")
			pass(30 * time.Minute)
			stop()
			if len(w.rx.requests("a.example")) == before {
				t.Error("the endpoint was not asked")
			}
		}
		try()
		pass(DisableAfter - 90*time.Minute) // nobody runs meanwhile: what counts is since when it fails
		try()
		if disabled() {
			t.Error("the endpoint is disabled before its five days are over")
		}
		pass(30 * time.Minute)
		try()
		if !disabled() {
			t.Error("after five days of failure the endpoint is still enabled")
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

func TestOrderIsKeptPerConversationThroughFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := org(t, w.s, "org-a")
		endpoint(t, w.s, fleet.Endpoint{OrgID: "org-a", URL: "http://a.example/", MaxConcurrency: 8})
		n := make(chan int, 1)
		n <- 0
		w.rx.on("a.example", func(rw http.ResponseWriter, _ *http.Request, _ *request) {
			i := <-n + 1
			n <- i
			if i%7 == 0 {
				rw.WriteHeader(http.StatusInternalServerError)
			}
		})
		run(t, w.options("w1"))
		run(t, w.options("w2"))
		for i := range 150 {
			say(t, w.s, a, contact(i%3), fmt.Sprint(i))
		}
		pass(5 * time.Minute)
		seq := map[string]int64{}
		total := 0
		for _, q := range w.rx.requests("a.example") {
			if q.status != 200 {
				continue
			}
			total++
			if q.Seq != seq[q.Conv]+1 {
				t.Errorf("conversation %s: %d came after %d", q.Conv, q.Seq, seq[q.Conv])
			}
			seq[q.Conv] = q.Seq
		}
		if total != 150 || len(seq) != 3 {
			t.Errorf("%d accepted in %d conversations, want 150 in 3, each once", total, len(seq))
		}
	})
}

func TestAHeadThatOnlyItselfFailsStepsAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := org(t, w.s, "org-a")
		endpoint(t, w.s, fleet.Endpoint{OrgID: "org-a", URL: "http://a.example/"})
		healed := make(chan struct{})
		w.rx.on("a.example", func(rw http.ResponseWriter, _ *http.Request, q *request) {
			select {
			case <-healed:
			default:
				if q.Payload.Text == "poison" {
					rw.WriteHeader(http.StatusUnprocessableEntity)
				}
			}
		})
		stop := run(t, w.options("w1"))
		start := time.Now()
		poison := say(t, w.s, a, contact(1), "poison")
		say(t, w.s, a, contact(1), "behind it")
		behind := func() (at time.Duration) {
			for _, q := range w.rx.requests("a.example") {
				if q.Payload.Text == "behind it" {
					return q.at.Sub(start)
				}
			}
			return 0
		}
		for range 7 {
			say(t, w.s, a, contact(2), "others")
			pass(50 * time.Second)
		}
		if at := behind(); at < StepAside || at > StepAside+5*time.Second {
			t.Errorf("the one behind came after %v, want %v", at, StepAside)
		}
		close(healed)
		stop()
		o := w.options("w2")
		o.Poll = 5 * time.Minute
		run(t, o)
		pass(time.Hour)
		got := w.rx.requests("a.example")
		var last request
		for _, q := range got {
			if q.ID == poison {
				last = q
			}
		}
		if last.status != 200 || last.header.Get(HeaderOrdered) != "false" {
			t.Errorf("the one that stepped aside ended with %d, ordered %q, want 200 and false", last.status, last.header.Get(HeaderOrdered))
		}
	})
}

func TestNobodyStepsAsideWhileTheEndpointIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := org(t, w.s, "org-a")
		endpoint(t, w.s, fleet.Endpoint{OrgID: "org-a", URL: "http://a.example/"})
		w.rx.on("a.example", always(503))
		o := w.options("w1")
		o.Poll = time.Minute
		run(t, o)
		for range 3 {
			say(t, w.s, a, contact(1), "x")
		}
		pass(40 * time.Minute)
		w.rx.on("a.example", nil)
		pass(2 * time.Hour)
		var seqs []int64
		for _, q := range w.rx.requests("a.example") {
			if q.status == 200 {
				seqs = append(seqs, q.Seq)
				if q.header.Get(HeaderOrdered) != "" {
					t.Errorf("seq %d is marked as out of order", q.Seq)
				}
			}
		}
		if !slices.Equal(seqs, []int64{1, 2, 3}) {
			t.Errorf("after the outage came %v, want 1, 2, 3", seqs)
		}
	})
}

func TestShutdownLetsTriesSettleAndGivesTheRestBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := org(t, w.s, "org-a")
		endpoint(t, w.s, fleet.Endpoint{OrgID: "org-a", URL: "http://a.example/"})
		w.rx.on("a.example", func(_ http.ResponseWriter, r *http.Request, q *request) {
			wait := 3 * time.Second
			if q.Payload.Text == "hangs" {
				wait = time.Hour
			}
			select {
			case <-time.After(wait):
			case <-r.Context().Done():
			}
		})
		o := w.options("w1")
		o.Grace = 5 * time.Second
		stop := run(t, o)
		slow := say(t, w.s, a, contact(1), "slow")
		hangs := say(t, w.s, a, contact(2), "hangs")
		pass(1500 * time.Millisecond)
		start := time.Now()
		stop()
		if d := time.Since(start); d != 5*time.Second {
			t.Errorf("Run returned after %v, want its grace", d)
		}
		if d := deliveries(t, w.s, store.DeliveryQuery{Event: slow})[0]; d.Status != fleet.DeliveryDone {
			t.Errorf("what settled within the grace is %s, want done", d.Status)
		}
		if d := deliveries(t, w.s, store.DeliveryQuery{Event: hangs})[0]; d.Status != fleet.DeliveryPending || d.Attempts != 0 || !d.FirstFail.IsZero() {
			t.Errorf("what did not is %+v, want it pending, untried", d)
		}
		w.rx.on("a.example", nil)
		run(t, w.options("w2"))
		pass(500 * time.Millisecond)
		if d := deliveries(t, w.s, store.DeliveryQuery{Event: hangs})[0]; d.Status != fleet.DeliveryDone {
			t.Errorf("the next worker left it %s, want done at once", d.Status)
		}
	})
}

func TestContentThatRetentionTookIsADeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := org(t, w.s, "org-a")
		endpoint(t, w.s, fleet.Endpoint{OrgID: "org-a", URL: "http://a.example/"})
		id := say(t, w.s, a, contact(1), "x")
		if n, err := w.s.PurgeInbound(t.Context(), time.Now().Add(time.Hour), 10); n != 1 || err != nil {
			t.Fatalf("PurgeInbound = %d, %v, want 1", n, err)
		}
		run(t, w.options("w1"))
		pass(2 * time.Second)
		d := deliveries(t, w.s, store.DeliveryQuery{Event: id})[0]
		if d.Status != fleet.DeliveryDead || d.LastError != errGone.Error() || len(w.rx.requests("a.example")) != 0 {
			t.Errorf("delivery = %+v, want a dead letter without a request", d)
		}
	})
}

func TestAResultIsWrittenWhenTheDatabaseIsBackWithinItsTime(t *testing.T) {
	away := fmt.Errorf("finish delivery: %w", fleet.ErrUnavailable)
	for _, tc := range []struct {
		name  string
		back  time.Duration
		taken bool // the lock ran out meanwhile
		want  string
		err   error
	}{
		{"at once", 0, false, resultDone, nil},
		{"after three seconds", 3 * time.Second, false, resultDone, nil},
		{"after three seconds, and somebody else has it", 3 * time.Second, true, resultLost, nil},
		{"too late", time.Minute, false, resultDone, fleet.ErrUnavailable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), settleTimeout)
				defer cancel()
				start := time.Now()
				got, err := (&Worker{}).finish(ctx, resultDone, func() (bool, error) {
					if time.Since(start) < tc.back {
						return false, away
					}
					return !tc.taken, nil
				})
				if got != tc.want || !errors.Is(err, tc.err) {
					t.Errorf("finish = %q, %v, want %q, %v", got, err, tc.want, tc.err)
				}
			})
		})
	}
}
