package wa_test

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/testkit"
	"github.com/wafleet/wafleet/internal/wa"
	"github.com/wafleet/wafleet/internal/wasim"
	"github.com/wafleet/wafleet/internal/wasim/memnet"
)

// onFakeTime runs f with a simulator of its own inside a synctest bubble: the real client, the real database, fake time.
// The network is instantaneous, because whatsmeow holds mutexes while it waits for it.
func onFakeTime(t *testing.T, f func(t *testing.T, w *world, m *memnet.Net)) {
	t.Helper()
	var progress atomic.Int64
	stop := testkit.Watchdog(t, time.Minute, &progress)
	defer stop()
	defer forgiveReadLoop(t)
	synctest.Test(t, func(t *testing.T) {
		m := memnet.New()
		dial := m.Dialer("worker")
		w, err := newWorld(m, func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &counting{c, &progress}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { // registered first, so it runs when all sockets have ended
			w.close()
			_ = m.Close()
			time.Sleep(10 * time.Minute) // whatsmeow's history loop ends after an idle minute
		})
		f(t, w, m)
	})
}

// counting shows the watchdog that the clock moves.
type counting struct {
	net.Conn
	reads *atomic.Int64
}

func (c *counting) Read(p []byte) (int, error) {
	c.reads.Add(1)
	return c.Conn.Read(p)
}

// forgiveReadLoop forgives the one goroutine that the unmended whatsmeow leaves behind when a frame comes at the very
// moment its connection is given up: its read loop, which waits for somebody to take the frame. The suite runs on mended
// copies, where any goroutine that is left fails the test.
func forgiveReadLoop(t *testing.T) {
	t.Helper()
	r := recover()
	if r == nil {
		return
	}
	if !strings.Contains(fmt.Sprint(r), "blocked goroutines remain") {
		panic(r)
	}
	buf := make([]byte, 4<<20)
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		header, _, _ := strings.Cut(stack, "\n")
		if strings.Contains(header, "synctest bubble") && !strings.Contains(stack, "FrameSocket).frameComplete") {
			panic(fmt.Sprintf("%v\n%s", r, stack))
		}
	}
	t.Log("forgiven: a read loop of the unmended whatsmeow")
}

// run waits for the end without a limit: inside a bubble a wait that never ends is found anyway.
func (g *generation) run() wa.End {
	e := <-g.ended
	close(g.ended)
	return e
}

func TestALineThatAnswersNoPingsIsSilentInTime(t *testing.T) {
	onFakeTime(t, func(t *testing.T, w *world, _ *memnet.Net) {
		t.Helper()
		pn := fresh()
		n := w.paired(t, pn)
		g := n.online()
		time.Sleep(time.Hour) // an idle line stays
		if !g.sock.Ready() {
			t.Fatalf("Ready() = false after an idle hour: %v", g.run())
		}
		if quiet := time.Since(g.sock.AliveAt()); quiet > 30*time.Second {
			t.Errorf("AliveAt() is %s ago on a healthy line, want at most one keepalive", quiet)
		}
		w.sim.SetFault(wasim.Scope{Session: pn}, wasim.Fault{MutePings: true})
		e := g.run()
		if quiet := time.Since(g.sock.AliveAt()); e.Reason != wa.ReasonSilent || quiet > 75*time.Second {
			t.Errorf("Run = %v, %s after the last word, want %s within 75s", e, quiet, wa.ReasonSilent)
		}
		w.sim.SetFault(wasim.Scope{Session: pn}, wasim.Fault{})
		n.online()
	})
}

func TestALoginThatIsNeverAnsweredEnds(t *testing.T) {
	onFakeTime(t, func(t *testing.T, w *world, _ *memnet.Net) {
		t.Helper()
		pn := fresh()
		n := w.paired(t, pn)
		n.online().stop()
		w.sim.SetFault(wasim.Scope{Session: pn}, wasim.Fault{Silent: true})
		start := time.Now()
		e := n.start().run()
		if took := time.Since(start); e.Reason != wa.ReasonNotLoggedIn || took > 61*time.Second {
			t.Errorf("Run = %v after %s, want %s after a minute", e, took, wa.ReasonNotLoggedIn)
		}
	})
}

