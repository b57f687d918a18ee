package bus_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/testkit"
)

// each runs fn on both forms. a and b are two processes of one fleet; they are the same bus on Local.
func each(t *testing.T, fn func(t *testing.T, a, b bus.Bus)) {
	t.Helper()
	t.Run("local", func(t *testing.T) {
		b := bus.NewLocal()
		t.Cleanup(func() { _ = b.Close() })
		fn(t, b, b)
	})
	t.Run("redis", func(t *testing.T) {
		addr, prefix := testkit.Redis(t)
		fn(t, openRedis(t, addr, prefix), openRedis(t, addr, prefix))
	})
}

func openRedis(t *testing.T, addr, prefix string) *bus.Redis {
	t.Helper()
	b, err := bus.NewRedis(bus.RedisOptions{URL: addr, Prefix: prefix, Log: testkit.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

type nudge struct{ topic, payload string }

// listen subscribes and returns where the nudges arrive.
func listen(t *testing.T, b bus.Bus, topics ...string) (<-chan nudge, func()) {
	t.Helper()
	got := make(chan nudge, 100)
	stop, err := b.Subscribe(t.Context(), func(topic, payload string) {
		select {
		case got <- nudge{topic, payload}:
		default:
		}
	}, topics...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return got, stop
}

func publish(t *testing.T, b bus.Bus, topic, payload string) {
	t.Helper()
	if err := b.Publish(t.Context(), topic, payload); err != nil {
		t.Fatalf("Publish(%q, %q) = %v, want nil", topic, payload, err)
	}
}

func want(t *testing.T, got <-chan nudge, topic, payload string) {
	t.Helper()
	select {
	case n := <-got:
		if n != (nudge{topic, payload}) {
			t.Fatalf("heard %v, want %v", n, nudge{topic, payload})
		}
	case <-time.After(5 * time.Second):
		t.Fatalf("heard nothing within 5 s, want %v", nudge{topic, payload})
	}
}

func TestEverySubscriberOfATopicHearsANudgeWithItsPayload(t *testing.T) {
	each(t, func(t *testing.T, a, b bus.Bus) {
		t.Helper()
		first, _ := listen(t, a, bus.TopicSend)
		second, _ := listen(t, b, bus.TopicSend, bus.TopicKeys)
		publish(t, a, bus.TopicSend, "s-1")
		want(t, first, bus.TopicSend, "s-1")
		want(t, second, bus.TopicSend, "s-1")
		publish(t, b, bus.TopicKeys, "")
		want(t, second, bus.TopicKeys, "")
		publish(t, b, bus.TopicSend, "s-2 with spaces, \"quotes\" and ü")
		want(t, first, bus.TopicSend, "s-2 with spaces, \"quotes\" and ü") // and not the nudge on TopicKeys
	})
}

func TestATopicNamedTwiceIsHeardOnce(t *testing.T) {
	each(t, func(t *testing.T, a, b bus.Bus) {
		t.Helper()
		got, _ := listen(t, a, bus.TopicSend, bus.TopicSend)
		publish(t, b, bus.TopicSend, "1")
		publish(t, b, bus.TopicSend, "2")
		want(t, got, bus.TopicSend, "1")
		want(t, got, bus.TopicSend, "2")
	})
}

func TestANudgeWithoutSubscribersCostsNothing(t *testing.T) {
	each(t, func(t *testing.T, a, _ bus.Bus) {
		t.Helper()
		publish(t, a, bus.TopicControl("worker-1"), "s")
	})
}

func TestControlTopicsOfTwoWorkersAreApart(t *testing.T) {
	each(t, func(t *testing.T, a, b bus.Bus) {
		t.Helper()
		one, _ := listen(t, a, bus.TopicControl("worker-1"))
		two, _ := listen(t, b, bus.TopicControl("worker-11"))
		publish(t, a, bus.TopicControl("worker-11"), "s-11")
		want(t, two, "wa-control-worker-11", "s-11")
		publish(t, a, bus.TopicControl("worker-1"), "s-1")
		want(t, one, "wa-control-worker-1", "s-1")
	})
}

func TestAfterStopNothingIsHeardAndOthersStillHear(t *testing.T) {
	each(t, func(t *testing.T, a, b bus.Bus) {
		t.Helper()
		gone, stop := listen(t, a, bus.TopicSend)
		stays, _ := listen(t, a, bus.TopicSend)
		publish(t, b, bus.TopicSend, "before")
		want(t, gone, bus.TopicSend, "before")
		want(t, stays, bus.TopicSend, "before")
		stop()
		stop() // a second stop does nothing
		publish(t, b, bus.TopicSend, "after")
		want(t, stays, bus.TopicSend, "after")
		select {
		case n := <-gone:
			t.Errorf("heard %v after stop", n)
		default:
		}
	})
}

func TestAHandlerMayStopItselfAndPublish(t *testing.T) {
	each(t, func(t *testing.T, a, b bus.Bus) {
		t.Helper()
		echo, _ := listen(t, b, bus.TopicMessage)
		var stop func()
		ready := make(chan struct{})
		stop, err := a.Subscribe(t.Context(), func(_, payload string) {
			<-ready
			stop()
			_ = b.Publish(context.WithoutCancel(t.Context()), bus.TopicMessage, payload)
		}, bus.TopicSend)
		if err != nil {
			t.Fatal(err)
		}
		close(ready)
		publish(t, b, bus.TopicSend, "once")
		want(t, echo, bus.TopicMessage, "once")
		publish(t, b, bus.TopicSend, "twice")
		publish(t, b, bus.TopicMessage, "marker")
		want(t, echo, bus.TopicMessage, "marker")
	})
}

func TestAClosedBusRefuses(t *testing.T) {
	each(t, func(t *testing.T, a, _ bus.Bus) {
		t.Helper()
		got, _ := listen(t, a, bus.TopicSend)
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if err := a.Publish(t.Context(), bus.TopicSend, ""); !errors.Is(err, bus.ErrClosed) {
			t.Errorf("Publish = %v, want ErrClosed", err)
		}
		if err := a.Ping(t.Context()); !errors.Is(err, bus.ErrClosed) {
			t.Errorf("Ping = %v, want ErrClosed", err)
		}
		if _, err := a.Subscribe(t.Context(), func(string, string) {}, bus.TopicSend); !errors.Is(err, bus.ErrClosed) {
			t.Errorf("Subscribe = %v, want ErrClosed", err)
		}
		if len(got) != 0 {
			t.Errorf("heard %d nudges, want none", len(got))
		}
	})
}

func TestBadSubscriptionsAreRefused(t *testing.T) {
	each(t, func(t *testing.T, a, _ bus.Bus) {
		t.Helper()
		for name, call := range map[string]func() (func(), error){
			"no handler":  func() (func(), error) { return a.Subscribe(t.Context(), nil, bus.TopicSend) },
			"no topic":    func() (func(), error) { return a.Subscribe(t.Context(), func(string, string) {}) },
			"empty topic": func() (func(), error) { return a.Subscribe(t.Context(), func(string, string) {}, bus.TopicSend, "") },
		} {
			if stop, err := call(); err == nil {
				stop()
				t.Errorf("%s: Subscribe = nil, want an error", name)
			}
		}
	})
}

func TestManyPublishersAndSubscribersAtOnce(t *testing.T) {
	each(t, func(t *testing.T, a, b bus.Bus) {
		t.Helper()
		const publishers, each = 8, 50
		var mu sync.Mutex
		heard := map[string]bool{}
		full := make(chan struct{})
		stop, err := a.Subscribe(t.Context(), func(_, payload string) {
			mu.Lock()
			defer mu.Unlock()
			heard[payload] = true
			if len(heard) == publishers*each {
				close(full)
			}
		}, bus.TopicSend)
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		var wg sync.WaitGroup
		for p := range publishers {
			wg.Go(func() {
				for i := range each {
					if err := b.Publish(t.Context(), bus.TopicSend, fmt.Sprintf("%d/%d", p, i)); err != nil {
						t.Errorf("Publish = %v", err)
					}
					if other, err := b.Subscribe(t.Context(), func(string, string) {}, bus.TopicKeys); err == nil && i%10 == 0 {
						other()
					} else if err == nil {
						defer other()
					}
				}
			})
		}
		wg.Wait()
		select {
		case <-full:
		case <-time.After(10 * time.Second):
			t.Errorf("heard %d of %d nudges", len(heard), publishers*each)
		}
	})
}

func TestFleetsWithDifferentPrefixesDoNotHearEachOther(t *testing.T) {
	addr, prefix := testkit.Redis(t)
	a, b := openRedis(t, addr, prefix+"a:"), openRedis(t, addr, prefix+"b:")
	got, _ := listen(t, a, bus.TopicSend)
	publish(t, b, bus.TopicSend, "foreign")
	publish(t, a, bus.TopicSend, "own")
	want(t, got, bus.TopicSend, "own")
}

func TestRedisSubscriptionsComeBackAfterTheConnectionIsLost(t *testing.T) {
	addr, prefix := testkit.Redis(t)
	p := newProxy(t, addr)
	far, near := openRedis(t, p.addr(), prefix), openRedis(t, addr, prefix)
	got, _ := listen(t, far, bus.TopicSend)
	publish(t, near, bus.TopicSend, "before")
	want(t, got, bus.TopicSend, "before")
	p.cut()
	testkit.Eventually(t, 10*time.Second, func() error {
		if err := near.Publish(t.Context(), bus.TopicSend, "after"); err != nil {
			return err
		}
		select {
		case <-got:
			return nil
		case <-time.After(50 * time.Millisecond):
			return errors.New("not heard yet")
		}
	})
	testkit.Eventually(t, 10*time.Second, func() error { return far.Ping(t.Context()) })
}

func TestPublishIsBoundedWhenRedisDoesNotAnswer(t *testing.T) {
	addr, prefix := testkit.Redis(t)
	p := newProxy(t, addr)
	b := openRedis(t, p.addr(), prefix)
	listen(t, b, bus.TopicSend) // it notices the return
	p.freeze()
	start := time.Now()
	err := b.Publish(t.Context(), bus.TopicSend, "s")
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("Publish took %v, want about a second", took)
	}
	if !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("Publish = %v, want ErrUnavailable", err)
	}
	// Whoever stores a row publishes after it: that is not to take a second each.
	start = time.Now()
	for range 10 {
		if err := b.Publish(t.Context(), bus.TopicSend, "s"); !errors.Is(err, fleet.ErrUnavailable) {
			t.Errorf("Publish after one that was not answered = %v, want ErrUnavailable", err)
		}
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("ten publishings after one that was not answered took %v, want no time", took)
	}
	p.thaw()
	testkit.Eventually(t, 10*time.Second, func() error { return b.Publish(t.Context(), bus.TopicSend, "s") })
}

func TestSubscribeSucceedsWhileRedisIsAwayAndFollowsLater(t *testing.T) {
	addr, prefix := testkit.Redis(t)
	p := newProxy(t, addr)
	far, near := openRedis(t, p.addr(), prefix), openRedis(t, addr, prefix)
	p.refuse(true)
	got, _ := listen(t, far, bus.TopicSend)
	p.refuse(false)
	testkit.Eventually(t, 15*time.Second, func() error {
		_ = near.Publish(t.Context(), bus.TopicSend, "s")
		select {
		case <-got:
			return nil
		case <-time.After(50 * time.Millisecond):
			return errors.New("not heard yet")
		}
	})
}

func TestABusWhoseServerIsAwayAtTheStartSaysSoAndFollowsLater(t *testing.T) {
	addr, prefix := testkit.Redis(t)
	p := newProxy(t, addr)
	p.refuse(true)
	far, near := openRedis(t, p.addr(), prefix), openRedis(t, addr, prefix)
	if err := far.Ping(t.Context()); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("Ping = %v, want ErrUnavailable", err)
	}
	if err := far.Publish(t.Context(), bus.TopicSend, "s"); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("Publish = %v, want ErrUnavailable", err)
	}
	early, _ := listen(t, far, bus.TopicSend)
	p.refuse(false)
	testkit.Eventually(t, 15*time.Second, func() error { return far.Ping(t.Context()) })
	testkit.Eventually(t, 15*time.Second, func() error {
		_ = near.Publish(t.Context(), bus.TopicSend, "s")
		select {
		case <-early:
			return nil
		case <-time.After(50 * time.Millisecond):
			return errors.New("not heard yet")
		}
	})
}

