package worker

import (
	"fmt"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/wasim"
	"github.com/wafleet/wafleet/internal/wasim/memnet"
)

func TestAMessageGoesFromQueuedToRead(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		phone := w.sim.Phone(person1)
		id := w.send(s, person1, "hello")
		w.awaitStatus(id, fleet.StatusDelivered)
		if got := w.texts(person1); len(got) != 1 || got[0] != "hello" {
			t.Fatalf("the phone shows %q, want one hello", got)
		}
		m := w.message(id)
		if m.SentAt.IsZero() || m.DeliveredAt.IsZero() || m.WAID != phone.Received()[0].ID {
			t.Errorf("message %+v: want sent and delivered times, and the id that the phone got (%s)", m, phone.Received()[0].ID)
		}
		if err := phone.MarkRead(t.Context(), m.WAID); err != nil {
			t.Fatal(err)
		}
		w.awaitStatus(id, fleet.StatusRead)
		var told []fleet.Status
		for _, e := range w.events(fleet.EventMessageStatus) {
			told = append(told, e.Data.Status)
		}
		if fmt.Sprint(told) != "[sent delivered read]" {
			t.Errorf("events told %v, want sent, delivered, read", told)
		}
	})
}

func TestALostAckIsRepeatedUnderTheSameIDAtItsTimes(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		w.sim.Phone(person1) // exists
		// No delivery receipt either: the person's phone is offline, as it were.
		w.sim.SetFault(wasim.Scope{Session: number1}, wasim.Fault{DropAcks: true})
		w.sim.Phone(person1).Block(number1)
		id := w.send(s, person1, "hello")
		w.await("an unknown outcome", func() bool { return w.message(id).Outcome == fleet.OutcomeUnknown })
		t0 := w.message(id).UnknownSince
		w.sleep(7 * time.Minute)
		frames := w.frames(w.message(id).WAID)
		if len(frames) != 3 {
			t.Fatalf("%d frames, want the send and two repeats", len(frames))
		}
		for i, want := range fleet.RepeatAfter {
			if d := frames[i+1].At.Sub(t0); d < want || d > want+3*time.Second+sendDeadline {
				t.Errorf("repeat %d came %v after T0, want about %v", i+1, d, want)
			}
		}
		if m := w.message(id); m.Status != fleet.StatusSending || m.Outcome != fleet.OutcomeUnknown {
			t.Errorf("message is %s/%s, want sending/unknown", m.Status, m.Outcome)
		}
	})
}

func TestUnknownIsToldAfterAMinute(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		w.sim.Phone(person1).Block(number1)
		w.sim.SetFault(wasim.Scope{Session: number1}, wasim.Fault{DropAcks: true})
		id := w.send(s, person1, "hello")
		w.await("an unknown outcome", func() bool { return w.message(id).Outcome == fleet.OutcomeUnknown })
		w.sleep(3 * time.Minute)
		told := 0
		for _, e := range w.events(fleet.EventMessageStatus) {
			if e.Data.Outcome == fleet.OutcomeUnknown && e.Data.Status == fleet.StatusSending {
				told++
			}
		}
		if told != 1 {
			t.Errorf("the unknown outcome was told %d times, want once", told)
		}
	})
}

func TestAReceiptSettlesAnUnknownOutcome(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		w.sim.Phone(person1)
		w.sim.SetFault(wasim.Scope{Session: number1}, wasim.Fault{DropNextAcks: 1})
		id := w.send(s, person1, "hello")
		w.awaitStatus(id, fleet.StatusDelivered)
		w.sleep(6 * time.Minute)
		if n := len(w.frames(w.message(id).WAID)); n != 1 {
			t.Errorf("%d frames, want one: the receipt settled it before any repeat", n)
		}
	})
}

func TestAFrameWithoutAckBeforeAClosedSocketIsSeenOnce(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		w.sim.Phone(person1)
		w.sim.SetFault(wasim.Scope{Session: number1}, wasim.Fault{CloseBeforeAck: 1})
		id := w.send(s, person1, "hello")
		w.awaitStatus(id, fleet.StatusDelivered, fleet.StatusSent)
		w.sleep(6 * time.Minute)
		if got := w.texts(person1); len(got) != 1 {
			t.Errorf("the person sees %q, want one message", got)
		}
	})
}

