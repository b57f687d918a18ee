package wastore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mau.fi/whatsmeow/proto/waAdv"
	wmstore "go.mau.fi/whatsmeow/store"
	"go.mau.fi/whatsmeow/types"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
	"github.com/wafleet/wafleet/internal/wastore"
)

var (
	ownJID   = types.JID{User: "5511900000001", Device: 7, Server: types.DefaultUserServer}
	ownLID   = types.JID{User: "100000000000001", Device: 7, Server: types.HiddenUserServer}
	otherPN  = types.JID{User: "5511900000002", Server: types.DefaultUserServer}
	otherLID = types.JID{User: "100000000000002", Server: types.HiddenUserServer}
)

// world is one session, owned under epoch 1, with its device paired.
type world struct {
	*store.Store
	c       *wastore.Container
	session fleet.SessionID
	term    fleet.Term
}

func newWorld(t testing.TB, s *store.Store) *world {
	t.Helper()
	ctx := t.Context()
	if _, err := s.CreateOrganization(ctx, fleet.Organization{ID: "org-a", Strategy: fleet.StrategyWeighted}); err != nil {
		t.Fatal(err)
	}
	v, err := s.CreateSession(ctx, store.NewSession{Org: "org-a"})
	if err != nil {
		t.Fatal(err)
	}
	terms, _, err := s.ClaimLeases(ctx, store.ClaimQuery{Owner: "w1/a", Limit: 1, TTL: time.Hour})
	if err != nil || len(terms) != 1 {
		t.Fatalf("ClaimLeases = %v, %v", terms, err)
	}
	w := &world{Store: s, c: wastore.New(wastore.Options{Store: s}), session: v.ID, term: terms[0]}
	d := w.fence(t).NewDevice()
	identify(d, ownJID)
	if err := d.Save(ctx); err != nil {
		t.Fatal(err)
	}
	w.exec(t, `UPDATE sessions SET device_jid=$1 WHERE id=$2`, ownJID.String(), string(v.ID))
	return w
}

// identify gives a device what a pairing does.
func identify(d *wmstore.Device, jid types.JID) {
	d.ID = &jid
	d.LID = ownLID
	d.Account = &waAdv.ADVSignedDeviceIdentity{
		Details: []byte("details"), AccountSignature: make([]byte, 64), AccountSignatureKey: make([]byte, 32), DeviceSignature: make([]byte, 64),
	}
}

// own is a fence with a term's and a generation's context, as a worker has them.
type own struct {
	*wastore.Fence
	term, generation context.Context //nolint:containedctx // what the test looks at

	mu     sync.Mutex
	lost   []error
	broken bool // what Valid says
}

func (w *world) fence(t testing.TB) *own {
	t.Helper()
	o := &own{}
	term, cancel := context.WithCancelCause(t.Context())
	t.Cleanup(func() { cancel(nil) })
	o.term = term
	o.Fence = w.c.Fence(wastore.FenceOptions{
		Term: w.term,
		Valid: func() error {
			o.mu.Lock()
			defer o.mu.Unlock()
			if o.broken {
				return fleet.ErrLeaseLost
			}
			return nil
		},
		Lost: func(err error) {
			o.mu.Lock()
			o.lost = append(o.lost, err)
			o.mu.Unlock()
			cancel(err)
		},
	})
	generation, stop := context.WithCancelCause(context.WithoutCancel(term)) // so that each shows who cancelled it
	t.Cleanup(func() { stop(nil) })
	o.generation = o.Bind(generation, stop)
	return o
}

func (o *own) losses() []error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.lost)
}