func TestABusThatNeverReachedItsServerCloses(t *testing.T) {
	b, err := bus.NewRedis(bus.RedisOptions{URL: "127.0.0.1:1", Log: testkit.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	subscribed := make(chan error, 1)
	go func() {
		_, err := b.Subscribe(t.Context(), func(string, string) {}, bus.TopicSend)
		subscribed <- err
	}()
	if err := b.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	if err := <-subscribed; !errors.Is(err, bus.ErrClosed) {
		t.Errorf("Subscribe = %v, want ErrClosed", err)
	}
}

func TestAServerThatRefusesUsIsAnErrorAtTheStart(t *testing.T) {
	addr, _ := testkit.Redis(t)
	b, err := bus.NewRedis(bus.RedisOptions{URL: "redis://nobody:secret-word@" + addr})
	if err == nil {
		_ = b.Close()
	}
	if err == nil || errors.Is(err, fleet.ErrUnavailable) || strings.Contains(err.Error(), "secret-word") {
		t.Errorf("NewRedis as a user that Redis does not know = %v, want its refusal without the password", err)
	}
}

// proxy stands between a client and the server and can cut, freeze and refuse.
type proxy struct {
	ln     net.Listener
	target string
	mu     sync.Mutex
	conns  []net.Conn
	frozen bool
	closed bool
	wg     sync.WaitGroup
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{ln: ln, target: target}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.ln.Addr().String() }

func (p *proxy) accept() {
	for {
		in, err := p.ln.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = in.Close()
			continue
		}
		p.mu.Lock()
		refused := p.closed
		p.conns = append(p.conns, in, out)
		p.mu.Unlock()
		if refused {
			_, _ = in.Close(), out.Close()
			continue
		}
		p.wg.Go(func() { p.pump(in, out) })
		p.wg.Go(func() { p.pump(out, in) })
	}
}

func (p *proxy) pump(dst, src net.Conn) {
	defer dst.Close()
	buf := make([]byte, 4096)
	for {
		n, err := src.Read(buf)
		p.mu.Lock()
		frozen := p.frozen
		p.mu.Unlock()
		if n > 0 && !frozen {
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
		if errors.Is(err, io.EOF) || err != nil {
			return
		}
	}
}

func (p *proxy) cut() {
	p.mu.Lock()
	conns := slices.Clone(p.conns)
	p.conns = nil
	p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = true
}

// thaw lets new connections work; what was swallowed stays so.
func (p *proxy) thaw() {
	p.mu.Lock()
	p.frozen = false
	p.mu.Unlock()
	p.cut()
}

func (p *proxy) refuse(on bool) {
	p.mu.Lock()
	p.closed = on
	p.mu.Unlock()
	if on {
		p.cut()
	}
}