func TestRefusalsAreTypedAndFinal(t *testing.T) {
	for code, want := range map[int]string{403: "RECIPIENT_REFUSED", 463: "REACHOUT_RESTRICTED", 479: "STANZA_INVALID", 429: "RATE_LIMITED"} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				w.start("w1")
				s := w.paired(number1)
				w.sim.Phone(person1)
				w.sim.Phone(person2)
				w.sim.SetFault(wasim.Scope{Session: number1, Recipient: person1}, wasim.Fault{AckError: code})
				id := w.send(s, person1, "hello")
				other := w.send(s, person2, "hello too")
				if code == 463 { // another number may try it once; there is none
					w.await("a refusal", func() bool { return w.message(id).Parked })
					if _, err := w.api(0).Dispatch(t.Context(), 10); err != nil {
						t.Fatal(err)
					}
				}
				w.awaitStatus(id, fleet.StatusFailed)
				if m := w.message(id); m.ErrorCode != want || m.Outcome != fleet.OutcomeRefused {
					t.Errorf("message failed with %s/%s, want %s/refused", m.ErrorCode, m.Outcome, want)
				}
				w.awaitStatus(other, fleet.StatusDelivered)
				w.sleep(time.Minute)
				if n, next := len(w.frames(w.message(id).WAID)), w.message(id).NextRepeatAt; n != 1 || !next.IsZero() {
					t.Errorf("%d frames, the next at %v; want one and no more: a refusal is not retried", n, next)
				}
			})
		})
	}
}

func TestARecipientWithoutWhatsAppFails(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		id := w.send(s, "5511900000999", "hello")
		w.awaitStatus(id, fleet.StatusFailed)
		if m := w.message(id); m.ErrorCode != "NOT_ON_WHATSAPP" {
			t.Errorf("failed with %q, want NOT_ON_WHATSAPP", m.ErrorCode)
		}
		if n := len(w.frames(w.message(id).WAID)); n != 0 {
			t.Errorf("%d frames left for a number that is not on WhatsApp", n)
		}
	})
}

// Rule 2: a refused or unanswered pre-key fetch makes whatsmeow skip devices silently.
func TestAPreKeyFetchThatFailsSendsNothingAndTriesAgain(t *testing.T) {
	for name, fault := range map[string]int{"refused": 429, "unanswered": -1} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				w.start("w1")
				s := w.paired(number1)
				w.sim.Phone(person1)
				w.sim.SetFault(wasim.Scope{Recipient: person1}, wasim.Fault{KeyFetch: fault})
				id := w.send(s, person1, "hello")
				w.sleep(time.Minute)
				m := w.message(id)
				if m.Status == fleet.StatusSent || m.Status == fleet.StatusDelivered || m.Status == fleet.StatusFailed {
					t.Fatalf("message is %s although nobody could read it", m.Status)
				}
				if n := len(w.frames(m.WAID)); n != 0 {
					t.Fatalf("%d frames left without the recipient's device", n)
				}
				w.sim.SetFault(wasim.Scope{Recipient: person1}, wasim.Fault{})
				w.awaitFor(5*time.Minute, "delivery", func() bool { return w.message(id).Status == fleet.StatusDelivered })
				if got := w.message(id).WAID; got != m.WAID {
					t.Errorf("the id changed from %s to %s", m.WAID, got)
				}
			})
		})
	}
}

func TestOtherContactsNeverWaitForAnUnknownOutcome(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		w.sim.Phone(person1).Block(number1)
		w.sim.Phone(person2)
		w.sim.SetFault(wasim.Scope{Session: number1, Recipient: person1}, wasim.Fault{DropAcks: true})
		first := w.send(s, person1, "one")
		w.await("an unknown outcome", func() bool { return w.message(first).Outcome == fleet.OutcomeUnknown })
		t0 := w.message(first).UnknownSince
		w.sim.SetFault(wasim.Scope{Session: number1, Recipient: person1}, wasim.Fault{})
		second := w.send(s, person1, "two")
		other := w.send(s, person2, "elsewhere")
		w.awaitStatus(other, fleet.StatusDelivered)
		if d := time.Since(t0); d > 10*time.Second {
			t.Errorf("another contact waited %v", d)
		}
		w.awaitStatus(second, fleet.StatusSent)
		sent := w.frames(w.message(second).WAID)[0].At
		repeat := w.frames(w.message(first).WAID)[1].At
		if sent.Before(repeat) {
			t.Errorf("the same contact's next message left %v before the first repeat", repeat.Sub(sent))
		}
	})
}

