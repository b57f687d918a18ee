package wa_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/wa"
	"github.com/wafleet/wafleet/internal/wasim"
)

// Rule 5, and the typed ends of a login.
func TestLoginFailuresAreTypedEnds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		fault   wasim.Fault
		reason  wa.Reason
		code    int
		deleted bool
	}{
		{wasim.Fault{ConnectFailure: 401}, wa.ReasonLoggedOut, 401, true},
		{wasim.Fault{ConnectFailure: 403}, wa.ReasonLocked, 403, true},
		{wasim.Fault{ConnectFailure: 406}, wa.ReasonBanned, 406, true},
		{wasim.Fault{ConnectFailure: 402, BanCode: 101, BanExpire: time.Hour}, wa.ReasonTempBanned, 402, false},
		{wasim.Fault{ConnectFailure: 405}, wa.ReasonClientOutdated, 405, false},
		{wasim.Fault{ConnectFailure: 409}, wa.ReasonConnectFailure, 409, false},
		{wasim.Fault{ConnectFailure: 413}, wa.ReasonConnectFailure, 0, false}, // would crash an unguarded whatsmeow
		{wasim.Fault{ConnectFailure: 500}, wa.ReasonServerError, 500, false},
		{wasim.Fault{ConnectFailure: 503}, wa.ReasonServerError, 503, false},
		{wasim.Fault{RefuseDials: true}, wa.ReasonDialFailed, -1, false},
	} {
		t.Run(fmt.Sprintf("%d refuse=%v", tt.fault.ConnectFailure, tt.fault.RefuseDials), func(t *testing.T) {
			t.Parallel()
			pn := fresh()
			n := shared.paired(t, pn)
			n.online().stop()
			shared.fault(t, wasim.Scope{Session: pn}, tt.fault)
			g := n.start()
			e := g.end()
			if e.Reason != tt.reason || (tt.code >= 0 && e.Code != tt.code) || e.Expire != tt.fault.BanExpire {
				t.Errorf("Run = %+v, want %s (%d)", e, tt.reason, tt.code)
			}
			d, err := n.keys.GetDevice(t.Context(), n.jid)
			if err != nil || (d == nil) != tt.deleted {
				t.Errorf("device deleted = %v (%v), want %v", d == nil, err, tt.deleted)
			}
			select {
			case <-g.ready:
				t.Error("Ready was told for a login that failed")
			default:
			}
		})
	}
}

func TestEndsOfALiveConnectionAreTyped(t *testing.T) {
	for _, tt := range []struct {
		name   string
		do     func(pn string)
		reason wa.Reason
		code   int
	}{
		{"unlinked on the phone", func(pn string) { _ = shared.sim.Phone(pn).Unlink(1) }, wa.ReasonUnlinked, 401},
		{"replaced by another login", func(pn string) { shared.sim.Replace(pn, 1) }, wa.ReasonReplaced, 0},
		{"dropped", func(pn string) { shared.sim.Drop(pn, 1) }, wa.ReasonDisconnected, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pn := fresh()
			n := shared.paired(t, pn)
			g := n.online()
			tt.do(pn)
			if e := g.end(); e.Reason != tt.reason || e.Code != tt.code {
				t.Errorf("Run = %v, want %s (%d)", e, tt.reason, tt.code)
			}
			if g.sock.Ready() {
				t.Error("Ready() = true after the end")
			}
			if es := shared.sim.Log(wasim.Query{Session: pn, Kind: wasim.KindLogin}); len(es) != 1 {
				t.Errorf("logins = %d, want 1: a generation never dials again", len(es))
			}
		})
	}
}

// A login writes nothing to the database, so the socket itself must refuse: the last gate.
func TestNothingIsDialledOrWrittenOnceTheTermHasEnded(t *testing.T) {
	pn, contact := fresh(), fresh()
	shared.sim.Phone(contact)
	n := shared.paired(t, pn)
	var over atomic.Bool
	valid := func(o *wa.Options) {
		o.Valid = func() error {
			if over.Load() {
				return fleet.ErrLeaseLost
			}
			return nil
		}
	}
	g := n.online(valid)
	take(t, g.offline)
	before := shared.sim.Log(wasim.Query{Session: pn, Dir: wasim.DirIn})
	over.Store(true)
	mustFail(t, g.send(contact, "3EB3A1", "hello"), fleet.OutcomeNothing, wa.SendLeaseLost, 0)
	e := g.end()
	if e.Reason != wa.ReasonTermEnded || !errors.Is(e.Err, fleet.ErrLeaseLost) {
		t.Errorf("Run = %v, want %s", e, wa.ReasonTermEnded)
	}
	if after := shared.sim.Log(wasim.Query{Session: pn, Dir: wasim.DirIn}); len(after) != len(before) {
		t.Errorf("the simulator got %d stanzas after the term ended: %v", len(after)-len(before), kinds(after[len(before):]))
	}
	if e := n.start(valid).end(); e.Reason != wa.ReasonTermEnded {
		t.Errorf("Run under an ended term = %v, want %s", e, wa.ReasonTermEnded)
	}
	if es := shared.sim.Log(wasim.Query{Session: pn, Kind: wasim.KindLogin}); len(es) != 1 {
		t.Errorf("logins = %d, want 1", len(es))
	}
}

