package httpapi

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
)

func TestPreferWait(t *testing.T) {
	for _, tc := range []struct {
		name    string
		headers []string
		want    time.Duration
	}{
		{"none", nil, 0},
		{"wait", []string{"wait=10"}, 10 * time.Second},
		{"in quotes and other letters", []string{`Wait="10"`}, 10 * time.Second},
		{"among others", []string{"respond-async, wait=10; foo=bar, handling=lenient"}, 10 * time.Second},
		{"in a second header", []string{"respond-async", "wait=10"}, 10 * time.Second},
		{"the first of two counts", []string{"wait=10", "wait=20"}, 10 * time.Second},
		{"more than 30 s is 30 s", []string{"wait=31"}, 30 * time.Second},
		{"very much more", []string{"wait=2147483647"}, 30 * time.Second},
		{"0 is no wait", []string{"wait=0"}, 0},
		{"negative", []string{"wait=-1"}, 0},
		{"a fraction", []string{"wait=1.5"}, 0},
		{"no number", []string{"wait=long"}, 0},
		{"no value", []string{"wait"}, 0},
		{"beyond any number", []string{"wait=99999999999999999999"}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got, ok := preferWait(tc.headers); got != tc.want || ok != (tc.want > 0) {
				t.Errorf("preferWait(%q) = %v, %v, want %v", tc.headers, got, ok, tc.want)
			}
		})
	}
}

// hall is a running waiters over messages of one organization.
type hall struct {
	t     *testing.T
	s     *store.Store
	bus   bus.Bus
	w     *waiters
	sess  fleet.Session
	close func()
}

// newHall must be called inside a bubble.
func newHall(t *testing.T, url string, b bus.Bus) *hall {
	t.Helper()
	h := &hall{t: t, s: storetest.Open(t, url), bus: b}
	if _, err := h.s.CreateOrganization(t.Context(), fleet.Organization{ID: "org-a", Label: "A", Strategy: fleet.StrategyWeighted}); err != nil {
		t.Fatal(err)
	}
	var err error
	if h.sess, err = h.s.CreateSession(t.Context(), store.NewSession{Org: "org-a"}); err != nil {
		t.Fatal(err)
	}
	h.w = newWaiters(h.s, b, testkit.Logger(t))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { h.w.run(ctx) })
	h.close = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		_ = b.Close()
	})
	t.Cleanup(h.close)
	return h
}

func (h *hall) message() fleet.Message {
	h.t.Helper()
	m, err := h.s.CreateMessage(h.t.Context(), fleet.Message{
		OrgID: "org-a", SessionID: h.sess.ID, ContactKey: "5511900000001", ToJID: "5511900000001@s.whatsapp.net", Kind: "text", Text: "a",
	}, fleet.DefaultTTL)
	if err != nil {
		h.t.Fatal(err)
	}
	return m
}

// settle cancels the message and, if told, nudges.
func (h *hall) settle(m fleet.Message, told bool) {
	h.t.Helper()
	if _, err := h.s.CancelMessage(h.t.Context(), "org-a", m.ID); err != nil {
		h.t.Error(err)
	}
	if told {
		if err := h.bus.Publish(h.t.Context(), bus.TopicMessage, string(m.ID)); err != nil {
			h.t.Error(err)
		}
	}
}

func TestWaitEndsWithTheNudge(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t, url, bus.NewLocal())
		m := h.message()
		start := time.Now()
		time.AfterFunc(2500*time.Millisecond, func() { h.settle(m, true) })
		got, ok := h.w.wait(t.Context(), m.ID, 10*time.Second)
		if !ok || got.Status != fleet.StatusCancelled || got.Text != "a" {
			t.Errorf("wait() = %+v, %v, want the settled message", got, ok)
		}
		if took := time.Since(start); took != 2500*time.Millisecond {
			t.Errorf("waited %v, want 2.5 s: no poll was due then", took)
		}
		h.close()
	})
}

func TestALostNudgeCostsASecond(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t, url, bus.NewLocal())
		m := h.message()
		start := time.Now()
		time.AfterFunc(2500*time.Millisecond, func() { h.settle(m, false) })
		if got, ok := h.w.wait(t.Context(), m.ID, 10*time.Second); !ok || got.Status != fleet.StatusCancelled {
			t.Errorf("wait() = %+v, %v, want the settled message", got, ok)
		}
		if took := time.Since(start); took > 3500*time.Millisecond {
			t.Errorf("waited %v, want at most a second more than 2.5 s", took)
		}
		h.close()
	})
}

// deafBus can't be subscribed to until it is opened.
type deafBus struct {
	bus.Bus
	mu   sync.Mutex
	open bool
}