func TestAMessageWaitsForItsSessionAndExpiresInTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.start("w1")
		s := w.paired(number1)
		w.sim.Phone(person1)
		p.stop()
		late := w.send(s, person1, "too late")
		w.sleep(fleet.DefaultTTL + time.Second)
		if _, err := w.st.ExpireQueued(t.Context(), 100); err != nil { // the scheduler's job
			t.Fatal(err)
		}
		soon := w.send(s, person1, "in time")
		w.start("w2")
		w.awaitStatus(soon, fleet.StatusDelivered)
		if m := w.message(late); m.Status != fleet.StatusExpired {
			t.Errorf("a message past its time is %s, want expired", m.Status)
		}
		if got := w.texts(person1); len(got) != 1 || got[0] != "in time" {
			t.Errorf("the phone shows %q, want only the message in time", got)
		}
	})
}

func TestAnotherOwnerAnswersARetryReceipt(t *testing.T) {
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
		before := len(w.frames(waID))
		if err := phone.AskRetry(waID); err != nil {
			t.Fatal(err)
		}
		w.await("the answer to the retry receipt", func() bool { return len(w.frames(waID)) > before })
		if got := w.texts(person1); len(got) != 1 {
			t.Errorf("the person sees %q, want one message", got)
		}
	})
}

// One stuck send blocks its own session for at most its deadline, and no other.
func TestAStuckSendBlocksOnlyItsOwnSession(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		a, b := w.paired(number1), w.paired(number2)
		w.sim.Phone(person1)
		w.sim.Phone(person2)
		w.sim.SetFault(wasim.Scope{Session: number1}, wasim.Fault{DropNextAcks: 1})
		w.sim.Phone(person1).Block(number1)
		stuck := w.send(a, person1, "stuck")
		w.await("a frame", func() bool { return len(w.frames(w.message(stuck).WAID)) == 1 })
		from := time.Now()
		free := w.send(b, person2, "free")
		w.awaitStatus(free, fleet.StatusDelivered)
		if d := time.Since(from); d > 3*time.Second {
			t.Errorf("another session waited %v for a stuck send", d)
		}
		behind := w.send(a, person2, "behind")
		w.awaitStatus(behind, fleet.StatusDelivered)
		if d := time.Since(from); d > sendDeadline+5*time.Second {
			t.Errorf("the session was blocked for %v, want at most %v", d, sendDeadline)
		}
	})
}

// A send in flight settles before a graceful stop closes the socket: its row, and in the ledger the place it took.
func TestAGracefulStopSettlesWhatIsInFlight(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.start("w1")
		s := w.paired(number1)
		w.sim.Phone(person1)
		w.sim.SetFault(wasim.Scope{Session: number1}, wasim.Fault{Latency: 2 * time.Second})
		api := w.api(0)
		id := w.accepted(api, person1).ID
		w.await("a frame", func() bool { return len(w.frames(w.message(id).WAID)) == 1 })
		outstanding := func() int {
			e, err := api.Capacity(t.Context(), w.org)
			if err != nil || len(e.Sessions) != 1 {
				t.Fatalf("Capacity = %+v, %v, want one session", e, err)
			}
			return e.Sessions[0].Outstanding
		}
		if n := outstanding(); n != 1 {
			t.Fatalf("%d outstanding while it is in flight, want 1", n)
		}
		p.stop()
		if m := w.message(id); m.Status != fleet.StatusSent && m.Status != fleet.StatusDelivered {
			t.Errorf("after a graceful stop the message is %s/%s, want sent", m.Status, m.Outcome)
		}
		w.start("w2") // the ledger is asked about numbers that are there
		w.await("the next owner", func() bool {
			return w.row(s.ID).Observed == fleet.ObservedConnected && w.row(s.ID).LeaseOwner == "w2/1"
		})
		if n := outstanding(); n != 0 {
			t.Errorf("%d outstanding after a graceful stop, want none", n)
		}
	})
}

