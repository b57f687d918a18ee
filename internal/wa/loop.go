package wa

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
)

// note is one thing that whatsmeow's goroutines tell Run's loop; exactly one field is set.
type note struct {
	decided     *decided
	codes       []string // to show one after another
	accepted    bool     // a phone scanned and we said yes; whatsmeow stores the device now
	paired      bool     // the device is stored, and Handler.Paired succeeded
	restart     bool     // 515: WhatsApp wants a new connection
	ready       bool
	offlineDone bool
	lost        bool
	serverError int
}

// decided is an end that waits a moment for whatsmeow to finish something.
type decided struct {
	end   End
	after time.Duration
}

// post gives a note to the loop, or drops it when the generation is over.
func (s *Socket) post(n note) {
	l := s.life.Load()
	if l == nil {
		return
	}
	select {
	case s.inbox <- n:
	case <-l.ctx.Done():
	}
}

// alarm is a timer that may be off.
type alarm struct{ *time.Timer }

func newAlarm() alarm {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return alarm{t}
}

// loop watches over the generation until its context ends. A timer for each hole in whatsmeow's reconnecting is
// here: a connect that hangs, a login that does not complete, a 515 that got lost, a line that fell silent, an offline
// queue without an end. It returns what WhatsApp said about the end, if something was still pending.
func (s *Socket) loop(l *life, own *sync.WaitGroup, connected <-chan error) (pending *End) {
	connect, login, silent := newAlarm(), newAlarm(), newAlarm()
	ending, until, rotate := newAlarm(), newAlarm(), newAlarm()
	lastStep, offlineEnd := newAlarm(), newAlarm()
	for _, a := range []alarm{connect, login, silent, ending, until, rotate, lastStep, offlineEnd} {
		defer a.Stop()
	}
	pair := s.opts.Pair
	connect.Reset(connectTimeout)
	if pair != nil && !pair.Until.IsZero() {
		until.Reset(time.Until(pair.Until))
	}
	var (
		open        bool // ConnectContext succeeded
		in          bool // logged in
		accepted    bool // by us
		stored      bool // paired
		restart     bool // 515 seen
		broke       bool // the connection is gone
		serverError int
		codes       []string
		lost        = s.gate.lost
	)
	decide := func(e End, after time.Duration) {
		if pending == nil {
			pending = &e
			ending.Reset(after)
		}
	}
	opened := func(err error) {
		connected = nil
		connect.Stop()
		if err != nil {
			s.finish(dialFailed(err))
			return
		}
		open = true
		s.seen()
		silent.Reset(silentAfter)
		if pair == nil && !in { // the login may be told before the connect that it came through returned
			login.Reset(loginTimeout)
		}
	}
	// A broken connection has its reason in the queue sometimes: whatever comes in that time is the better reason.
	broken := func() {
		broke = true
		s.ready.Store(false)
		switch {
		case pending != nil, s.leaving.Load():
		case stored:
			decide(End{Reason: ReasonPaired}, 0)
		case accepted:
			ending.Reset(pairedTimeout) // the phone has linked us: let the device be stored
		case serverError != 0:
			decide(End{Reason: ReasonServerError, Code: serverError}, 0)
		default:
			ending.Reset(settle)
		}
	}
	for {
		select {
		case <-l.ctx.Done():
			return pending
		case err := <-connected:
			opened(err)
		case <-connect.C:
			s.finish(dialFailed(fmt.Errorf("no connection within %s", connectTimeout)))
		case <-login.C:
			s.finish(End{Reason: ReasonNotLoggedIn, Err: fmt.Errorf("connected, but not logged in after %s", loginTimeout)})
		case <-silent.C:
			if err := s.gate.check(); err != nil {
				continue // check has ended the generation
			}
			quiet := time.Since(s.AliveAt())
			if quiet >= silentAfter {
				s.finish(End{Reason: ReasonSilent, Err: fmt.Errorf("nothing heard for %s", quiet.Round(time.Second))})
				continue
			}
			silent.Reset(silentAfter - quiet)
		case <-lost:
			lost = nil
			broken()
		case <-ending.C:
			switch {
			case pending != nil:
				s.finish(*pending)
			case serverError != 0:
				s.finish(End{Reason: ReasonServerError, Code: serverError})
			case !open:
				s.finish(dialFailed(errors.New("the connection ended in the handshake")))
			default:
				s.finish(End{Reason: ReasonDisconnected})
			}
		case <-until.C:
			s.finish(End{Reason: ReasonPairExpired, Err: errors.New("the pairing attempt is over")})
		case <-rotate.C:
			codes = s.showNext(l, codes, rotate)
		case <-lastStep.C:
			s.finish(End{Reason: ReasonPaired}) // the 515 got lost: the next login works without it
		case <-offlineEnd.C:
			s.endOffline(l, 0, "WhatsApp did not say that its queue is empty")
		case n := <-s.inbox:
			switch {
			case n.decided != nil:
				s.ready.Store(false)
				decide(n.decided.end, n.decided.after)
			case n.codes != nil:
				switch {
				case pair == nil:
					s.finish(End{Reason: ReasonPairFailed, Err: errors.New("WhatsApp asks a paired device to pair")})
				case pair.Method == fleet.PairCode:
					rotate.Reset(shown(len(n.codes)))
					own.Go(func() { s.pairByCode(l, shown(len(n.codes))) })
				default:
					codes = s.showNext(l, n.codes, rotate)
				}
			case n.accepted:
				accepted = true
				rotate.Stop()
				until.Reset(connectTimeout)
			case n.paired:
				stored = true
				until.Stop()
				if restart || broke {
					decide(End{Reason: ReasonPaired}, 0)
				}
				lastStep.Reset(pairedTimeout)
			case n.restart:
				restart = true
				switch {
				case stored:
					decide(End{Reason: ReasonPaired}, 0)
				case pair == nil:
					decide(End{Reason: ReasonStreamError, Code: 515}, 0)
				default: // the device is being stored right now
					lastStep.Reset(pairedTimeout)
				}
			case n.ready:
				in = true
				login.Stop()
				if s.offline.Load() {
					offlineEnd.Reset(offlineTimeout)
				}
			case n.offlineDone:
				offlineEnd.Stop()
			case n.lost:
				broken()
			case n.serverError != 0:
				serverError = n.serverError
				s.ready.Store(false)
				ending.Reset(tidyTime) // WhatsApp closes the connection; if it doesn't, we do
			}
		}
	}
}

// endOffline tells once that the offline queue is done.
func (s *Socket) endOffline(l *life, count int, why string) {
	if !s.offline.CompareAndSwap(true, false) {
		return
	}
	if why != "" {
		s.log.LogAttrs(l.ctx, slog.LevelWarn, "offline queue ended by time", slog.String("detail", why))
	}
	if h := s.opts.Handler.OfflineDone; h != nil {
		s.told(l, "offline_done", func() { h(l.ctx, count) })
	}
}