func (o *own) device(t testing.TB) *wmstore.Device {
	t.Helper()
	d, err := o.Device(t.Context(), ownJID.String())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func all(d *wmstore.Device) wmstore.AllSessionSpecificStores {
	return d.Sessions.(wmstore.AllSessionSpecificStores)
}

func (w *world) exec(t testing.TB, q string, args ...any) {
	t.Helper()
	if _, err := w.DB().Exec(t.Context(), q, args...); err != nil {
		t.Fatalf("%s: %v", q, err)
	}
}

// takeOver gives the session to another owner behind the fence's back; giveBack undoes it.
func (w *world) takeOver(t testing.TB) {
	t.Helper()
	w.exec(t, `UPDATE leases SET owner='w2/b', epoch=2 WHERE session_id=$1`, string(w.session))
}

func (w *world) giveBack(t testing.TB) {
	t.Helper()
	w.exec(t, `UPDATE leases SET owner='w1/a', epoch=1 WHERE session_id=$1`, string(w.session))
}

var tables = []string{
	"whatsmeow_device", "whatsmeow_identity_keys", "whatsmeow_pre_keys", "whatsmeow_sessions", "whatsmeow_sender_keys",
	"whatsmeow_app_state_sync_keys", "whatsmeow_app_state_version", "whatsmeow_app_state_mutation_macs", "whatsmeow_contacts",
	"whatsmeow_chat_settings", "whatsmeow_message_secrets", "whatsmeow_privacy_tokens", "whatsmeow_nct_salt",
	"whatsmeow_lid_map", "whatsmeow_event_buffer", "whatsmeow_retry_buffer", "sessions",
}

// dump is every row that whatsmeow's store may write.
func (w *world) dump(t testing.TB) (out []string) {
	t.Helper()
	for _, table := range tables {
		rows, err := w.DB().Query(t.Context(), `SELECT * FROM `+table)
		if err != nil {
			t.Fatal(err)
		}
		columns, err := rows.Columns()
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			values := make([]any, len(columns))
			for i := range values {
				values[i] = new(any)
			}
			if err := rows.Scan(values...); err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			b.WriteString(table)
			for i := range values {
				fmt.Fprintf(&b, " %s=%v", columns[i], *values[i].(*any))
			}
			out = append(out, b.String())
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(out)
	return out
}

func TestStaleTermWritesNothingAndItsContextEndsFirst(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		for _, m := range methods {
			if !m.write || m.global {
				continue
			}
			t.Run(m.name, func(t *testing.T) {
				if m.before != nil {
					o := w.fence(t)
					if err := m.before(o.generation, o.device(t)); err != nil {
						t.Fatal(err)
					}
				}
				before := w.dump(t)
				o := w.fence(t)
				d := o.device(t)
				w.takeOver(t)
				err := m.call(o.generation, d)
				w.giveBack(t)
				if !errors.Is(err, fleet.ErrLeaseLost) || !errors.Is(err, context.Canceled) {
					t.Errorf("%s of a stale term = %v, want ErrLeaseLost, which is a cancellation too", m.name, err)
				}
				if !errors.Is(context.Cause(o.term), fleet.ErrLeaseLost) || !errors.Is(context.Cause(o.generation), fleet.ErrLeaseLost) {
					t.Errorf("causes after %s: term %v, generation %v; want ErrLeaseLost for both", m.name, context.Cause(o.term), context.Cause(o.generation))
				}
				if len(o.losses()) != 1 {
					t.Errorf("Lost was called %d times, want once", len(o.losses()))
				}
				if diff := cmp.Diff(before, w.dump(t)); diff != "" {
					t.Errorf("rows after a stale %s (-before +after):\n%s", m.name, diff)
				}
				// Nothing revives it, and the database is not asked again.
				if err := m.call(o.generation, d); !errors.Is(err, fleet.ErrLeaseLost) {
					t.Errorf("%s again, with the row given back = %v, want ErrLeaseLost for good", m.name, err)
				}
				if diff := cmp.Diff(before, w.dump(t)); diff != "" {
					t.Errorf("rows after %s on a lost fence (-before +after):\n%s", m.name, diff)
				}
				o = w.fence(t)
				if err := m.call(o.generation, o.device(t)); err != nil {
					t.Fatalf("%s of a valid term = %v", m.name, err)
				}
				if o.generation.Err() != nil || len(o.losses()) != 0 {
					t.Errorf("%s of a valid term cancelled: generation %v, losses %v", m.name, context.Cause(o.generation), o.losses())
				}
				if !m.noop && cmp.Equal(before, w.dump(t)) {
					t.Errorf("%s of a valid term changed nothing: the test proves nothing", m.name)
				}
			})
		}
	})
}

