package wastore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	wmstore "go.mau.fi/whatsmeow/store"
	"go.mau.fi/whatsmeow/types"

	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/wastore"
)

var errStanza = errors.New("old counter")

func TestRolledBackDecryptionLeavesNothingInTheCaches(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		o := w.fence(t)
		d := all(o.device(t))
		ctx := o.generation
		oldKey, newKey := [32]byte{1}, [32]byte{2}
		if err := errors.Join(d.PutIdentity(ctx, "a:0", oldKey), d.PutPrivacyTokens(ctx, token(otherLID)), d.PutNCTSalt(ctx, []byte("old"))); err != nil {
			t.Fatal(err)
		}
		if _, _, err := d.PutPushName(ctx, otherPN, "Old"); err != nil {
			t.Fatal(err)
		}
		before := w.dump(t)
		fresh := token(otherLID)
		fresh.Token, fresh.Timestamp = []byte("new"), fresh.Timestamp.Add(time.Hour)
		err := d.DoDecryptionTxn(ctx, func(ctx context.Context) error {
			if err := errors.Join(d.PutIdentity(ctx, "a:0", newKey), d.PutIdentity(ctx, "b:0", newKey),
				d.PutPrivacyTokens(ctx, fresh), d.PutNCTSalt(ctx, []byte("new")), d.PutSession(ctx, "a:0", []byte("new"))); err != nil {
				return err
			}
			if _, _, err := d.PutPushName(ctx, otherPN, "New"); err != nil {
				return err
			}
			// Inside, its own changes are seen.
			trusted, err := d.IsTrustedIdentity(ctx, "a:0", newKey)
			if err != nil || !trusted {
				t.Errorf("IsTrustedIdentity(the new key) inside the transaction = %v, %v, want true", trusted, err)
			}
			if c, err := d.GetContact(ctx, otherPN); err != nil || c.PushName != "New" {
				t.Errorf("GetContact inside the transaction = %+v, %v, want the new name", c, err)
			}
			if p, err := d.GetPrivacyToken(ctx, otherLID); err != nil || string(p.Token) != "new" {
				t.Errorf("GetPrivacyToken inside the transaction = %+v, %v, want the new token", p, err)
			}
			return errStanza
		})
		if !errors.Is(err, errStanza) || o.generation.Err() != nil {
			t.Fatalf("DoDecryptionTxn = %v, generation %v; want the stanza's error, which ends nothing", err, o.generation.Err())
		}
		if diff := cmp.Diff(before, w.dump(t)); diff != "" {
			t.Errorf("rows after the rollback (-before +after):\n%s", diff)
		}
		for key, want := range map[[32]byte]bool{oldKey: true, newKey: false} {
			if got, err := d.IsTrustedIdentity(ctx, "a:0", key); err != nil || got != want {
				t.Errorf("IsTrustedIdentity(a, %v) after the rollback = %v, %v, want %v", key[0], got, err, want)
			}
		}
		if c, err := d.GetContact(ctx, otherPN); err != nil || c.PushName != "Old" {
			t.Errorf("push name after the rollback = %q, %v, want the old one", c.PushName, err)
		}
		if p, err := d.GetPrivacyToken(ctx, otherLID); err != nil || string(p.Token) != "token" {
			t.Errorf("token after the rollback = %+v, %v, want the old one", p, err)
		}
		if salt, err := d.GetNCTSalt(ctx); err != nil || string(salt) != "old" {
			t.Errorf("salt after the rollback = %q, %v, want the old one", salt, err)
		}
		// A write that was believed done would be skipped now.
		if err := d.PutIdentity(ctx, "b:0", newKey); err != nil {
			t.Fatal(err)
		}
		var n int
		if err := w.DB().QueryRow(t.Context(), `SELECT count(*) FROM whatsmeow_identity_keys WHERE their_id='b:0'`).Scan(&n); err != nil || n != 1 {
			t.Errorf("identity of b stored %d times, %v, want once: the rolled-back write must not be remembered", n, err)
		}
	})
}

