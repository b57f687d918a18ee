package wa_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/wa"
	"github.com/wafleet/wafleet/internal/wasim"
	"github.com/wafleet/wafleet/internal/wastore"
)

// fenced is a number whose keys are in the real store, behind the fence of a term.
type fenced struct {
	*number
	st    *store.Store
	fence *wastore.Fence
	term  fleet.Term
	jid   string
	now   *generation
}

func newFenced(t *testing.T, pn string) *fenced {
	t.Helper()
	ctx := t.Context()
	st := storetest.SQLite(t)
	if _, err := st.CreateOrganization(ctx, fleet.Organization{ID: "org-a", Strategy: fleet.StrategyWeighted}); err != nil {
		t.Fatal(err)
	}
	if _, err := st.CreateSession(ctx, store.NewSession{Org: "org-a"}); err != nil {
		t.Fatal(err)
	}
	terms, _, err := st.ClaimLeases(ctx, store.ClaimQuery{Owner: "worker-1.boot", Limit: 1, TTL: time.Hour})
	if err != nil || len(terms) != 1 {
		t.Fatalf("ClaimLeases = %v, %v", terms, err)
	}
	f := &fenced{number: shared.number(t, pn), st: st, term: terms[0]}
	f.fence = wastore.New(wastore.Options{Store: st}).Fence(wastore.FenceOptions{
		Term: f.term, Valid: func() error { return nil }, Lost: func(err error) { f.now.cancel(err) },
	})
	return f
}

func (f *fenced) exec(q string, args ...any) {
	f.t.Helper()
	if _, err := f.st.DB().Exec(f.t.Context(), q, args...); err != nil {
		f.t.Fatalf("%s: %v", q, err)
	}
}

func (f *fenced) start(change ...func(*wa.Options)) *generation {
	f.t.Helper()
	g := f.number.start(append(change, func(o *wa.Options) {
		o.Term, o.Bind = f.term, f.fence.Bind
		o.BeginSend = func(ctx context.Context, jid string, claim wastore.Claim) (context.Context, wa.SendWatch) {
			return f.fence.BeginSend(ctx, jid, claim)
		}
		o.Device = f.fence.NewDevice()
		if f.jid != "" {
			var err error
			if o.Device, err = f.fence.Device(f.t.Context(), f.jid); err != nil {
				f.t.Fatal(err)
			}
		}
	})...)
	f.now = g
	return g
}

func (f *fenced) pair() {
	f.t.Helper()
	g := f.start(func(o *wa.Options) {
		o.Pair = &wa.PairRequest{Method: fleet.PairQR, Until: time.Now().Add(time.Minute)}
	})
	if err := shared.sim.Phone(f.pn).ScanQR(f.t.Context(), take(f.t, g.qr)); err != nil {
		f.t.Fatalf("ScanQR = %v", err)
	}
	f.jid = take(f.t, g.paired).DeviceJID
	if e := g.end(); e.Reason != wa.ReasonPaired {
		f.t.Fatalf("pairing ended with %v", e)
	}
	f.exec(`UPDATE sessions SET device_jid=$1 WHERE id=$2`, f.jid, string(f.term.SessionID))
}

func TestASocketOnTheFencedStore(t *testing.T) {
	pn, contact, stranger := fresh(), fresh(), fresh()
	phone := shared.sim.Phone(contact)
	shared.sim.Phone(stranger)
	f := newFenced(t, pn)
	f.pair()
	g := f.start()
	take(t, g.ready)
	f.synced()
	if err := g.send(contact, "3EB6A1", "hello"); err != nil {
		t.Fatalf("Send = %v", err)
	}
	if _, err := phone.SendText(t.Context(), pn, "hello back"); err != nil {
		t.Fatal(err)
	}
	if m := take(t, g.messages); m.Text != "hello back" || m.SenderPhone != contact {
		t.Errorf("Message = %+v, want hello back from %s", m, contact)
	}

	scope := wasim.Scope{Session: pn, Recipient: stranger}
	shared.fault(t, scope, wasim.Fault{KeyFetch: 429})
	err := g.send(stranger, "3EB6B1", "hello")
	mustFail(t, err, fleet.OutcomeNothing, wa.SendStoreFailed, 0)
	if !errors.Is(err, wastore.ErrRecipientSkipped) {
		t.Errorf("Send without keys = %v, want ErrRecipientSkipped in it", err)
	}
	f.noFrame("3EB6B1")
	shared.sim.SetFault(scope, wasim.Fault{})
	if err := g.send(stranger, "3EB6B1", "hello"); err != nil {
		t.Errorf("Send with keys = %v", err)
	}

	// Another owner takes the session; this one notices with its next write.
	f.settled()
	f.exec(`UPDATE leases SET owner='worker-2.boot', epoch=epoch+1 WHERE session_id=$1`, string(f.term.SessionID))
	err = g.send(contact, "3EB6C1", "stale")
	mustFail(t, err, fleet.OutcomeNothing, wa.SendLeaseLost, 0)
	if e := g.end(); e.Reason != wa.ReasonTermEnded {
		t.Errorf("Run = %v, want %s", e, wa.ReasonTermEnded)
	}
	f.noFrame("3EB6C1")
}

func TestALogoutByWhatsAppMarksTheFencedDevice(t *testing.T) {
	pn := fresh()
	f := newFenced(t, pn)
	f.pair()
	g := f.start()
	take(t, g.ready)
	if err := shared.sim.Phone(pn).Unlink(1); err != nil {
		t.Fatal(err)
	}
	if e := g.end(); e.Reason != wa.ReasonUnlinked {
		t.Fatalf("Run = %v, want %s", e, wa.ReasonUnlinked)
	}
	var revoked int64
	if err := f.st.DB().QueryRow(t.Context(), `SELECT coalesce(revoked_at, 0) FROM sessions WHERE id=$1`, string(f.term.SessionID)).Scan(&revoked); err != nil {
		t.Fatal(err)
	}
	if revoked == 0 {
		t.Error("the session is not marked as revoked")
	}
}
