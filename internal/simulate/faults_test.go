package simulate

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/wasim"
	"github.com/wafleet/wafleet/internal/wasim/memnet"
)

// faults do what a step says. They are called between two instants, one after another, and do not wait.
var faults = map[string]func(w *world, s step){
	// WhatsApp and the way to it, for one number
	"drop":             onDevice((*wasim.Server).Drop),
	"mute":             onDevice((*wasim.Server).Mute),
	"replaced":         onDevice((*wasim.Server).Replace),
	"repeat":           onDevice((*wasim.Server).Repeat),
	"lost-ack":         counting(func(f *wasim.Fault, n int) { f.DropNextAcks += n }),
	"close-before-ack": counting(func(f *wasim.Fault, n int) { f.CloseBeforeAck += n }),
	"mute-pings":       passing(func(f *wasim.Fault, on bool) { f.MutePings = on }),
	"refuse-dials":     passing(func(f *wasim.Fault, on bool) { f.RefuseDials = on }),
	"refuse-login": passing(func(f *wasim.Fault, on bool) {
		f.ConnectFailure = map[bool]int{true: http.StatusServiceUnavailable}[on]
	}),
	"silent": func(w *world, s step) { // what a server swallowed is sent again on the next connection, so this one ends
		w.fault(s, func(f *wasim.Fault) { f.Silent = true })
		w.later(s.duration(0), func() {
			w.fault(s, func(f *wasim.Fault) { f.Silent = false })
			onDevice((*wasim.Server).Drop)(w, s)
		})
	},
	"latency": func(w *world, s step) {
		delay := s.duration(0)
		w.fault(s, func(f *wasim.Fault) { f.Latency = delay })
		w.later(s.duration(1), func() { w.fault(s, func(f *wasim.Fault) { f.Latency = 0 }) })
	},
	"refuse": func(w *world, s step) {
		w.fault(s, func(f *wasim.Fault) { f.AckError, f.AckErrorNext = s.number(0), s.number(1) })
	},
	"refuse-keys": func(w *world, s step) {
		w.fault(s, func(f *wasim.Fault) { f.KeyFetch = s.number(0) })
		w.later(s.duration(1), func() { w.fault(s, func(f *wasim.Fault) { f.KeyFetch = 0 }) })
	},
	"slow-keys": func(w *world, s step) { // a send waits between reading its Signal sessions and its claim
		w.fault(s, func(f *wasim.Fault) { f.KeyLatency = s.duration(0) })
		w.later(s.duration(1), func() { w.fault(s, func(f *wasim.Fault) { f.KeyLatency = 0 }) })
	},
	"forget": func(w *world, s step) { // the phone is set up anew
		for _, p := range w.people {
			if p.name == s.Actor {
				p.phone.Forget(w.sessions[s.number(0)].pn)
				w.count(s.Fault)
			}
		}
	},
	"ask-retry": func(w *world, s step) {
		for _, p := range w.people {
			if list := p.phone.Received(); p.name == s.Actor && len(list) > 0 && p.phone.AskRetry(list[len(list)-1].ID) == nil {
				w.count(s.Fault)
			}
		}
	},

	// processes and their ways to WhatsApp and to the database
	"reset": onLinks(func(_ *world, l *memnet.Link, _ time.Duration) { l.Reset() }),
	"black-hole": onLinks(func(w *world, l *memnet.Link, d time.Duration) {
		l.BlackHole(true)
		w.later(d, func() { l.BlackHole(false); l.Reset() })
	}),
	"freeze":    onProcess(func(_ *world, in *instance, s step) { in.freeze(s.duration(0)) }),
	"freeze-at": onProcess(func(_ *world, in *instance, s step) { in.trap(s, trap{stop: true, rest: s.duration(3)}) }),
	"no-store": onProcess(func(w *world, in *instance, s step) {
		in.gate.silence()
		w.later(s.duration(0), in.gate.answer)
	}),
	"slow-store": onProcess(func(w *world, in *instance, s step) {
		in.gate.set(func() { in.gate.slow = s.duration(0) })
		w.later(s.duration(1), func() { in.gate.set(func() { in.gate.slow = 0 }) })
	}),
	"store-error": onProcess(func(_ *world, in *instance, s step) { in.trap(s, trap{}) }),
	"crash":       onProcess(func(_ *world, in *instance, s step) { in.trap(s, trap{crash: true, rest: s.duration(3)}) }),
	"restart": onProcess(func(_ *world, in *instance, s step) {
		select {
		case in.s.restarts <- s.duration(0):
		default:
		}
	}),
	"lose-answers": func(w *world, s step) {
		if s.Actor == "receiver" {
			w.receiver.lose.next(s.number(0))
			w.count(s.Fault)
			return
		}
		onProcess(func(_ *world, in *instance, s step) { in.lose.next(s.number(0)) })(w, s)
	},

	// around the gateway
	"receiver-slow": func(w *world, s step) {
		w.receiver.set(func(v *receiver) { v.slow = s.duration(0) })
		w.later(s.duration(1), func() { w.receiver.set(func(v *receiver) { v.slow = 0 }) })
		w.count(s.Fault)
	},
	"receiver-fails": func(w *world, s step) {
		w.receiver.set(func(v *receiver) { v.fails = true })
		w.later(s.duration(0), func() { w.receiver.set(func(v *receiver) { v.fails = false }) })
		w.count(s.Fault)
	},
	"receiver-down": func(w *world, s step) {
		w.receiver.set(func(v *receiver) { v.down = true })
		w.later(s.duration(0), func() { w.receiver.set(func(v *receiver) { v.down = false }) })
		w.count(s.Fault)
	},
	"no-nudges": func(w *world, s step) {
		w.bus.down.Store(true)
		w.later(s.duration(0), func() { w.bus.down.Store(false) })
		w.count(s.Fault)
	},
}