func TestCommittedDecryptionIsInTheCaches(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t))
	o := w.fence(t)
	d := all(o.device(t))
	key := [32]byte{3}
	err := d.DoDecryptionTxn(o.generation, func(ctx context.Context) error { return d.PutIdentity(ctx, "a:0", key) })
	if err != nil {
		t.Fatal(err)
	}
	w.exec(t, `DELETE FROM whatsmeow_identity_keys`) // behind its back: what is answered now comes from memory
	if got, err := d.IsTrustedIdentity(o.generation, "a:0", [32]byte{4}); err != nil || got {
		t.Errorf("IsTrustedIdentity(another key) = %v, %v, want false from memory", got, err)
	}
	if err := d.PutIdentity(o.generation, "a:0", key); err != nil {
		t.Fatal(err)
	}
	if got := len(w.dump(t)); got != 2 {
		t.Errorf("%d rows, want the device and the session only: the identity is stored already and not written again", got)
	}
}

func TestStatementThatFailedIsNeverCommittedWhoeverSwallowedItsError(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		w.exec(t, `ALTER TABLE whatsmeow_pre_keys RENAME TO away`)
		o := w.fence(t)
		d := all(o.device(t))
		swallow := func(ctx context.Context) error {
			return d.DoDecryptionTxn(ctx, func(ctx context.Context) error {
				if err := d.PutSession(ctx, "a:0", []byte("x")); err != nil {
					return err
				}
				_ = d.RemovePreKey(ctx, 1)
				return nil
			})
		}
		if err := swallow(o.generation); err == nil || o.generation.Err() == nil {
			t.Errorf("in a generation: %v, generation %v; want an error and a cancelled generation", err, o.generation.Err())
		}
		if err := swallow(t.Context()); err == nil { // no cancelled context that would undo it anyway
			t.Error("outside a generation: no error, want one")
		}
		var n int
		if err := w.DB().QueryRow(t.Context(), `SELECT count(*) FROM whatsmeow_sessions`).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d sessions stored, %v, want none", n, err)
		}
	})
}

func TestPanicInsideADecryptionLeavesNoTransactionOpen(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		o := w.fence(t)
		d := all(o.device(t))
		err := d.DoDecryptionTxn(o.generation, func(ctx context.Context) error {
			if err := d.PutSession(ctx, "a:0", []byte("x")); err != nil {
				return err
			}
			panic("malformed stanza")
		})
		if err == nil || o.generation.Err() != nil {
			t.Errorf("DoDecryptionTxn that panics = %v, generation %v; want an error that ends nothing: the stanza is undecryptable", err, o.generation.Err())
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := d.PutSession(ctx, "a:0", []byte("y")); err != nil {
			t.Errorf("PutSession after the panic = %v: a transaction stayed open", err)
		}
		if n := w.DB().RawDB.Stats().InUse; n != 0 {
			t.Errorf("%d connections in use, want 0", n)
		}
	})
}

func TestFailedMigrationIsTriedAgain(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		o := w.fence(t)
		d := all(o.device(t))
		if err := errors.Join(d.PutSession(o.generation, "5511900000002:0", []byte("x")), d.PutIdentity(o.generation, "5511900000002:0", key32)); err != nil {
			t.Fatal(err)
		}
		w.exec(t, `ALTER TABLE whatsmeow_sender_keys RENAME COLUMN sender_key TO away`)
		if err := d.MigratePNToLID(o.generation, otherPN, otherLID); err == nil || o.generation.Err() == nil {
			t.Fatalf("MigratePNToLID that fails in its fifth statement = %v, generation %v", err, o.generation.Err())
		}
		w.exec(t, `ALTER TABLE whatsmeow_sender_keys RENAME COLUMN away TO sender_key`)
		o2 := w.fence(t)
		for _, d := range []wmstore.AllSessionSpecificStores{d, all(o2.device(t))} {
			if err := d.MigratePNToLID(t.Context(), otherPN, otherLID); err != nil {
				t.Fatalf("MigratePNToLID again = %v", err)
			}
		}
		if got, err := d.GetSession(t.Context(), otherLID.SignalAddress().String()); err != nil || string(got) != "x" {
			t.Errorf("session under the LID = %q, %v, want it moved there", got, err)
		}
		if ok, err := d.IsTrustedIdentity(t.Context(), otherLID.SignalAddress().String(), [32]byte{8}); err != nil || ok {
			t.Errorf("another key for the LID trusted = %v, %v, want false: the identity moved too", ok, err)
		}
	})
}

