package webhook

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

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
