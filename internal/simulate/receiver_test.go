package simulate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/webhook"
)

// The hosts of the two endpoints.
const (
	hostOrganization = "hooks.example"
	hostOperator     = "ops.example"
)

// arrival is one event that a receiver took in, also if its answer was late or lost.
type arrival struct {
	Host         string
	Ordered      bool
	ID           fleet.EventID
	Event        fleet.EventKind
	Conversation string `json:"conversationId"`
	Session      string `json:"sessionId"`
	Seq          int64
	Payload      struct {
		MessageID string
		Status    fleet.Status
		Text      string
		State     fleet.Observed
	}
}

// receiver is the application that the gateway's webhooks go to.
type receiver struct {
	w     *world
	lose  *dropper
	abort func()

	mu        sync.Mutex
	endpoints map[string]fleet.Endpoint // by host
	slow      time.Duration
	fails     bool
	down      bool
	arrivals  []arrival
	keep      bool                // everything, as it came
	kept      map[string][]string // by host
}

func newReceiver(w *world) *receiver {
	v := &receiver{w: w, lose: &dropper{}, endpoints: map[string]fleet.Endpoint{}}
	w.hooks.OnDial = func(context.Context, string) error {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.down {
			return syscall.ECONNREFUSED
		}
		return nil
	}
	_, v.abort = serveHTTP(w.hooks, v.lose.wrap(v))
	return v
}

func (v *receiver) expect(host string, e fleet.Endpoint) { v.endpoints[host] = e }

func (v *receiver) set(f func(*receiver)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	f(v)
}

func (v *receiver) close() { v.abort() }

// ServeHTTP verifies what comes and takes it in before it answers.
func (v *receiver) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	var slow time.Duration
	var fails, down bool
	v.set(func(*receiver) { slow, fails, down = v.slow, v.fails, v.down })
	if down {
		panic(http.ErrAbortHandler)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	e := v.endpoints[r.Host]
	if len(e.Secrets) == 0 {
		v.w.problem("a delivery came to %s, where nobody listens", r.Host)
		return
	}
	if err := webhook.Verify(r.Header, e.Secrets[0].Value, body, time.Now()); err != nil {
		v.w.problem("a delivery to %s is not signed: %v", r.Host, err)
	}
	v.set(func(*receiver) {
		if v.keep {
			if v.kept == nil {
				v.kept = map[string][]string{}
			}
			v.kept[r.Host] = append(v.kept[r.Host], fmt.Sprintf("%s %v\n%s", r.URL, r.Header, body))
		}
	})
	a := arrival{Host: r.Host, Ordered: r.Header.Get(webhook.HeaderOrdered) != "false"}
	if err := json.Unmarshal(body, &a); err != nil {
		v.w.problem("a delivery to %s can't be read: %v", r.Host, err)
	}
	if id := r.Header.Get(webhook.HeaderID); id != string(a.ID) {
		v.w.problem("header says event %s, body says %s", id, a.ID)
	}
	if fails {
		rw.WriteHeader(http.StatusInternalServerError)
		return
	}
	v.set(func(*receiver) { v.arrivals = append(v.arrivals, a) })
	if slow > 0 {
		pause(slow)
	}
}

// first returns what came to a host, each event once, in the order of first arrival.
func (v *receiver) first(host string) []arrival {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []arrival
	seen := map[fleet.EventID]bool{}
	for _, a := range v.arrivals {
		if a.Host == host && !seen[a.ID] {
			seen[a.ID] = true
			out = append(out, a)
		}
	}
	return out
}
