package worker

import (
	"fmt"
	"testing"
	"time"

	"go.mau.fi/whatsmeow/proto/waE2E"
	"google.golang.org/protobuf/proto"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/wasim"
)

// What an owner left open, and what becomes of it under the next one.

// An owner freezes with a frame on its way to WhatsApp, and thaws when another one owns the session.
func TestAnOwnerThatFreezesInMidSendIsRepeatedOnceAndLearnsThatItLost(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p1 := w.start("w1")
		s := w.paired(number1)
		w.sim.Phone(person1)
		w.awaitStatus(w.send(s, person1, "before"), fleet.StatusDelivered)
		// The frame leaves; the ack does not come, and then neither database nor clock.
		w.sim.SetFault(wasim.Scope{Session: number1}, wasim.Fault{DropNextAcks: 1})
		w.sim.Phone(person1).Block(number1)
		id := w.send(s, person1, "halfway")
		w.await("a frame", func() bool { return len(w.frames(w.message(id).WAID)) == 1 })
		p1.gate.freeze()
		w.sim.Phone(person1).Unblock(number1)
		w.start("w2")
		w.await("a takeover", func() bool {
			return w.row(s.ID).LeaseOwner == "w2/1" && w.row(s.ID).Observed == fleet.ObservedConnected
		})
		taken := time.Now()
		epoch := w.row(s.ID).LeaseEpoch
		w.sleep(10 * time.Second)
		p1.gate.open() // its record of the send's outcome is the first write
		w.awaitStatus(id, fleet.StatusDelivered)
		w.sleep(6 * time.Minute)
		if got := w.texts(person1); fmt.Sprint(got) != "[before halfway]" {
			t.Errorf("the person sees %q, want each once", got)
		}
		for _, e := range w.frames(w.message(id).WAID) {
			if e.At.After(taken) && (e.Worker != "w2/1" || e.Epoch != epoch) {
				t.Errorf("a frame of %s under epoch %d left after the takeover", e.Worker, e.Epoch)
			}
		}
		if n := len(w.frames(w.message(id).WAID)); n != 2 {
			t.Errorf("%d frames, want the one of the frozen owner and one repeat", n)
		}
		if n := p1.worker.Active(); n != 0 {
			t.Errorf("the old owner still holds %d sessions", n)
		}
	})
}

// The owner dies with many sends claimed: whoever takes over settles them all under their ids.
func TestEverySendThatACrashLeftOpenIsSettled(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p1 := w.start("w1")
		s := w.paired(number1)
		person := func(i int) string { return fmt.Sprint(5511900001000 + i) }
		for i := range 30 {
			w.sim.Phone(person(i))
		}
		p1.gate.freeze() // from here on the test does in its name what it would do
		row := w.row(s.ID)
		term := fleet.Term{SessionID: s.ID, Owner: row.LeaseOwner, Epoch: row.LeaseEpoch}
		var ids []fleet.MessageID
		for i := range 30 {
			id := w.send(s, person(i), fmt.Sprint(i))
			payload, err := proto.Marshal(&waE2E.Message{Conversation: proto.String(fmt.Sprint(i))})
			if err != nil {
				t.Fatal(err)
			}
			ok, err := w.st.ClaimMessage(t.Context(), term, store.Claim{ID: id, Payload: payload, Kind: fleet.AttemptSend, LockFor: claimLock})
			if !ok || err != nil {
				t.Fatalf("ClaimMessage = %v, %v", ok, err)
			}
			ids = append(ids, id)
		}
		p1.crash()
		w.start("w2")
		w.awaitFor(5*time.Minute, "delivery of all", func() bool {
			for _, id := range ids {
				if w.message(id).Status != fleet.StatusDelivered {
					return false
				}
			}
			return true
		})
		w.sleep(6 * time.Minute)
		if n, err := w.st.OpenSends(t.Context()); n != 0 || err != nil {
			t.Errorf("OpenSends = %d, %v, want none", n, err)
		}
		for _, id := range ids {
			if n := len(w.frames(w.message(id).WAID)); n != 1 {
				t.Errorf("%d frames of a message, want the repeat alone", n)
			}
		}
		for i := range 30 {
			if got := w.texts(person(i)); len(got) != 1 || got[0] != fmt.Sprint(i) {
				t.Errorf("person %d sees %q, want their message once", i, got)
			}
		}
	})
}

// A phone asks five times for what it can't decrypt, and then shows for good that it waits for a message.
func TestAfterTheFifthAskForAMessageItSaysThatItCannotBeDecrypted(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p1 := w.start("w1")
		s := w.paired(number1)
		phone := w.sim.Phone(person1)
		id := w.send(s, person1, "read me")
		w.awaitStatus(id, fleet.StatusDelivered)
		p1.stop()
		w.start("w2")
		w.await("the new owner", func() bool {
			return w.row(s.ID).Observed == fleet.ObservedConnected && w.row(s.ID).LeaseOwner == "w2/1"
		})
		waID := w.message(id).WAID
		for ask := range fleet.MaxRetryFrames {
			if code := w.message(id).ErrorCode; code != "" {
				t.Errorf("after %d asks the message says %q", ask, code)
			}
			before, from := len(w.frames(waID)), time.Now()
			if err := phone.AskRetry(waID); err != nil {
				t.Fatal(err)
			}
			w.await("an answer", func() bool { return len(w.frames(waID)) == before+1 })
			if d := time.Since(from); d > 5*time.Second {
				t.Errorf("answer %d took %v, want under 5 s", ask+1, d)
			}
			w.sleep(5 * time.Second)
		}
		if m := w.message(id); m.Status != fleet.StatusDelivered || m.ErrorCode != fleet.CodeUndecryptable {
			t.Errorf("message is %s with %q, want delivered with %q", m.Status, m.ErrorCode, fleet.CodeUndecryptable)
		}
		told := 0
		for _, e := range w.events(fleet.EventMessageStatus) {
			if e.Data.Code == fleet.CodeUndecryptable {
				told++
			}
		}
		if told != 1 {
			t.Errorf("it was told %d times, want once", told)
		}
		for _, r := range phone.Received() {
			if r.Text != "read me" {
				t.Errorf("the phone got %q, want the same text every time", r.Text)
			}
		}
	})
}