func (s step) word(n int) string {
	if f := strings.Fields(s.Arg); n < len(f) {
		return f[n]
	}
	return ""
}

func (s step) number(n int) int {
	v, err := strconv.Atoi(s.word(n))
	if err != nil {
		panic(fmt.Sprintf("step %q: word %d is not a number", s, n))
	}
	return v
}

func (s step) duration(n int) time.Duration {
	v, err := time.ParseDuration(s.word(n))
	if err != nil {
		panic(fmt.Sprintf("step %q: word %d is not a duration", s, n))
	}
	return v
}

func (w *world) count(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fired[what]++
}

// later ends a fault when its time is over, or at the end of the storm.
func (w *world) later(d time.Duration, f func()) {
	w.undo.Go(func() {
		pause(min(d, time.Until(w.stormEnds)))
		f()
	})
}

func (w *world) numberOf(name string) *number {
	for _, n := range w.sessions {
		if n.name == name {
			return n
		}
	}
	panic("there is no session " + name)
}

// fault changes what goes wrong for the number of a session.
func (w *world) fault(s step, change func(*wasim.Fault)) {
	scope := wasim.Scope{Session: w.numberOf(s.Actor).pn}
	var f wasim.Fault
	for _, in := range w.sim.Faults() {
		if in.Scope == scope {
			f = in.Fault
		}
	}
	change(&f)
	w.sim.SetFault(scope, f)
	w.count(s.Fault)
}

func onDevice(do func(*wasim.Server, string, uint16) bool) func(*world, step) {
	return func(w *world, s step) {
		n := w.numberOf(s.Actor)
		for _, dev := range w.sim.Phone(n.pn).Devices() {
			if do(w.sim, n.pn, dev) {
				w.count(s.Fault)
			}
		}
	}
}

func counting(change func(f *wasim.Fault, n int)) func(*world, step) {
	return func(w *world, s step) { w.fault(s, func(f *wasim.Fault) { change(f, s.number(0)) }) }
}

func passing(change func(f *wasim.Fault, on bool)) func(*world, step) {
	return func(w *world, s step) {
		w.fault(s, func(f *wasim.Fault) { change(f, true) })
		w.later(s.duration(0), func() { w.fault(s, func(f *wasim.Fault) { change(f, false) }) })
	}
}

func onProcess(do func(*world, *instance, step)) func(*world, step) {
	return func(w *world, s step) {
		if in := w.slot(s.Actor).get(); in != nil {
			do(w, in, s)
			w.count(s.Fault)
		}
	}
}

func onLinks(do func(*world, *memnet.Link, time.Duration)) func(*world, step) {
	return onProcess(func(w *world, in *instance, s step) {
		d := time.Duration(0)
		if s.Arg != "" {
			d = s.duration(0)
		}
		for _, n := range in.networks() {
			n.Each(in.dials(), func(l *memnet.Link) { do(w, l, d) })
		}
	})
}

// freeze lets the process stand still for a while.
func (in *instance) freeze(d time.Duration) {
	in.gate.freeze()
	in.hold(true)
	in.s.w.later(d, func() { in.gate.thaw(); in.hold(false) })
}

// trap sets a trap: "before|after kind n", and for how long the process is away then.
func (in *instance) trap(s step, t trap) {
	t.after, t.kind, t.left = s.word(0) == "after", s.word(1), s.number(2)
	in.gate.set(func() { in.gate.traps = append(in.gate.traps, &t) })
}

// storm lets the plan happen while clients send and people write.
func (w *world) storm() {
	begin := time.Now()
	w.stormEnds = begin.Add(stormLength)
	w.traffic()
	for _, s := range w.plan.Steps {
		pause(time.Until(begin.Add(s.At)))
		settle()
		faults[s.Fault](w, s)
	}
	pause(time.Until(w.stormEnds))
	for _, s := range w.slots {
		if in := s.get(); in != nil {
			in.gate.set(func() { in.gate.traps = nil })
			in.lose.reset()
		}
	}
	settle()
	w.undo.Wait()
	for _, f := range w.sim.Faults() {
		w.sim.SetFault(f.Scope, wasim.Fault{})
	}
	w.receiver.lose.reset()
	for _, n := range w.sessions { // what only a person may end, a person ends
		if w.row(n.id).NeedsPerson() {
			w.command(n.id, fleet.CommandConnect, `{}`)
		}
	}
}