func TestTermThatIsOverOnTheLocalClockDoesNotEvenRead(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t))
	for _, m := range methods {
		o := w.fence(t)
		d := o.device(t)
		before := w.dump(t)
		o.mu.Lock()
		o.broken = true
		o.mu.Unlock()
		if err := m.call(o.generation, d); !errors.Is(err, fleet.ErrLeaseLost) {
			t.Errorf("%s with Valid = false: %v, want ErrLeaseLost", m.name, err)
		}
		if o.term.Err() == nil || len(o.losses()) != 1 {
			t.Errorf("%s with Valid = false: term %v, %d losses; want it ended once", m.name, o.term.Err(), len(o.losses()))
		}
		if diff := cmp.Diff(before, w.dump(t)); diff != "" {
			t.Errorf("rows after %s with Valid = false (-before +after):\n%s", m.name, diff)
		}
	}
}

func TestAnyStoreErrorCancelsWhatItHappenedUnder(t *testing.T) {
	for _, m := range methods {
		if m.offline {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			s := storetest.SQLite(t)
			w := newWorld(t, s)
			o, inSend, nowhere := w.fence(t), w.fence(t), w.fence(t)
			d, dSend, dNowhere := o.device(t), inSend.device(t), nowhere.device(t)
			if err := s.Close(); err != nil { // every statement fails from here on
				t.Fatal(err)
			}
			if err := m.call(o.generation, d); err == nil || o.generation.Err() == nil {
				t.Errorf("in a generation: %s = %v, generation %v; want an error and a cancelled generation", m.name, err, o.generation.Err())
			}
			if o.term.Err() != nil {
				t.Errorf("an error of the database ended the term: %v", context.Cause(o.term))
			}
			sctx, watch := inSend.BeginSend(inSend.generation, otherPN.String(), nil)
			defer watch.End()
			if err := m.call(sctx, dSend); err == nil || sctx.Err() == nil || watch.Err() == nil || watch.Saved() {
				t.Errorf("in a send: %s = %v, send %v, watch.Err %v, saved %v; want an error, a cancelled send, not saved", m.name, err, sctx.Err(), watch.Err(), watch.Saved())
			}
			if inSend.generation.Err() != nil {
				t.Errorf("an error inside a send ended the generation: %v", context.Cause(inSend.generation))
			}
			if err := m.call(t.Context(), dNowhere); err == nil || nowhere.term.Err() != nil {
				t.Errorf("outside both: %s = %v, term %v; want an error that cancels nothing", m.name, err, nowhere.term.Err())
			}
		})
	}
}

func TestPlainMissCancelsNothing(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		o := w.fence(t)
		d := o.device(t)
		for _, m := range methods {
			if m.write {
				continue
			}
			if err := m.call(o.generation, d); err != nil && !m.missIsError {
				t.Errorf("%s with nothing stored = %v, want no error", m.name, err)
			}
			if o.generation.Err() != nil {
				t.Fatalf("%s with nothing stored cancelled the generation: %v", m.name, context.Cause(o.generation))
			}
		}
	})
}

func TestCancelledGenerationDoesNotCostTheTerm(t *testing.T) {
	for _, m := range methods {
		if m.offline {
			continue
		}
		w := newWorld(t, storetest.SQLite(t))
		o := w.fence(t)
		d := o.device(t)
		ctx, cancel := context.WithCancel(o.generation)
		cancel()
		if err := m.call(ctx, d); errors.Is(err, fleet.ErrLeaseLost) || len(o.losses()) != 0 || o.term.Err() != nil {
			t.Errorf("%s under a cancelled context = %v, losses %v, term %v; want the term to live on", m.name, err, o.losses(), o.term.Err())
		}
	}
}

