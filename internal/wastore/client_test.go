package wastore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mau.fi/libsignal/ecc"
	"go.mau.fi/libsignal/keys/identity"
	"go.mau.fi/libsignal/keys/prekey"
	"go.mau.fi/libsignal/util/optional"
	"go.mau.fi/util/dbutil"
	"go.mau.fi/whatsmeow"
	waBinary "go.mau.fi/whatsmeow/binary"
	"go.mau.fi/whatsmeow/proto/waE2E"
	wmstore "go.mau.fi/whatsmeow/store"
	"go.mau.fi/whatsmeow/store/sqlstore"
	"go.mau.fi/whatsmeow/types"
	waLog "go.mau.fi/whatsmeow/util/log"
	"google.golang.org/protobuf/proto"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/wastore"
)

// pair is the real whatsmeow client on a fenced device, with a Signal session to each of the
// recipient's devices: what it makes of an error is its own code's doing.
type pair struct {
	*world
	devices []types.JID
}

func newPair(t testing.TB, s *store.Store, devices int) *pair {
	t.Helper()
	p := &pair{world: newWorld(t, s)}
	o := p.fence(t)
	cli := whatsmeow.NewClient(o.device(t), waLog.Noop)
	for i := range devices {
		peer := o.NewDevice()
		to := otherLID
		to.Device = uint16(i)
		p.devices = append(p.devices, to)
		bundle := prekey.NewBundle(peer.RegistrationID, uint32(i), optional.NewEmptyUint32(), peer.SignedPreKey.KeyID,
			nil, ecc.NewDjbECPublicKey(*peer.SignedPreKey.Pub), *peer.SignedPreKey.Signature, identity.NewKey(ecc.NewDjbECPublicKey(*peer.IdentityKey.Pub)))
		if _, _, err := cli.DangerousInternals().EncryptMessageForDevice(t.Context(), []byte("hello"), to, bundle, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// encrypt is what SendMessage does between the device list and the frame.
func encrypt(ctx context.Context, d *wmstore.Device, devices []types.JID) ([]waBinary.Node, error) {
	plain, err := proto.Marshal(&waE2E.Message{Conversation: proto.String("hello")})
	if err != nil {
		return nil, err
	}
	cli := whatsmeow.NewClient(d, waLog.Noop)
	nodes, _, err := cli.DangerousInternals().EncryptMessageForDevices(ctx, devices, "3EB001", plain, nil, waBinary.Attrs{})
	return nodes, err
}

func TestRealClientGetsAnErrorAndNoEmptyMessage(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		p := newPair(t, s, 2)
		t.Run("all well", func(t *testing.T) {
			o := p.fence(t)
			ctx, watch := o.BeginSend(o.generation, otherLID.String(), nil)
			defer watch.End()
			if nodes, err := encrypt(ctx, o.device(t), p.devices); err != nil || len(nodes) != 2 || !watch.Saved() {
				t.Errorf("encrypt = %d nodes, %v, Saved %v; want 2, nil, true", len(nodes), err, watch.Saved())
			}
		})
		t.Run("the recipient's phone has no session and no pre-key", func(t *testing.T) {
			o := p.fence(t)
			ctx, watch := o.BeginSend(o.generation, otherLID.String(), nil)
			defer watch.End()
			d := o.device(t)
			if err := d.Sessions.DeleteSession(ctx, p.devices[0].SignalAddress().String()); err != nil {
				t.Fatal(err)
			}
			// Without a socket the fetch fails, and whatsmeow goes on with the companion alone.
			nodes, err := encrypt(ctx, d, p.devices)
			if !errors.Is(err, wastore.ErrRecipientSkipped) || ctx.Err() == nil || watch.Saved() {
				t.Errorf("encrypt = %d nodes, %v, send %v, Saved %v; want ErrRecipientSkipped, cancelled, false", len(nodes), err, ctx.Err(), watch.Saved())
			}
		})
		t.Run("identities can't be read", func(t *testing.T) {
			p.exec(t, `ALTER TABLE whatsmeow_identity_keys RENAME TO away`)
			defer p.exec(t, `ALTER TABLE away RENAME TO whatsmeow_identity_keys`)
			o := p.fence(t)
			ctx, watch := o.BeginSend(o.generation, otherLID.String(), nil)
			defer watch.End()
			if nodes, err := encrypt(ctx, o.device(t), p.devices); err == nil || ctx.Err() == nil || watch.Saved() || o.generation.Err() != nil {
				t.Errorf("encrypt = %d nodes, %v; send %v, Saved %v, generation %v; want an error, cancelled, false, alive", len(nodes), err, ctx.Err(), watch.Saved(), o.generation.Err())
			}
		})
		t.Run("the lease is lost", func(t *testing.T) {
			o := p.fence(t)
			d := o.device(t)
			p.takeOver(t)
			defer p.giveBack(t)
			ctx, watch := o.BeginSend(o.generation, otherLID.String(), nil)
			defer watch.End()
			if _, err := encrypt(ctx, d, p.devices[1:]); !errors.Is(err, wastore.ErrRecipientSkipped) {
				t.Errorf("encrypt for a companion alone = %v, want ErrRecipientSkipped", err)
			}
			ctx, group := o.BeginSend(o.generation, "1203630000000001@g.us", nil)
			defer group.End()
			nodes, err := encrypt(ctx, d, p.devices)
			if !errors.Is(err, fleet.ErrLeaseLost) || !errors.Is(context.Cause(o.term), fleet.ErrLeaseLost) || group.Saved() {
				t.Errorf("encrypt of a stale owner = %d nodes, %v, term %v, Saved %v; want ErrLeaseLost, ended, false", len(nodes), err, context.Cause(o.term), group.Saved())
			}
		})
	})
}

func TestSendInSteadyStateIsOneStatement(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		p := newPair(t, s, 2)
		o := p.fence(t)
		d := o.device(t)
		var log statements
		send := func() []string {
			log.reset()
			ctx, watch := o.BeginSend(o.generation, otherLID.String(), nil)
			defer watch.End()
			if _, err := encrypt(ctx, d, p.devices); err != nil {
				t.Fatal(err)
			}
			if _, err := d.PrivacyTokens.GetPrivacyToken(ctx, otherLID); err != nil {
				t.Fatal(err)
			}
			return log.list()
		}
		p.DB().Log = &log
		send() // fills the caches
		if got := send(); len(got) != 1 {
			t.Errorf("a text to two devices took %d statements, want 1 (sessions written):\n%q", len(got), got)
		}
	})
}

