package worker

import (
	"slices"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/wasim"
)

// Keys take so long in these tests: a send waits between reading the sessions it encrypts with and its claim. It may wait
// twice, which has to fit into its deadline.
const slowKeys = 6 * time.Second

func TestASendThatCrossesAnIncomingPreKeyMessageLeavesBothSidesReadable(t *testing.T) {
	t.Run("the first message each way", func(t *testing.T) {
		bubble(t, func(t *testing.T, w *world) {
			w.start("w1")
			s := w.paired(number1)
			w.sim.Phone(person1)
			cross(t, w, s)
		})
	})
	t.Run("a phone that was set up anew", func(t *testing.T) {
		bubble(t, func(t *testing.T, w *world) {
			p := w.start("w1")
			s := w.paired(number1)
			w.sim.Phone(person1)
			w.awaitStatus(w.send(s, person1, "hello"), fleet.StatusDelivered)
			w.write(person1, number1, "hello back")
			w.await("the answer", func() bool { return w.came() == 1 })
			p.stop()
			// The own phone's keys are asked for again, so that the send waits although it has a session with the person.
			if _, err := w.st.DB().Exec(t.Context(), `DELETE FROM whatsmeow_sessions WHERE their_id LIKE $1`, w.sim.Phone(number1).LID().SignalAddressUser()+":%"); err != nil {
				t.Fatal(err)
			}
			w.start("w2")
			w.await("a new login", func() bool { r := w.row(s.ID); return r.Observed == fleet.ObservedConnected && r.LeaseOwner == "w2/1" })
			w.sleep(5 * time.Second)
			w.sim.Phone(person1).Forget(number1)
			cross(t, w, s)
		})
	})
}

// cross sends to a person and has them open a session of their own before the claim.
func cross(t *testing.T, w *world, s fleet.Session) {
	t.Helper()
	before := w.came()
	w.sim.SetFault(wasim.Scope{Session: number1}, wasim.Fault{KeyLatency: slowKeys})
	id := w.send(s, person1, "crossing")
	w.sleep(2 * time.Second)
	w.write(person1, number1, "one")
	w.awaitFor(5*time.Second, "a message that came in while keys were waited for", func() bool { return w.came() == before+1 })
	if m := w.message(id); m.Status != fleet.StatusQueued {
		t.Fatalf("the message is %s before its keys came, want queued", m.Status)
	}
	w.sim.Phone(person1).Power(false) // what they send next still opens their session
	w.await("the frame", func() bool { return len(w.frames(w.message(id).WAID)) > 0 })
	w.write(person1, number1, "two")
	w.await("the second message of the session that they opened", func() bool { return w.came() == before+2 })
	w.sim.Phone(person1).Power(true)
	w.awaitStatus(id, fleet.StatusDelivered)
	w.write(person1, number1, "three")
	w.await("the third message", func() bool { return w.came() == before+3 })
	w.sleep(time.Minute)
	if n := len(w.frames(w.message(id).WAID)); n != 1 {
		t.Errorf("%d frames left, want one", n)
	}
	if got := w.texts(person1); got[len(got)-1] != "crossing" || slices.Index(got, "crossing") != len(got)-1 {
		t.Errorf("the phone shows %q, want crossing last and once", got)
	}
	if asked := w.sim.Log(wasim.Query{Kind: wasim.KindReceipt, Type: "retry"}); len(asked) != 0 {
		t.Errorf("%d messages could not be read and were asked for again, want none: %+v", len(asked), asked)
	}
	if m := w.message(id); m.Attempts != 1 {
		t.Errorf("the message took %d attempts, want 1: it is encrypted anew before it is claimed", m.Attempts)
	}
}