func (d *deafBus) Subscribe(ctx context.Context, fn func(topic, payload string), topics ...string) (func(), error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.open {
		return nil, errors.New("no connection")
	}
	return d.Bus.Subscribe(ctx, fn, topics...)
}

func TestWithoutABusItPollsAndListensAgainLater(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		deaf := &deafBus{Bus: bus.NewLocal()}
		h := newHall(t, url, deaf)
		for _, limit := range []time.Duration{time.Second, time.Millisecond} {
			m := h.message()
			start := time.Now()
			time.AfterFunc(2500*time.Millisecond, func() { h.settle(m, true) })
			if got, ok := h.w.wait(t.Context(), m.ID, 10*time.Second); !ok || got.Status != fleet.StatusCancelled {
				t.Errorf("wait() = %+v, %v, want the settled message", got, ok)
			}
			if took := time.Since(start) - 2500*time.Millisecond; took > limit {
				t.Errorf("told %v after it settled, want within %v", took, limit)
			}
			deaf.mu.Lock()
			deaf.open = true
			deaf.mu.Unlock()
			time.Sleep(2 * waitListen)
		}
		h.close()
	})
}

func TestWaitEndsWithItsTimeItsCallerOrTheProcess(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t, url, bus.NewLocal())
		m := h.message()
		wait := func(ctx context.Context, d time.Duration) time.Duration {
			t.Helper()
			start := time.Now()
			if got, ok := h.w.wait(ctx, m.ID, d); ok {
				t.Errorf("wait() = %+v for a message that is queued", got)
			}
			return time.Since(start)
		}
		if took := wait(t.Context(), 5*time.Second); took != 5*time.Second {
			t.Errorf("waited %v, want 5 s", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if took := wait(ctx, 5*time.Second); took != 2*time.Second {
			t.Errorf("waited %v after the caller left, want 2 s", took)
		}
		time.AfterFunc(time.Second, h.close)
		if took := wait(t.Context(), 5*time.Second); took != time.Second {
			t.Errorf("waited %v after the process began to stop, want 1 s", took)
		}
		if len(h.w.waiting) != 0 {
			t.Errorf("%d waiters are left behind", len(h.w.waiting))
		}
	})
}

func TestASettledMessageIsNotWaitedFor(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t, url, bus.NewLocal())
		m := h.message()
		h.settle(m, false)
		time.Sleep(300 * time.Millisecond) // between two polls
		start := time.Now()
		if got, ok := h.w.wait(t.Context(), m.ID, 10*time.Second); !ok || got.Status != fleet.StatusCancelled {
			t.Errorf("wait() = %+v, %v, want the settled message", got, ok)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("waited %v for a message that was settled before", took)
		}
		h.close()
	})
}

func TestManyWaitersShareOneSubscriptionAndOnePoll(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		counted := &countingBus{Bus: bus.NewLocal()}
		h := newHall(t, url, counted)
		var all sync.WaitGroup
		var messages []fleet.Message
		for range 10 {
			m := h.message()
			messages = append(messages, m)
			for range 3 {
				all.Go(func() {
					if got, ok := h.w.wait(t.Context(), m.ID, 20*time.Second); !ok || got.ID != m.ID {
						t.Errorf("wait(%s) = %s, %v", m.ID, got.ID, ok)
					}
				})
			}
		}
		synctest.Wait()
		if ids := h.w.take(true); len(ids) != len(messages) {
			t.Errorf("one look reads %d ids for %d waiters, want %d", len(ids), 30, len(messages))
		}
		for _, m := range messages {
			h.settle(m, true)
		}
		all.Wait()
		if counted.n != 1 {
			t.Errorf("%d subscriptions for 30 waiters, want 1", counted.n)
		}
		h.close()
	})
}

type countingBus struct {
	bus.Bus
	n int
}

func (c *countingBus) Subscribe(ctx context.Context, fn func(topic, payload string), topics ...string) (func(), error) {
	c.n++
	return c.Bus.Subscribe(ctx, fn, topics...)
}

func TestARequestIsBoundedThoughTheDatabaseDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &deps{log: testkit.Logger(t), metrics: newMetrics(nil)}
		h := d.observe(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			writeProblem(w, r, problemFor(r.Context().Err()))
		}))
		start, rec := time.Now(), httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/messages", nil))
		if took := time.Since(start); rec.Code != http.StatusServiceUnavailable || took != requestLimit || took < maxWait {
			t.Errorf("answered %d after %v, want 503 after %v", rec.Code, took, requestLimit)
		}
	})
}
