package wa

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
)

// inLoop runs Run's loop alone, on fake time: whatsmeow is played by script, which gets a way to say things. It returns
// the end and how long the generation lived.
func inLoop(t *testing.T, o Options, script func(s *Socket, connected chan<- error)) (end End, lived time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	s := NewSocket(o)
	l := &life{ctx: ctx, cancel: cancel}
	s.life.Store(l)
	connected := make(chan error, 1)
	var own sync.WaitGroup
	own.Go(func() { script(s, connected) })
	start := time.Now()
	pending := s.loop(l, &own, connected)
	lived = time.Since(start)
	end = verdict(t.Context(), ctx, pending)
	s.gate.close()
	own.Wait()
	return end, lived
}

func drop(s *Socket) { s.gate.lostOnce.Do(func() { close(s.gate.lost) }) }

func TestEachWayToGetStuckHasATimer(t *testing.T) {
	pairing := &PairRequest{Method: fleet.PairQR, Until: time.Date(2000, 1, 1, 0, 5, 0, 0, time.UTC)} // in 5 minutes
	brief := &PairRequest{Method: fleet.PairQR, Until: time.Date(2000, 1, 1, 0, 0, 42, 0, time.UTC)}  // in 42 seconds
	six := []string{"1", "2", "3", "4", "5", "6"}
	for _, tt := range []struct {
		name   string
		pair   *PairRequest
		script func(s *Socket, connected chan<- error)
		reason Reason
		lived  time.Duration
	}{
		{"a connect that hangs", nil, func(*Socket, chan<- error) {}, ReasonDialFailed, connectTimeout},
		{"a connect that fails", nil, func(_ *Socket, c chan<- error) { c <- errors.New("refused") }, ReasonDialFailed, 0},
		{"a connection that ends in the handshake", nil, func(s *Socket, _ chan<- error) { drop(s) }, ReasonDialFailed, settle},
		{"connected but never logged in", nil, func(s *Socket, c chan<- error) {
			c <- nil
			for range 100 { // the line is alive
				time.Sleep(time.Second)
				s.seen()
			}
		}, ReasonNotLoggedIn, loginTimeout},
		{"a line that fell silent", nil, func(s *Socket, c chan<- error) {
			c <- nil
			s.post(note{ready: true})
			time.Sleep(10 * time.Second)
			s.seen()
		}, ReasonSilent, 10*time.Second + silentAfter},
		{"a connection that broke", nil, func(s *Socket, c chan<- error) {
			c <- nil
			s.post(note{ready: true})
			drop(s)
		}, ReasonDisconnected, settle},
		{"an event that says it broke", nil, func(s *Socket, c chan<- error) {
			c <- nil
			s.post(note{ready: true})
			s.post(note{lost: true})
		}, ReasonDisconnected, settle},
		{"a reason that comes after the connection broke", nil, func(s *Socket, c chan<- error) {
			c <- nil
			drop(s)
			time.Sleep(settle / 2)
			s.post(note{decided: &decided{End{Reason: ReasonUnlinked}, tidyTime}})
		}, ReasonUnlinked, settle/2 + tidyTime},
		{"a reason before the connection breaks", nil, func(s *Socket, c chan<- error) {
			c <- nil
			s.post(note{decided: &decided{End{Reason: ReasonLoggedOut}, tidyTime}})
			drop(s)
		}, ReasonLoggedOut, tidyTime},
		{"a server error after which nobody closes", nil, func(s *Socket, c chan<- error) {
			c <- nil
			s.post(note{serverError: 503})
		}, ReasonServerError, tidyTime},
		{"a server error and then the end of the connection", nil, func(s *Socket, c chan<- error) {
			c <- nil
			s.post(note{serverError: 503})
			drop(s)
		}, ReasonServerError, 0},
		{"a restart while logged in", nil, func(s *Socket, c chan<- error) {
			c <- nil
			s.post(note{ready: true})
			s.post(note{restart: true})
		}, ReasonStreamError, 0},
		{"a logout under way is not a broken connection", nil, func(s *Socket, c chan<- error) {
			c <- nil
			s.post(note{ready: true})
			s.leaving.Store(true)
			drop(s)
			time.Sleep(3 * time.Second)
			s.finish(End{Reason: ReasonStopped})
		}, ReasonStopped, 3 * time.Second},
		{"codes that nobody scans", pairing, func(s *Socket, c chan<- error) {
			c <- nil
			s.post(note{codes: six})
			for range 300 {
				time.Sleep(time.Second)
				s.seen()
			}
		}, ReasonPairExpired, firstCode + 5*nextCode},
		{"a pairing attempt that is over", brief, func(s *Socket, c chan<- error) {
			c <- nil
			s.post(note{codes: six})
		}, ReasonPairExpired, 42 * time.Second},
		{"paired, and the 515 comes", pairing, func(s *Socket, c chan<- error) {
			c <- nil
			s.post(note{accepted: true})
			s.post(note{paired: true})
			s.post(note{restart: true})
		}, ReasonPaired, 0},
		{"paired, and the 515 comes first", pairing, func(s *Socket, c chan<- error) {
			c <- nil
			s.post(note{accepted: true})
			s.post(note{restart: true})
			time.Sleep(time.Second)
			s.post(note{paired: true})
		}, ReasonPaired, time.Second},
		{"paired, and the 515 got lost", pairing, func(s *Socket, c chan<- error) {
			c <- nil
			s.post(note{accepted: true})
			s.post(note{paired: true})
		}, ReasonPaired, pairedTimeout},
		{"paired, and the connection ends", pairing, func(s *Socket, c chan<- error) {
			c <- nil
			s.post(note{paired: true})
			drop(s)
		}, ReasonPaired, 0},
		{"the connection ends while the device is being stored", pairing, func(s *Socket, c chan<- error) {
			c <- nil
			s.post(note{accepted: true})
			drop(s)
			time.Sleep(2 * time.Second)
			s.post(note{paired: true})
		}, ReasonPaired, 2 * time.Second},
		{"a paired device that is asked to pair", nil, func(s *Socket, c chan<- error) {
			c <- nil
			s.post(note{codes: six})
		}, ReasonPairFailed, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				end, lived := inLoop(t, Options{Pair: tt.pair}, tt.script)
				if end.Reason != tt.reason || lived != tt.lived {
					t.Errorf("ended with %v after %s, want %s after %s", end, lived, tt.reason, tt.lived)
				}
			})
		})
	}
}

