package worker

import (
	"slices"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

func TestAStrandedMessageArrivesBeforeALaterOneFromAnotherNumber(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		first, second := w.paired(number1), w.paired(number2)
		w.person(person1)
		w.person(person2)
		late := w.api(time.Hour) // it does not hear that the first number is held back
		write := func(from string, to string) fleet.Message {
			t.Helper()
			o := late
			if from == number2 {
				o = w.api(0)
			}
			a, err := o.Accept(t.Context(), w.request(to, "from "+from))
			if err != nil {
				t.Fatal(err)
			}
			return a.Message
		}
		w.becomes(write(number1, person1).ID, fleet.StatusDelivered)
		paused := true
		if _, err := w.st.UpdateSession(t.Context(), first.Slug, store.SessionChange{Paused: &paused}); err != nil {
			t.Fatal(err)
		}
		stranded := write(number1, person1)
		later, other := write(number2, person1), write(number2, person2)
		if stranded.SessionID != first.ID || later.SessionID != second.ID || other.SessionID != second.ID {
			t.Fatalf("messages went to %s, %s and %s, want the first number and the second twice", stranded.SessionID, later.SessionID, other.SessionID)
		}
		w.becomes(other.ID, fleet.StatusDelivered)
		w.sleep(10 * time.Second)
		if m := w.message(later.ID); m.Status != fleet.StatusQueued {
			t.Errorf("the later message is %s while the earlier one is stranded, want queued", m.Status)
		}
		if n, err := w.api(0).Dispatch(t.Context(), 10); err != nil || n != 1 {
			t.Fatalf("Dispatch = %d, %v, want the stranded message moved", n, err)
		}
		w.becomes(later.ID, fleet.StatusDelivered)
		var got []string
		for _, r := range w.sim.Phone(person1).Received() {
			got = append(got, r.ID)
		}
		if want := []string{w.message(stranded.ID).WAID, w.message(later.ID).WAID}; !slices.Equal(got[1:], want) {
			t.Errorf("the phone got %q after the first message, want %q", got[1:], want)
		}
	})
}
