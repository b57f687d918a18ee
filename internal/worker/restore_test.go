package worker

import (
	"fmt"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/wasim"
)

// peak returns how many connections were between their dial and their login at once.
func peak(log []wasim.Entry) (most int) {
	open := map[int64]bool{}
	for _, e := range log {
		switch e.Kind {
		case wasim.KindDial:
			open[e.Conn] = true
		case wasim.KindLogin, wasim.KindClose:
			delete(open, e.Conn)
		}
		most = max(most, len(open))
	}
	return most
}

// All that ran is restored without a request, each session by one of the workers that start together,
// and no more sockets are being opened at once than their settings allow.
func TestWorkersThatStartTogetherLogEachSessionInOnceAndFewAtATime(t *testing.T) {
	const sessions, workers, batch = 9, 3, 2
	const handshake = 5 * time.Second // over the slow line below
	bubble(t, func(t *testing.T, w *world) {
		w.net.Latency = func(name string) time.Duration {
			if name == "w0" {
				return 0
			}
			return 500 * time.Millisecond
		}
		p := w.start("w0")
		var all []fleet.Session
		for i := range sessions {
			all = append(all, w.paired(fmt.Sprint(5511900000001+i)))
		}
		p.crash()
		seen := w.sim.Log(wasim.Query{Tail: 1})[0].Seq
		begun := time.Now()
		for i := range workers {
			w.start(fmt.Sprint("w", i+1), func(o *Options) { o.Batch = batch })
		}
		w.awaitFor(30*time.Second+sessions/batch*handshake, "everybody back", func() bool {
			for _, s := range all {
				if r := w.row(s.ID); r.Observed != fleet.ObservedConnected || r.LeaseEpoch != 2 {
					return false
				}
			}
			return true
		})
		t.Logf("%d sessions were back %v after the kill", sessions, time.Since(begun))
		w.sleep(time.Minute)
		log := w.sim.Log(wasim.Query{After: seen})
		logins := map[string]int{}
		for _, e := range log {
			if e.Kind == wasim.KindLogin {
				logins[e.Session]++
			}
		}
		for _, s := range all {
			if r := w.row(s.ID); logins[s.Phone] != 1 || r.LeaseEpoch != 2 {
				t.Errorf("%s logged in %d times and is at epoch %d, want once at 2", s.Slug, logins[s.Phone], r.LeaseEpoch)
			}
		}
		if got := peak(log); got > workers*batch || got < 2 {
			t.Errorf("%d sockets were being opened at once, want at most %d", got, workers*batch)
		}
	})
}
