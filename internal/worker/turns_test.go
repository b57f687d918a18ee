package worker

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/wasim"
)

// Projects with a hundred messages waiting each share a number with one that has few: between the accept of a quiet project's
// message and its frame leave at most turnMost of each noisy one, and the one that was on its way.
func TestANoisyProjectHoldsAQuietOneUpForAFewMessagesOnly(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		w.sim.Phone(person1)
		project := func(name string) func(*fleet.Message) {
			p, err := w.st.CreateProject(t.Context(), fleet.Project{OrgID: w.org, Name: name})
			if err != nil {
				t.Fatal(err)
			}
			return func(m *fleet.Message) { m.ProjectID = p.ID }
		}
		noisy, quiet := []func(*fleet.Message){project("noisy-1"), project("noisy-2")}, project("quiet")
		const backlog, quietly = 100, 4
		w.pause(s.ID, true)
		for _, p := range noisy {
			for i := range backlog {
				w.address(s, person1, fmt.Sprint(i), p)
			}
		}
		w.sim.SetFault(wasim.Scope{Session: number1}, wasim.Fault{Latency: 500 * time.Millisecond}) // each frame takes its time
		w.pause(s.ID, false)

		w.await("the noisy ones to be at it", func() bool { return len(w.frameTimes()) >= 10 })
		for i := range quietly {
			to := fmt.Sprintf("551190000%04d", 7000+i) // nobody has written to: WhatsApp is asked who that is
			w.sim.Phone(to)
			before := len(w.frameTimes())
			id := w.address(s, to, "quiet", quiet)
			w.awaitStatus(id, fleet.StatusSent, fleet.StatusDelivered)
			frames := w.frames(w.message(id).WAID)
			between := slices.IndexFunc(w.frameTimes(), func(at time.Time) bool { return !at.Before(frames[0].At) }) - before
			if most := len(noisy)*turnMost + 1; between > most {
				t.Errorf("%d messages of noisy projects left before the quiet one's number %d, want at most %d", between, i, most)
			}
		}
		if left := len(w.frameTimes()); left >= len(noisy)*backlog {
			t.Fatalf("all %d messages have left: nobody was noisy any more", left)
		}
		w.sim.SetFault(wasim.Scope{Session: number1}, wasim.Fault{})
		w.await("everything else", func() bool { return len(w.texts(person1)) == len(noisy)*backlog })
		var each []string
		for i := range backlog {
			each = append(each, fmt.Sprint(i))
		}
		if got := w.texts(person1); !slices.Equal(got, append(each, each...)) {
			t.Errorf("one person has got %q, want everything in the order it was accepted", got)
		}
	})
}
