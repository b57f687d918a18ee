package wa

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
)

func pipeDial(other chan<- net.Conn) DialFunc {
	return func(context.Context, string, string) (net.Conn, error) {
		a, b := net.Pipe()
		other <- b
		return a, nil
	}
}

func TestTheGateRefusesDialsAndWritesOnceTheTermHasEnded(t *testing.T) {
	var over atomic.Bool
	var told []error
	g := newGate(func() error {
		if over.Load() {
			return fleet.ErrLeaseLost
		}
		return nil
	}, func(err error) { told = append(told, err) }, func() {})
	far := make(chan net.Conn, 1)
	c, err := g.dialer(pipeDial(far), true)(t.Context(), "tcp", "any")
	if err != nil {
		t.Fatal(err)
	}
	other := <-far
	go func() { _, _ = other.Read(make([]byte, 10)) }()
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatalf("Write under a valid term = %v", err)
	}
	over.Store(true)
	if _, err := c.Write([]byte("late")); !errors.Is(err, fleet.ErrLeaseLost) {
		t.Errorf("Write under an ended term = %v, want ErrLeaseLost", err)
	}
	if _, err := other.Read(make([]byte, 10)); err == nil {
		t.Error("the connection is still open after a refused write")
	}
	select {
	case <-g.lost:
	default:
		t.Error("nobody was told that the connection is gone")
	}
	if _, err := g.dialer(pipeDial(far), true)(t.Context(), "tcp", "any"); !errors.Is(err, fleet.ErrLeaseLost) {
		t.Errorf("dial under an ended term = %v, want ErrLeaseLost", err)
	}
	if len(told) != 1 {
		t.Errorf("the end of the term was told %d times, want once", len(told))
	}
}

func TestAConnectionThatComesAfterTheEndIsClosed(t *testing.T) {
	g := newGate(nil, nil, func() {})
	far := make(chan net.Conn, 1)
	slow := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := pipeDial(far)(ctx, network, addr)
		g.close() // the generation ends while it dials
		return c, err
	}
	if _, err := g.dialer(slow, true)(t.Context(), "tcp", "any"); !errors.Is(err, errShut) {
		t.Errorf("dial = %v, want errShut", err)
	}
	if _, err := (<-far).Read(make([]byte, 1)); err == nil {
		t.Error("the late connection is open")
	}
}

func TestTheGateNotesWhatIsHeardAndWhoIsGone(t *testing.T) {
	heard := 0
	g := newGate(nil, nil, func() { heard++ })
	far := make(chan net.Conn, 2)
	media, err := g.dialer(pipeDial(far), false)(t.Context(), "tcp", "any")
	if err != nil {
		t.Fatal(err)
	}
	<-far
	_ = media.Close()
	select {
	case <-g.lost:
		t.Error("the end of a media connection counts as the end of the line")
	default:
	}
	line, err := g.dialer(pipeDial(far), true)(t.Context(), "tcp", "any")
	if err != nil {
		t.Fatal(err)
	}
	other := <-far
	heardOf := make(chan struct{})
	go func() { _, _ = other.Write([]byte("pong")); <-heardOf; _ = other.Close() }()
	if n, err := line.Read(make([]byte, 10)); n != 4 || err != nil {
		t.Errorf("Read = %d, %v", n, err)
	}
	if heard != 1 {
		t.Errorf("heard = %d, want 1", heard)
	}
	_ = line.SetReadDeadline(time.Now().Add(-time.Second))
	if _, err := line.Read(make([]byte, 10)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read past its deadline = %v", err)
	}
	select {
	case <-g.lost:
		t.Error("a read deadline counts as the end of the line")
	default:
	}
	close(heardOf)
	_ = line.SetReadDeadline(time.Time{})
	if _, err := line.Read(make([]byte, 10)); err == nil {
		t.Error("Read from a closed line = nil error")
	}
	<-g.lost
}

func TestAWriteThatNobodyTakesFailsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(nil, nil, func() {})
		far := make(chan net.Conn, 1)
		c, err := g.dialer(pipeDial(far), true)(t.Context(), "tcp", "any")
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := c.Write([]byte("hello")); err == nil {
			t.Error("Write to a peer that does not read = nil error")
		}
		if took := time.Since(start); took != writeTimeout {
			t.Errorf("Write took %s, want %s", took, writeTimeout)
		}
		start = time.Now()
		_ = c.SetWriteDeadline(start.Add(5 * time.Second))
		_, _ = c.Write([]byte("hello"))
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("Write with an earlier deadline took %s, want 5s", took)
		}
		_ = (<-far).Close()
		_ = c.Close()
	})
}