func TestPostgresWithoutPreparedStatements(t *testing.T) {
	url := storetest.PostgresURL(t) + "&default_query_exec_mode=exec" // as behind PgBouncer
	w := newWorld(t, storetest.Open(t, url))
	o := w.fence(t)
	d := o.device(t)
	for _, m := range methods {
		if m.before != nil {
			if err := m.before(o.generation, d); err != nil {
				t.Errorf("before %s: %v", m.name, err)
			}
		}
		if err := m.call(o.generation, d); err != nil && !m.missIsError {
			t.Errorf("%s = %v", m.name, err)
		}
	}
}

// statements counts what reaches the database.
type statements struct {
	dbutil.DatabaseLogger
	mu   sync.Mutex
	seen []string
}

func (l *statements) QueryTiming(_ context.Context, method, query string, _ []any, _ int, _ time.Duration, _ error) {
	if method == "EndRows" { // the end of a query that was counted
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = append(l.seen, method+" "+query)
}

func (l *statements) reset() { l.mu.Lock(); defer l.mu.Unlock(); l.seen = nil }

func (l *statements) list() []string { l.mu.Lock(); defer l.mu.Unlock(); return slices.Clone(l.seen) }

func BenchmarkPutManySessions(b *testing.B) {
	for _, dialect := range []struct {
		name string
		open func(testing.TB) *store.Store
	}{{"sqlite", storetest.SQLite}, {"postgres", storetest.Postgres}} {
		w := newWorld(b, dialect.open(b))
		raw := sqlstore.NewSQLStore(sqlstore.NewWithWrappedDB(w.DB(), waLog.Noop), ownJID)
		for _, n := range []int{2, 128} {
			batch := map[string][]byte{}
			for i := range n {
				batch[types.JID{User: "100000000000002", Device: uint16(i), Server: types.HiddenUserServer}.SignalAddress().String()] = bytes.Repeat([]byte{1}, 500)
			}
			for _, s := range []struct {
				name string
				wmstore.SessionStore
			}{{"raw", raw}, {"fenced", w.fence(b).device(b).Sessions}} {
				b.Run(fmt.Sprintf("%s/%d devices/%s", dialect.name, n, s.name), func(b *testing.B) {
					for b.Loop() {
						if err := s.PutManySessions(b.Context(), batch); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}
