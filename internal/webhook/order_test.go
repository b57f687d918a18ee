package webhook

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
)

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