func TestALeaseLostDuringASendSaysWhatIsKnown(t *testing.T) {
	for _, tt := range []struct {
		name    string
		fault   wasim.Fault
		frames  int
		outcome fleet.Outcome
	}{
		{"before the frame", wasim.Fault{KeyFetch: -1}, 0, fleet.OutcomeNothing},
		{"after the frame", wasim.Fault{DropAcks: true}, 1, fleet.OutcomeUnknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pn, contact := fresh(), fresh()
			shared.sim.Phone(contact)
			n := shared.paired(t, pn)
			g := n.online()
			shared.fault(t, wasim.Scope{Session: pn, Recipient: contact}, tt.fault)
			encrypting := make(chan struct{}, 10)
			n.store.failWith(func(_ context.Context, op string) error {
				if op == "GetManySessions" {
					encrypting <- struct{}{}
				}
				return nil
			})
			var wg sync.WaitGroup
			var err error
			wg.Go(func() { err = g.send(contact, "3EB3B1", "hello") })
			take(t, encrypting)
			if tt.frames > 0 {
				shared.log(t, 1, wasim.Query{Session: pn, Kind: wasim.KindMessage, Dir: wasim.DirIn, ID: "3EB3B1"})
			}
			g.cancel(fleet.ErrLeaseLost)
			if e := g.end(); e.Reason != wa.ReasonTermEnded {
				t.Errorf("Run = %v, want %s", e, wa.ReasonTermEnded)
			}
			wg.Wait()
			mustFail(t, err, tt.outcome, wa.SendLeaseLost, 0)
			if !errors.Is(err, fleet.ErrLeaseLost) {
				t.Errorf("errors.Is(%v, ErrLeaseLost) = false", err)
			}
			if es := n.framesOf("3EB3B1"); len(es) != tt.frames {
				t.Errorf("frames = %d, want %d", len(es), tt.frames)
			}
		})
	}
}

func TestSendsOfOneSocketGoOneAfterAnother(t *testing.T) {
	pn, contact := fresh(), fresh()
	shared.sim.Phone(contact)
	n := shared.paired(t, pn)
	g := n.online()
	ids := []string{"3EB4A0", "3EB4A1", "3EB4A2", "3EB4A3", "3EB4A4", "3EB4A5"}
	for _, id := range ids {
		n.payloads[id] = nil
	}
	var wg sync.WaitGroup
	errs := make([]error, len(ids))
	for i, id := range ids {
		raw, _ := wa.BuildText(id)
		wg.Go(func() {
			_, errs[i] = g.sock.Send(t.Context(), wa.Outgoing{JID: contact + "@s.whatsapp.net", WAID: id, Payload: raw})
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("Send(%s) = %v", ids[i], err)
		}
	}
	if got := len(shared.log(t, len(ids), wasim.Query{Session: pn, Kind: wasim.KindMessage, Dir: wasim.DirIn, Recipient: contact})); got != len(ids) {
		t.Errorf("frames = %d, want %d", got, len(ids))
	}
}

func TestSocketsOfDifferentNetworksDoNotMix(t *testing.T) {
	n := shared.paired(t, fresh())
	n.online()
	if _, err := wa.SimulatedNetwork([32]byte{1}, shared.dial); !errors.Is(err, wa.ErrMixedNetworks) {
		t.Errorf("SimulatedNetwork of another root while a socket runs = %v, want ErrMixedNetworks", err)
	}
	real := n.start(func(o *wa.Options) { o.Network = wa.RealNetwork() })
	if e := real.end(); e.Reason != wa.ReasonDialFailed || !errors.Is(e.Err, wa.ErrMixedNetworks) {
		t.Errorf("Run on the real network in a simulated process = %v, want %s with ErrMixedNetworks", e, wa.ReasonDialFailed)
	}
	if _, err := wa.SimulatedNetwork(shared.sim.RootKey(), nil); err == nil {
		t.Error("SimulatedNetwork without dial function = nil error")
	}
}
