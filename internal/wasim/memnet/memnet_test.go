package memnet

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"
)

// pair returns both ends of a new link.
func pair(t *testing.T, n *Net, name string) (client, server net.Conn) {
	t.Helper()
	type accepted struct {
		c   net.Conn
		err error
	}
	ch := make(chan accepted, 1)
	go func() {
		c, err := n.Accept()
		ch <- accepted{c, err}
	}()
	client, err := n.Dialer(name)(t.Context(), "tcp", "anywhere:1")
	if err != nil {
		t.Fatalf("dial = %v", err)
	}
	a := <-ch
	if a.err != nil {
		t.Fatalf("Accept = %v", a.err)
	}
	return client, a.c
}

func read(t *testing.T, c net.Conn, want string) {
	t.Helper()
	b := make([]byte, len(want))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != want {
		t.Fatalf("read %q, %v, want %q", b, err, want)
	}
}

func write(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if n, err := c.Write([]byte(s)); err != nil || n != len(s) {
		t.Fatalf("Write(%q) = %d, %v", s, n, err)
	}
}

func TestItBehavesAsAConnection(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		n := New()
		c1, c2 = pair(t, n, "x")
		return c1, c2, func() { _ = c1.Close(); _ = c2.Close(); _ = n.Close() }, nil
	})
}

func TestAWriteNeverWaitsForItsReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, New(), "x")
		for range 1000 {
			write(t, a, "0123456789")
		}
		for range 1000 {
			read(t, b, "0123456789")
		}
	})
}

func TestALocalCloseEndsALocalReadEvenOnAHeldLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		a, _ := pair(t, n, "x")
		n.Each("x", func(l *Link) { l.Hold(true) })
		ended := make(chan error, 1)
		go func() {
			_, err := a.Read(make([]byte, 1))
			ended <- err
		}()
		synctest.Wait()
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Read on a closed connection = %v, want net.ErrClosed", err)
		}
	})
}

func TestAfterACloseThePeerReadsWhatIsQueuedThenEOFAndCannotWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, New(), "x")
		write(t, a, "last words")
		_ = a.Close()
		read(t, b, "last words")
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("Read after the peer closed = %v, want EOF", err)
		}
		if _, err := b.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("Write after the peer closed = %v, want EPIPE", err)
		}
		if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Write on the own closed end = %v, want net.ErrClosed", err)
		}
	})
}

func TestAResetEndsBothEndsAndLosesWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		a, b := pair(t, n, "x")
		write(t, a, "lost")
		n.Each("x", (*Link).Reset)
		for name, c := range map[string]net.Conn{"client": a, "server": b} {
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s: Read after a reset = %v, want ECONNRESET", name, err)
			}
			if _, err := c.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s: Write after a reset = %v, want ECONNRESET", name, err)
			}
		}
		n.Each("x", func(*Link) { t.Error("Each still lists a link after its reset") })
	})
}

func TestAHeldLinkKeepsEverythingUntilItIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		a, b := pair(t, n, "x")
		n.Each("x", func(l *Link) { l.Hold(true) })
		write(t, a, "patience")
		_ = b.SetReadDeadline(time.Now().Add(time.Hour))
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Read on a held link = %v, want the deadline", err)
		}
		n.Each("x", func(l *Link) { l.Hold(false) })
		_ = b.SetReadDeadline(time.Time{})
		read(t, b, "patience")
	})
}

func TestABlackHoleLosesWhatIsWrittenAndHidesAClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		a, b := pair(t, n, "x")
		n.Each("x", func(l *Link) { l.BlackHole(true) })
		write(t, a, "gone")
		_ = a.Close()
		write(t, b, "swallowed")
		_ = b.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Read through a black hole = %v, want the deadline", err)
		}
		n.Each("x", func(l *Link) { l.BlackHole(false) })
		_ = b.SetReadDeadline(time.Time{})
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("Read after healing = %v, want EOF", err)
		}
	})
}

func TestBytesArriveInOrderAfterTheLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		n.Latency = func(name string) time.Duration { return map[string]time.Duration{"slow": 20 * time.Millisecond}[name] }
		a, b := pair(t, n, "slow")
		start := time.Now()
		write(t, a, "one")
		time.Sleep(5 * time.Millisecond)
		write(t, a, "two")
		read(t, b, "one")
		if took := time.Since(start); took != 20*time.Millisecond {
			t.Errorf("first bytes after %v, want 20ms", took)
		}
		read(t, b, "two")
		if took := time.Since(start); took != 25*time.Millisecond {
			t.Errorf("second bytes after %v, want 25ms", took)
		}
	})
}

func TestAMovedDeadlineReachesAReadThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := pair(t, New(), "x")
		start := time.Now()
		_ = a.SetReadDeadline(start.Add(time.Hour))
		ended := make(chan error, 1)
		go func() {
			_, err := a.Read(make([]byte, 1))
			ended <- err
		}()
		time.Sleep(time.Second)
		_ = a.SetReadDeadline(time.Now().Add(time.Second))
		if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Read = %v, want the deadline", err)
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("Read ended after %v, want 2s", took)
		}
	})
}

func TestADialIsRefusedWhileTheNameIsDown(t *testing.T) {
	n := New()
	n.SetDown("x", true)
	if _, err := n.Dialer("x")(t.Context(), "", ""); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial while down = %v, want ECONNREFUSED", err)
	}
	pair(t, n, "y")
	n.SetDown("x", false)
	pair(t, n, "x")
	refused := errors.New("no lease")
	n.OnDial = func(context.Context, string) error { return refused }
	if _, err := n.Dialer("x")(t.Context(), "", ""); !errors.Is(err, refused) {
		t.Errorf("dial = %v, want the error of OnDial", err)
	}
}

func TestADialEndsWithItsContextAndAClosedListenerRefuses(t *testing.T) {
	n := New()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.Dialer("x")(ctx, "", ""); !errors.Is(err, context.Canceled) {
		t.Errorf("dial with a cancelled context = %v, want context.Canceled", err)
	}
	_ = n.Close()
	if _, err := n.Dialer("x")(t.Context(), "", ""); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial after Close = %v, want ECONNREFUSED", err)
	}
	if _, err := n.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close = %v, want net.ErrClosed", err)
	}
	n.Each("x", func(*Link) { t.Error("Each lists a link that was never made") })
}

func TestItCarriesHTTPInsideABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.RemoteAddr)
		})}
		served := make(chan error, 1)
		go func() { served <- srv.Serve(n) }()
		c := &http.Client{Transport: &http.Transport{DialContext: n.Dialer("worker-1")}}
		resp, err := c.Get("http://anywhere/")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || string(body) != "worker-1" {
			t.Errorf("the server saw the dialer as %q, %v, want worker-1", body, err)
		}
		c.CloseIdleConnections()
		_ = srv.Close()
		if err = <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve = %v", err)
		}
	})
}
