package wastore_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/wastore"
)

func TestDeviceIsFreshAndFencedForEveryGeneration(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t))
	o := w.fence(t)
	a, b := o.device(t), o.device(t)
	if a == b || a.NoiseKey == b.NoiseKey {
		t.Error("two generations share one device object")
	}
	if *a.NoiseKey.Priv != *b.NoiseKey.Priv || a.RegistrationID != b.RegistrationID {
		t.Error("two generations have different keys")
	}
	if _, err := o.Device(t.Context(), "5511900000099:3@s.whatsapp.net"); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("Device of an unknown JID = %v, want ErrNotFound", err)
	}
	for _, jid := range []string{"", "@s.whatsapp.net"} {
		if _, err := o.Device(t.Context(), jid); !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("Device(%q) = %v, want ErrInvalid: a blank id matches nothing", jid, err)
		}
	}
	w.takeOver(t)
	stale := w.fence(t)
	d := stale.device(t) // a read needs no row lock
	if err := d.Sessions.PutSession(t.Context(), "a:0", nil); !errors.Is(err, fleet.ErrLeaseLost) {
		t.Errorf("PutSession on the device of a stale term = %v, want ErrLeaseLost", err)
	}
	if _, err := stale.Device(t.Context(), ownJID.String()); !errors.Is(err, fleet.ErrLeaseLost) {
		t.Errorf("Device of a lost fence = %v, want ErrLeaseLost", err)
	}
}

func TestFirstSaveOfANewDeviceLeavesNoRawStores(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		o := w.fence(t)
		d := o.NewDevice()
		jid := ownJID
		jid.Device = 8
		identify(d, jid)
		if err := d.Save(t.Context()); err != nil {
			t.Fatal(err)
		}
		for what, v := range map[string]any{"store": d.Sessions, "container": d.Container, "LID store": d.LIDs} {
			if got := reflect.TypeOf(v).String(); !strings.HasPrefix(got, "*wastore.") {
				t.Errorf("after the first save the %s is a %s, want the fenced one", what, got)
			}
		}
		w.takeOver(t)
		d.PushName = "stale"
		if err := d.Save(t.Context()); !errors.Is(err, fleet.ErrLeaseLost) {
			t.Errorf("Save of a stale term = %v, want ErrLeaseLost", err)
		}
	})
}

func TestStalePairingStoresNoDevice(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t))
	o := w.fence(t)
	d := o.NewDevice()
	jid := ownJID
	jid.Device = 8
	identify(d, jid)
	w.takeOver(t)
	before := len(w.dump(t))
	if err := d.Save(t.Context()); !errors.Is(err, fleet.ErrLeaseLost) || o.term.Err() == nil {
		t.Errorf("first Save of a stale term = %v, term %v; want ErrLeaseLost and an ended term", err, o.term.Err())
	}
	if got := len(w.dump(t)); got != before {
		t.Errorf("%d rows after it, want %d", got, before)
	}
}

func TestRevokedDeviceKeepsItsRowsAndIsMarked(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		d := w.fence(t).device(t)
		if err := d.Sessions.PutSession(t.Context(), "a:0", []byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := d.Delete(t.Context()); err != nil { // what whatsmeow does on 401, 403 and 406
			t.Fatal(err)
		}
		v, err := s.SessionByID(t.Context(), w.session)
		if err != nil || v.RevokedAt.IsZero() || v.CanLogin() {
			t.Errorf("session after the revocation: revoked %v, can log in %v, %v; want it marked", v.RevokedAt, v.CanLogin(), err)
		}
		var devices, sessions int
		if err := s.DB().QueryRow(t.Context(), `SELECT (SELECT count(*) FROM whatsmeow_device), (SELECT count(*) FROM whatsmeow_sessions)`).Scan(&devices, &sessions); err != nil || devices != 1 || sessions != 1 {
			t.Errorf("%d devices, %d Signal sessions, %v; want both kept", devices, sessions, err)
		}
	})
}

func TestDeviceOfAPairingThatFailedHalfWayIsDeleted(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t))
	d := w.fence(t).NewDevice()
	jid := ownJID
	jid.Device = 9
	identify(d, jid)
	if err := d.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := w.DB().QueryRow(t.Context(), `SELECT count(*) FROM whatsmeow_device WHERE jid=$1`, jid.String()).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d devices left of the failed pairing, %v, want none", n, err)
	}
	if v, err := w.SessionByID(t.Context(), w.session); err != nil || !v.RevokedAt.IsZero() {
		t.Errorf("the session's own login was marked revoked at %v, %v", v.RevokedAt, err)
	}
}

func TestPairingThatGetsAnOldJIDAgainReplacesTheOldKeys(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		o := w.fence(t)
		old := o.device(t)
		if err := old.Identities.PutIdentity(t.Context(), "a:0", key32); err != nil {
			t.Fatal(err)
		}
		if err := old.Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
		d := o.NewDevice()
		identify(d, ownJID)
		if err := d.Save(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := o.device(t)
		if *got.NoiseKey.Priv != *d.NoiseKey.Priv || *got.IdentityKey.Priv != *d.IdentityKey.Priv {
			t.Error("the stored keys are those of the revoked device: its next login would fail")
		}
		if ok, err := got.Identities.IsTrustedIdentity(t.Context(), "a:0", [32]byte{5}); err != nil || !ok {
			t.Errorf("an identity of the old login still counts: trusted = %v, %v", ok, err)
		}
	})
}

func TestDeviceOfAnotherLiveSessionIsNotOverwritten(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t))
	v, err := w.CreateSession(t.Context(), store.NewSession{Org: "org-a"})
	if err != nil {
		t.Fatal(err)
	}
	terms, _, err := w.ClaimLeases(t.Context(), store.ClaimQuery{Owner: "w1/a", Limit: 1, TTL: 1 << 40})
	if err != nil || len(terms) != 1 || terms[0].SessionID != v.ID {
		t.Fatalf("ClaimLeases = %v, %v", terms, err)
	}
	o := w.c.Fence(wastore.FenceOptions{Term: terms[0]})
	d := o.NewDevice()
	identify(d, ownJID)
	before := w.dump(t)
	if err := d.Save(t.Context()); !errors.Is(err, fleet.ErrNumberInUse) {
		t.Errorf("Save of a device that another session logs in as = %v, want ErrNumberInUse", err)
	}
	if after := w.dump(t); !reflect.DeepEqual(before, after) {
		t.Error("the other session's device was changed")
	}
}