func TestLateWriteOfAnOldGenerationIsSeenByTheNext(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t))
	o := w.fence(t)
	first, second := all(o.device(t)), all(o.device(t))
	if err := second.PutIdentity(t.Context(), "a:0", [32]byte{1}); err != nil {
		t.Fatal(err)
	}
	if err := first.PutIdentity(t.Context(), "a:0", [32]byte{2}); err != nil {
		t.Fatal(err)
	}
	if ok, err := second.IsTrustedIdentity(t.Context(), "a:0", [32]byte{1}); err != nil || ok {
		t.Errorf("the replaced key is trusted = %v, %v, want false", ok, err)
	}
}

func TestContactsAreWrittenOnChangeOnly(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		d := all(w.fence(t).device(t))
		ctx := t.Context()
		for i, step := range []struct {
			name, previous string
			changed        bool
		}{{"Ana", "", true}, {"Ana", "", false}, {"Bea", "Ana", true}} {
			changed, previous, err := d.PutPushName(ctx, otherPN, step.name)
			if err != nil || changed != step.changed || previous != step.previous {
				t.Errorf("step %d: PutPushName(%q) = %v, %q, %v, want %v, %q", i, step.name, changed, previous, err, step.changed, step.previous)
			}
		}
		if err := d.PutContactName(ctx, otherPN, "Bea Full", "Bea"); err != nil {
			t.Fatal(err)
		}
		if err := d.PutManyRedactedPhones(ctx, []wmstore.RedactedPhoneEntry{{JID: otherPN, RedactedPhone: "+55…"}}); err != nil {
			t.Fatal(err)
		}
		want := types.ContactInfo{Found: true, FirstName: "Bea", FullName: "Bea Full", PushName: "Bea", RedactedPhone: "+55…"}
		got, err := d.GetContact(ctx, otherPN)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("GetContact (-want +got):\n%s", diff)
		}
		everyone, err := all(w.fence(t).device(t)).GetAllContacts(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[types.JID]types.ContactInfo{otherPN: want}, everyone); diff != "" {
			t.Errorf("GetAllContacts of another term (-want +got):\n%s", diff)
		}
	})
}

func TestTokenLookedForInVainIsFoundOnceTheOtherNameIsKnown(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t))
	d := w.fence(t).device(t)
	ctx := t.Context()
	if err := d.PrivacyTokens.PutPrivacyTokens(ctx, token(otherLID)); err != nil {
		t.Fatal(err)
	}
	if got, err := d.PrivacyTokens.GetPrivacyToken(ctx, otherPN); err != nil || got != nil {
		t.Fatalf("token by a phone number whose LID is not known = %v, %v, want none", got, err)
	}
	if err := d.LIDs.PutLIDMapping(ctx, otherLID, otherPN); err != nil {
		t.Fatal(err)
	}
	got, err := d.PrivacyTokens.GetPrivacyToken(ctx, otherPN)
	if err != nil || got == nil || string(got.Token) != "token" {
		t.Fatalf("token after the mapping came = %v, %v, want it", got, err)
	}
	got.SenderTimestamp = time.Unix(5, 0) // whatsmeow writes into it
	if again, err := d.PrivacyTokens.GetPrivacyToken(ctx, otherPN); err != nil || !again.SenderTimestamp.IsZero() {
		t.Errorf("token again = %+v, %v, want it untouched by the caller", again, err)
	}
}

