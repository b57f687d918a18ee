package simulate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/testkit"
)

// goroutineSlack is how many more goroutines there may be after the storm than before it.
const goroutineSlack = 3

// calmLimit is how long the fleet may take until nothing is left to do. The longest wait of its own is the breaker of an
// endpoint.
const calmLimit = 40 * time.Minute

// calm waits until nothing is left to do, and then a while for what should not come.
func (w *world) calm() {
	w.busy.Wait()
	w.awaitQuiet()
	pause(20 * time.Second)
}

func (w *world) awaitQuiet() {
	for deadline := time.Now().Add(calmLimit); ; pause(5 * time.Second) {
		open := w.open()
		if len(open) == 0 {
			return
		}
		if time.Now().After(deadline) {
			w.problem("not finished %v after the storm: %s", calmLimit, strings.Join(open, "; "))
			return
		}
	}
}

// open lists what is still to be done. What only time can decide is not waited for.
func (w *world) open() (open []string) {
	for what, q := range map[string]string{
		"messages to send": `SELECT count(*) FROM messages WHERE status='queued' OR status='sending' AND NOT (outcome='unknown' AND (next_repeat_at=0 OR repeats>=2))`,
		"deliveries":       `SELECT count(*) FROM deliveries WHERE status='pending'`,
	} {
		if n := w.number(q); n > 0 {
			open = append(open, fmt.Sprintf("%d %s", n, what))
		}
	}
	for _, n := range w.sessions {
		if s := w.row(n.id); s.Observed != fleet.ObservedConnected {
			open = append(open, fmt.Sprintf("%s is %s (%s %s)", n.name, s.Observed, s.Reason, s.LastError))
		}
		for _, dev := range w.sim.Phone(n.pn).Devices() {
			if left := w.sim.Pending(n.pn, dev); left > 0 {
				open = append(open, fmt.Sprintf("%d stanzas for %s are not acknowledged", left, n.name))
			}
		}
	}
	slices.Sort(open)
	return open
}

// undecided counts messages that neither ack, receipt nor repeat has settled.
func (w *world) undecided() int {
	return w.number(`SELECT count(*) FROM messages WHERE status='sending'`)
}

// dayOff stops the whole fleet for a day, after which what is undecided must be closed.
func (w *world) dayOff() {
	for _, s := range w.slots {
		s.end()
	}
	pause(fleet.UnconfirmedAfter)
	w.gates = w.allGates()
	w.up()
	for deadline := time.Now().Add(5 * time.Minute); w.undecided() > 0 && time.Now().Before(deadline); {
		pause(5 * time.Second)
	}
	w.awaitQuiet()
}

// goroutines counts the bubble's when everybody rests and idle connections are closed, and returns their stacks.
func (w *world) goroutines() (int, []byte) {
	pause(35 * time.Second)
	settle()
	return testkit.BubbleGoroutines()
}

// number runs a query that gives one.
func (w *world) number(q string) (n int) {
	w.t.Helper()
	w.must(w.st.DB().QueryRow(w.t.Context(), q).Scan(&n))
	return n
}

// allGates are those of every life of every process.
func (w *world) allGates() []*gate {
	all := slices.Clone(w.gates)
	for _, s := range w.slots {
		s.mu.Lock()
		all = append(all, s.gates...)
		s.mu.Unlock()
	}
	return all
}

// statements counts what all processes with a gate asked of the database, by kind.
func (w *world) statements() map[string]int {
	total := map[string]int{}
	for _, g := range w.allGates() {
		g.set(func() {
			for kind := range maps.Keys(g.seen) {
				total[kind] += g.seen[kind]
			}
		})
	}
	return total
}

func (w *world) accepted() (n int) {
	for _, c := range w.clients {
		for _, o := range c.orders {
			if o.taken {
				n++
			}
		}
	}
	return n
}

func (w *world) written() (n int) {
	for _, p := range w.people {
		n += len(p.sent)
	}
	return n
}