func TestADialThatHangsEnds(t *testing.T) {
	onFakeTime(t, func(t *testing.T, w *world, m *memnet.Net) {
		t.Helper()
		n := w.paired(t, fresh())
		hang := func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
		network, err := wa.SimulatedNetwork(w.sim.RootKey(), hang)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		e := n.start(func(o *wa.Options) { o.Network = network }).run()
		if took := time.Since(start); e.Reason != wa.ReasonDialFailed || took > 40*time.Second {
			t.Errorf("Run = %v after %s, want %s after half a minute", e, took, wa.ReasonDialFailed)
		}
		m.SetDown("worker", true)
		if e := n.start().run(); e.Reason != wa.ReasonDialFailed {
			t.Errorf("Run while dialling is refused = %v, want %s", e, wa.ReasonDialFailed)
		}
		m.SetDown("worker", false)
		n.online()
	})
}

// deaf is a connection that hears nothing any more, once told so.
type deaf struct {
	net.Conn
	now *atomic.Bool
}

func (d *deaf) Read(p []byte) (int, error) {
	for {
		n, err := d.Conn.Read(p)
		if err != nil || !d.now.Load() {
			return n, err
		}
	}
}

func TestALost515DoesNotKeepAPairedDeviceFromItsLogin(t *testing.T) {
	onFakeTime(t, func(t *testing.T, w *world, m *memnet.Net) {
		t.Helper()
		var now atomic.Bool
		dial := m.Dialer("worker")
		network, err := wa.SimulatedNetwork(w.sim.RootKey(), func(ctx context.Context, nw, addr string) (net.Conn, error) {
			c, err := dial(ctx, nw, addr)
			if err != nil {
				return nil, err
			}
			return &deaf{c, &now}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		pn := fresh()
		n := w.number(t, pn)
		g := n.start(func(o *wa.Options) {
			o.Network = network
			o.Pair = &wa.PairRequest{Method: fleet.PairQR, Until: time.Now().Add(time.Minute)}
			// WhatsApp sends the 515 after it was told yes.
			o.Handler.AcceptPair = func(context.Context, string) error { now.Store(true); return nil }
		})
		_ = w.sim.Phone(pn).ScanQR(t.Context(), take(t, g.qr))
		n.learn(take(t, g.paired))
		start := time.Now()
		if e := g.run(); e.Reason != wa.ReasonPaired || time.Since(start) > 11*time.Second {
			t.Errorf("Run = %v after %s, want %s after a few seconds", e, time.Since(start), wa.ReasonPaired)
		}
		n.online()
	})
}

func TestASendWithoutADeadlineGetsOne(t *testing.T) {
	onFakeTime(t, func(t *testing.T, w *world, _ *memnet.Net) {
		t.Helper()
		pn, contact := fresh(), fresh()
		w.sim.Phone(contact)
		n := w.paired(t, pn)
		g := n.online()
		w.sim.SetFault(wasim.Scope{Session: pn}, wasim.Fault{DropAcks: true})
		raw, err := wa.BuildText("hello")
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err = g.sock.Send(t.Context(), wa.Outgoing{JID: contact + "@s.whatsapp.net", WAID: "3EB5A1", Payload: raw})
		mustFail(t, err, fleet.OutcomeUnknown, wa.SendTimedOut, 0)
		if took := time.Since(start); took != 20*time.Second {
			t.Errorf("Send took %s, want 20s", took)
		}
		if !g.sock.Ready() {
			t.Error("Ready() = false after a lost ack: one lost ack is no reason to reconnect")
		}
	})
}

func TestABlackHoleIsSilentAndLeavesNothingBehind(t *testing.T) {
	onFakeTime(t, func(t *testing.T, w *world, m *memnet.Net) {
		t.Helper()
		pn, contact := fresh(), fresh()
		w.sim.Phone(contact)
		n := w.paired(t, pn)
		g := n.online()
		m.Each("worker", func(l *memnet.Link) { l.BlackHole(true) })
		mustFail(t, g.sendWithin(20*time.Second, contact, "3EB5B1", "hello"), fleet.OutcomeNothing, wa.SendTimedOut, 0)
		e := g.run()
		if e.Reason != wa.ReasonSilent {
			t.Errorf("Run = %v, want %s", e, wa.ReasonSilent)
		}
		m.Each("worker", func(l *memnet.Link) { l.Reset() })
		if err := n.online().send(contact, "3EB5B1", "hello"); err != nil {
			t.Errorf("Send over a new line = %v", err)
		}
	})
}