func TestPreKeysMadeAtOnceHaveDifferentIDs(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		d := all(w.fence(t).device(t))
		var mu sync.Mutex
		ids := map[uint32]int{}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 5 {
					k, err := d.GenOnePreKey(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					ids[k.KeyID]++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if len(ids) != 20 {
			t.Errorf("20 pre-keys have %d different ids", len(ids))
		}
	})
}

func TestLIDMappings(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		l := w.fence(t).device(t).LIDs
		ctx := t.Context()
		if got, err := l.GetLIDForPN(ctx, otherPN); err != nil || !got.IsEmpty() {
			t.Errorf("GetLIDForPN of an unknown number = %v, %v, want nothing", got, err)
		}
		// Another process learns of it: the miss must not be remembered.
		other := wastore.New(wastore.Options{Store: s}).Fence(wastore.FenceOptions{Term: w.term})
		if err := other.NewDevice().LIDs.PutLIDMapping(ctx, otherLID, otherPN); err != nil {
			t.Fatal(err)
		}
		device := otherPN
		device.Device = 3
		want := otherLID
		want.Device = 3
		if got, err := l.GetLIDForPN(ctx, device); err != nil || got != want {
			t.Errorf("GetLIDForPN(device 3) = %v, %v, want %v", got, err, want)
		}
		if got, err := l.GetPNForLID(ctx, want); err != nil || got != device {
			t.Errorf("GetPNForLID(device 3) = %v, %v, want %v", got, err, device)
		}
		many, err := l.GetManyLIDsForPNs(ctx, []types.JID{otherPN, device, ownJID, otherLID})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[types.JID]types.JID{otherPN: otherLID, device: want}, many); diff != "" {
			t.Errorf("GetManyLIDsForPNs (-want +got):\n%s", diff)
		}
		// The number moves to another LID: both directions follow.
		moved := types.JID{User: "100000000000099", Server: types.HiddenUserServer}
		if err := l.PutManyLIDMappings(ctx, []wmstore.LIDMapping{{LID: moved, PN: otherPN}, {LID: ownLID, PN: ownJID}, {LID: otherPN, PN: otherPN}}); err != nil {
			t.Fatal(err)
		}
		if got, err := l.GetLIDForPN(ctx, otherPN); err != nil || got != moved {
			t.Errorf("GetLIDForPN after the move = %v, %v, want %v", got, err, moved)
		}
		if got, err := l.GetPNForLID(ctx, otherLID); err != nil || !got.IsEmpty() {
			t.Errorf("GetPNForLID of the old LID = %v, %v, want nothing", got, err)
		}
		for name, err := range map[string]error{
			"PutLIDMapping": l.PutLIDMapping(ctx, otherPN, otherLID),
			"GetLIDForPN":   reads2(l.GetLIDForPN(ctx, otherLID)),
			"GetPNForLID":   reads2(l.GetPNForLID(ctx, otherPN)),
		} {
			if err == nil {
				t.Errorf("%s with the servers the wrong way round = nil, want an error", name)
			}
		}
	})
}

func reads2[T any](_ T, err error) error { return err }

func TestProcessesThatLearnTheSameMappingsAtOnceDoNotDeadlock(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		var wg sync.WaitGroup
		for p := range 4 {
			l := wastore.New(wastore.Options{Store: s}).Fence(wastore.FenceOptions{Term: w.term}).NewDevice().LIDs
			wg.Go(func() {
				for round := range 5 {
					var list []wmstore.LIDMapping
					for i := range 20 {
						n := (i*(p+1) + round*7) % 20 // each in an order of its own
						list = append(list, wmstore.LIDMapping{
							LID: types.JID{User: fmt.Sprintf("2000%02d%02d", round, n), Server: types.HiddenUserServer},
							PN:  types.JID{User: fmt.Sprintf("55119000%02d%02d", round, n), Server: types.DefaultUserServer},
						})
					}
					if err := l.PutManyLIDMappings(t.Context(), list); err != nil {
						t.Errorf("process %d: %v", p, err)
					}
				}
			})
		}
		wg.Wait()
	})
}
