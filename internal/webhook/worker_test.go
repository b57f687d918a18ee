package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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
