package worker

import (
	"fmt"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/wasim"
)

func TestAppStateThatDoesNotVerifyIsFetchedAnewOnceAndNeverUnlinks(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.start("w1")
		s := w.paired(number1)
		w.sim.Phone(person1)
		generation := s.Generation
		full := func() (n int) {
			for _, e := range w.sim.Log(wasim.Query{Session: number1, Kind: wasim.KindAppState}) {
				if e.Text == "full" {
					n++
				}
			}
			return n
		}
		rename := func(name string) {
			t.Helper()
			if err := w.sim.Phone(number1).SetPushName(name); err != nil {
				t.Fatal(err)
			}
		}
		// Bad for ever.
		before := full()
		w.sim.SetFault(wasim.Scope{Session: number1}, wasim.Fault{BadPatches: -1})
		for i := range 4 {
			rename(fmt.Sprint("Ana ", i))
			w.sleep(20 * time.Second)
		}
		if n := full() - before; n != 1 {
			t.Errorf("bad patches led to %d full fetches within minutes, want 1", n)
		}
		w.awaitStatus(w.send(s, person1, "out"), fleet.StatusDelivered)
		w.write(person1, number1, "in")
		w.await("the inbound message", func() bool { return len(w.inbound()) == 1 })
		if r := w.row(s.ID); r.Observed != fleet.ObservedConnected || r.Generation != generation {
			t.Errorf("the session is %s in generation %d, want connected in %d all the time", r.Observed, r.Generation, generation)
		}

		// Bad once, for an owner that has not fetched anew yet.
		p.stop()
		w.start("w2")
		w.await("the new owner", func() bool {
			return w.row(s.ID).LeaseOwner == "w2/1" && w.row(s.ID).Observed == fleet.ObservedConnected
		})
		before = full()
		w.sim.SetFault(wasim.Scope{Session: number1}, wasim.Fault{BadPatches: 1})
		rename("Ana at last")
		w.await("the name", func() bool { return w.row(s.ID).PushName == "Ana at last" })
		if n := full() - before; n != 1 {
			t.Errorf("one bad patch led to %d full fetches, want 1", n)
		}
		if n := len(w.sim.Phone(number1).Devices()); n != 1 {
			t.Errorf("the phone lists %d linked devices, want the one", n)
		}
	})
}

func TestACollectionIsFetchedAnewOnceAnHour(t *testing.T) {
	var r resyncs
	start := time.Now()
	fetches := 0
	for m := range 180 {
		if r.allow("regular", start.Add(time.Duration(m)*time.Minute)) {
			fetches++
		}
	}
	if fetches != 3 {
		t.Errorf("%d full fetches in three hours, want 3", fetches)
	}
	if !r.allow("critical_block", start) {
		t.Error("a second collection has to wait for the first")
	}
}