// Whoever takes over a session sends what the last owner left open under the same id, on the same session.
func TestATakeoverRepeatsWhatWasInFlightUnderTheSameID(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p1 := w.start("w1")
		s := w.paired(number1)
		w.sim.Phone(person1).Block(number1)
		w.sim.SetFault(wasim.Scope{Session: number1}, wasim.Fault{DropAcks: true})
		id := w.send(s, person1, "half done")
		w.await("a frame", func() bool { return len(w.frames(w.message(id).WAID)) == 1 })
		p1.crash()
		w.sim.SetFault(wasim.Scope{Session: number1}, wasim.Fault{})
		w.sim.Phone(person1).Unblock(number1)
		w.start("w2")
		w.await("the new owner", func() bool {
			return w.row(s.ID).LeaseOwner == "w2/1" && w.row(s.ID).Observed == fleet.ObservedConnected
		})
		w.awaitStatus(id, fleet.StatusDelivered)
		frames := w.frames(w.message(id).WAID)
		last := frames[len(frames)-1]
		if last.Worker != "w2/1" || last.Session != number1 || last.Epoch != w.row(s.ID).LeaseEpoch {
			t.Errorf("the repeat came from %+v, want the new owner on the same session", last)
		}
		if got := w.texts(person1); len(got) != 1 {
			t.Errorf("the person sees %q, want one message", got)
		}
	})
}

func TestAClaimWhoseAnswerIsLostIsTakenOverAndHoldsNobodyUp(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.start("w1")
		s := w.paired(number1)
		w.sim.Phone(person1) // exists
		w.awaitStatus(w.send(s, person1, "zero"), fleet.StatusDelivered)
		w.sleep(2 * tidyEvery) // the lane knows of nothing unknown any more
		p.gate.loseCommit("INSERT INTO attempts")
		one := w.send(s, person1, "one")
		two := w.send(s, person1, "two")
		w.awaitFor(5*time.Minute, "delivery of both", func() bool {
			return w.message(one).Status == fleet.StatusDelivered && w.message(two).Status == fleet.StatusDelivered
		})
		if n := len(w.frames(w.message(one).WAID)); n != 1 {
			t.Errorf("%d frames of the message whose claim got no answer, want 1", n)
		}
	})
}

func TestNoFrameOfASupersededEpoch(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p1 := w.start("w1")
		s := w.paired(number1)
		w.sim.Phone(person1)
		w.awaitStatus(w.send(s, person1, "before"), fleet.StatusDelivered)

		// The process freezes: no database, nothing in or out, while the lease runs out.
		p1.gate.freeze()
		w.net.Each("w1", func(l *memnet.Link) { l.Hold(true) })
		w.start("w2")
		w.await("a takeover", func() bool {
			return w.row(s.ID).LeaseOwner == "w2/1" && w.row(s.ID).Observed == fleet.ObservedConnected
		})
		taken := time.Now()
		epoch := w.row(s.ID).LeaseEpoch
		ids := []fleet.MessageID{w.send(s, person1, "during 1"), w.send(s, person1, "during 2")}
		w.sleep(time.Minute)
		w.net.Each("w1", func(l *memnet.Link) { l.Hold(false) })
		p1.gate.open()
		ids = append(ids, w.send(s, person1, "after"))
		w.sleep(5 * time.Minute)
		for _, id := range ids {
			if m := w.message(id); m.Status != fleet.StatusDelivered {
				t.Errorf("message %q is %s, want delivered", m.Text, m.Status)
			}
		}
		for _, e := range w.sim.Log(wasim.Query{Session: number1}) {
			if e.Worker == "w1/1" && e.At.After(taken) && (e.Kind == wasim.KindLogin || e.Dir == wasim.DirIn && e.Kind == wasim.KindMessage) {
				t.Errorf("the old owner did %s after the takeover: %+v", e.Kind, e)
			}
		}
		if r := w.row(s.ID); r.LeaseEpoch != epoch || r.Observed != fleet.ObservedConnected {
			t.Errorf("the new owner was disturbed: %s under epoch %d, want connected under %d", r.Observed, r.LeaseEpoch, epoch)
		}
		if got := w.texts(person1); fmt.Sprint(got) != "[before during 1 during 2 after]" {
			t.Errorf("the person sees %q", got)
		}
	})
}