func TestStoreRefusesToWorkInsideSomebodyElsesTransaction(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t))
	o := w.fence(t)
	d := o.device(t)
	err := w.InTx(o.generation, func(ctx context.Context) error {
		return d.Sessions.PutSession(ctx, "x:0", []byte("s"))
	})
	if err == nil || o.generation.Err() == nil {
		t.Errorf("PutSession inside a transaction of the store = %v, want a refusal that ends the generation", err)
	}
}

func TestClaimWaitsForAnOpenWriteAndTheNextWriteIsRefused(t *testing.T) {
	w := newWorld(t, storetest.Postgres(t))
	o := w.fence(t)
	s := all(o.device(t))
	inside, leave := make(chan struct{}), make(chan struct{})
	written := make(chan error, 1)
	go func() {
		written <- s.DoDecryptionTxn(o.generation, func(ctx context.Context) error {
			if err := s.PutSession(ctx, "5511900000002:0", []byte("old owner")); err != nil {
				return err
			}
			close(inside)
			<-leave
			return nil
		})
	}()
	<-inside
	claimed := make(chan error, 1)
	go func() { // the claim's update, without its SKIP LOCKED
		_, err := w.DB().Exec(t.Context(), `UPDATE leases SET owner='w2/b', epoch=epoch+1 WHERE session_id=$1`, string(w.session))
		claimed <- err
	}()
	testkit.Eventually(t, 10*time.Second, func() error {
		var waiting int
		err := w.DB().QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname=current_database() AND wait_event_type='Lock'`).Scan(&waiting)
		if err == nil && waiting == 0 {
			err = errors.New("the claim does not wait for the open write")
		}
		return err
	})
	select {
	case err := <-claimed:
		t.Fatalf("the claim was answered (%v) while the write was open", err)
	default:
	}
	close(leave)
	if err := errors.Join(<-written, <-claimed); err != nil {
		t.Fatal(err)
	}
	if err := s.PutSession(o.generation, "5511900000002:0", []byte("stale")); !errors.Is(err, fleet.ErrLeaseLost) {
		t.Errorf("PutSession after the claim = %v, want ErrLeaseLost", err)
	}
	var got []byte
	if err := w.DB().QueryRow(t.Context(), `SELECT session FROM whatsmeow_sessions WHERE their_id='5511900000002:0'`).Scan(&got); err != nil || string(got) != "old owner" {
		t.Errorf("session = %q, %v, want what was written before the claim", got, err)
	}
}

func TestFrozenOwnersDecryptionIsEndedByTheServerAndItsGenerationWithIt(t *testing.T) {
	const ttl = 3 * time.Second // timeouts of 2 s, their least
	s := storetest.Postgres(t)
	if err := s.EnsureTimeouts(t.Context(), ttl); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, s)
	o := w.fence(t)
	d := all(o.device(t))
	inside, thaw := make(chan struct{}), make(chan struct{})
	late := make(chan error, 1)
	go func() {
		late <- d.DoDecryptionTxn(o.generation, func(ctx context.Context) error {
			if err := d.PutSession(ctx, "5511900000002:0", []byte("frozen")); err != nil {
				return err
			}
			close(inside)
			<-thaw
			return d.PutBufferedEvent(ctx, [32]byte{1}, []byte("hello"), time.Now())
		})
	}()
	<-inside
	sawLocked := false
	testkit.Eventually(t, 20*time.Second, func() error {
		terms, locked, err := s.ClaimLeases(t.Context(), store.ClaimQuery{Owner: "w2/b", Limit: 1, TTL: ttl, All: true})
		sawLocked = sawLocked || locked > 0
		if err == nil && len(terms) == 0 {
			err = errors.New("nothing claimed")
		}
		return err
	})
	if !sawLocked {
		t.Error("the claim never reported the row as locked")
	}
	close(thaw)
	if err := <-late; err == nil || o.generation.Err() == nil {
		t.Errorf("the frozen decryption = %v, generation %v; want an error and a cancelled generation", err, o.generation.Err())
	}
	var n int
	if err := s.DB().QueryRow(t.Context(), `SELECT count(*) FROM whatsmeow_sessions`).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d sessions stored, %v, want none: the transaction was rolled back", n, err)
	}
}