func TestCodesAreShownOneAfterAnotherWithTheirExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var shown []string
		o := Options{
			Pair: &PairRequest{Method: fleet.PairQR, Until: start.Add(110 * time.Second)},
			Handler: Handler{QR: func(_ context.Context, text string, expires time.Time) {
				shown = append(shown, fmt.Sprintf("%s at %s until %s", text, time.Since(start), expires.Sub(start)))
			}},
		}
		inLoop(t, o, func(s *Socket, c chan<- error) {
			c <- nil
			s.post(note{codes: []string{"a", "b", "c", "d", "e", "f"}})
			for range 200 {
				time.Sleep(time.Second)
				s.seen()
			}
		})
		want := []string{"a at 0s until 1m0s", "b at 1m0s until 1m20s", "c at 1m20s until 1m40s", "d at 1m40s until 1m50s"}
		if fmt.Sprint(shown) != fmt.Sprint(want) {
			t.Errorf("shown = %q, want %q", shown, want)
		}
	})
}

func TestAnOfflineQueueWithoutAnEndIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var done []time.Duration
		o := Options{Handler: Handler{OfflineDone: func(context.Context, int) { done = append(done, time.Since(start)) }}}
		inLoop(t, o, func(s *Socket, c chan<- error) {
			c <- nil
			s.post(note{ready: true})
			for range 100 {
				time.Sleep(time.Second)
				s.seen()
			}
			s.finish(End{Reason: ReasonStopped})
		})
		if len(done) != 1 || done[0] != offlineTimeout {
			t.Errorf("OfflineDone at %v, want once, at %s", done, offlineTimeout)
		}
	})
}

func TestAHandlerThatPanicsInTheLoopEndsTheGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := Options{
			Pair:    &PairRequest{Method: fleet.PairQR},
			Handler: Handler{QR: func(context.Context, string, time.Time) { panic("bug") }},
		}
		end, _ := inLoop(t, o, func(s *Socket, c chan<- error) {
			c <- nil
			s.post(note{codes: []string{"a"}})
		})
		var he *HandlerError
		if end.Reason != ReasonHandler || !errors.As(end.Err, &he) || !he.Panic {
			t.Errorf("ended with %v, want %s that tells of the panic", end, ReasonHandler)
		}
	})
}

func TestTheTrackerWaitsForCallsUnderWay(t *testing.T) {
	var k tracker
	for range 2 {
		if !k.enter() {
			t.Fatal("enter = false on an open tracker")
		}
	}
	idle := k.close()
	if k.enter() {
		t.Error("enter = true after close")
	}
	k.leave()
	select {
	case <-idle:
		t.Fatal("idle while a call is under way")
	default:
	}
	k.leave()
	<-idle
	<-new(tracker).close()
}
