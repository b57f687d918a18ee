package wastore_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	wmstore "go.mau.fi/whatsmeow/store"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/wastore"
)

func TestASendDoesNotStoreASessionThatChangedSinceItWasRead(t *testing.T) {
	phone, companion := otherLID.SignalAddress().String(), "100000000000002_1:4"
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		for _, tc := range []struct {
			name   string
			change func(o *own, sending context.Context) error
			want   error
		}{
			{"nobody changed one", func(*own, context.Context) error { return nil }, nil},
			{"a message that came in", func(o *own, _ context.Context) error {
				d := o.device(t)
				return d.EventBuffer.DoDecryptionTxn(o.generation, func(ctx context.Context) error {
					if _, err := d.Sessions.GetSession(ctx, phone); err != nil {
						return err
					}
					return d.Sessions.PutSession(ctx, phone, []byte("decrypted"))
				})
			}, wastore.ErrOverlap},
			{"one of somebody else", func(o *own, _ context.Context) error {
				return o.device(t).Sessions.PutSession(o.generation, "100000000000003_1:0", []byte("decrypted"))
			}, nil},
			{"the session of their companion", func(o *own, _ context.Context) error {
				return o.device(t).Sessions.PutSession(o.generation, companion, []byte("retried"))
			}, wastore.ErrOverlap},
			{"it was deleted because their identity changed", func(o *own, _ context.Context) error {
				return o.device(t).Sessions.DeleteAllSessions(o.generation, "100000000000002")
			}, wastore.ErrOverlap},
			{"the send itself deleted it, as it does for a new identity", func(o *own, sending context.Context) error {
				return o.device(t).Sessions.DeleteSession(sending, phone)
			}, nil},
		} {
			t.Run(tc.name, func(t *testing.T) {
				o := w.fence(t)
				d := o.device(t)
				asked := false
				ctx, watch := o.BeginSend(o.generation, otherLID.String(), func(context.Context, any) error {
					asked = true
					return wastore.ErrWithdrawn // nobody stores it: the next case begins as this one did
				})
				defer watch.End()
				if _, err := d.Sessions.GetManySessions(ctx, []string{phone, companion}); err != nil {
					t.Fatal(err)
				}
				if err := tc.change(o, ctx); err != nil {
					t.Fatal(err)
				}
				err := d.Sessions.PutManySessions(ctx, map[string][]byte{phone: []byte("encrypted"), companion: []byte("encrypted")})
				if !errors.Is(err, wastore.ErrOverlap) != (tc.want == nil) || asked != (tc.want == nil) {
					t.Errorf("PutManySessions = %v, claim asked %v; want %v and the claim asked only without it", err, asked, tc.want)
				}
				if ctx.Err() == nil || watch.Saved() || o.generation.Err() != nil {
					t.Errorf("send %v, Saved %v, generation %v; want cancelled, false, alive", ctx.Err(), watch.Saved(), o.generation.Err())
				}
			})
		}
	})
}

// On SQLite a decryption keeps the database's only writer away, on PostgreSQL nothing but the turn does: what it read would
// be stored over what a send was claimed with.
func TestAClaimWaitsForADecryptionThatIsUnderWay(t *testing.T) {
	phone := otherLID.SignalAddress().String()
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		for name, change := range map[string]func(d *wmstore.Device, dctx context.Context) error{
			"it stores a session": func(d *wmstore.Device, dctx context.Context) error {
				return d.Sessions.PutSession(dctx, phone, []byte("decrypted"))
			},
			"it deletes all": func(d *wmstore.Device, dctx context.Context) error {
				return d.Sessions.DeleteAllSessions(dctx, otherLID.SignalAddressUser())
			},
		} {
			for _, written := range []bool{false, true} { // by the decryption, before the send reads what is committed
				t.Run(fmt.Sprintf("%s, before the send reads: %v", name, written), func(t *testing.T) {
					o := w.fence(t)
					d := o.device(t)
					if err := d.Sessions.PutSession(o.generation, phone, []byte("zero")); err != nil {
						t.Fatal(err)
					}
					var asked atomic.Bool
					ctx, watch := o.BeginSend(o.generation, otherLID.String(), func(context.Context, any) error {
						asked.Store(true)
						return wastore.ErrWithdrawn
					})
					defer watch.End()
					sent := make(chan error, 1)
					err := d.EventBuffer.DoDecryptionTxn(o.generation, func(dctx context.Context) error {
						if _, err := d.Sessions.GetSession(dctx, phone); err != nil {
							return err
						}
						if written {
							if err := change(d, dctx); err != nil {
								return err
							}
						}
						if _, err := d.Sessions.GetManySessions(ctx, []string{phone}); err != nil {
							return err
						}
						go func() {
							sent <- d.Sessions.PutManySessions(ctx, map[string][]byte{phone: []byte("encrypted")})
						}()
						for wastore.WaitingForTheTurn(d) == 0 && !asked.Load() {
							runtime.Gosched()
						}
						if asked.Load() {
							t.Error("a claim was asked for while a decryption had read the session")
						}
						if written {
							return nil
						}
						return change(d, dctx)
					})
					if err != nil {
						t.Fatal(err)
					}
					if err := <-sent; !errors.Is(err, wastore.ErrOverlap) {
						t.Errorf("PutManySessions after the decryption = %v, want ErrOverlap", err)
					}
					if got, err := d.Sessions.GetSession(o.generation, phone); err != nil || string(got) == "zero" || string(got) == "encrypted" {
						t.Errorf("GetSession = %q, %v, want what the decryption left", got, err)
					}
				})
			}
		}
	})
}

func TestADecryptionWaitsForAClaimThatIsUnderWay(t *testing.T) {
	phone := otherLID.SignalAddress().String()
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		o := w.fence(t)
		d := o.device(t)
		decrypted, read := make(chan error, 1), ""
		ctx, watch := o.BeginSend(o.generation, otherLID.String(), func(ctx context.Context, keys any) error {
			go func() {
				decrypted <- d.EventBuffer.DoDecryptionTxn(o.generation, func(dctx context.Context) error {
					got, err := d.Sessions.GetSession(dctx, phone)
					read = string(got)
					return err
				})
			}()
			for wastore.WaitingForTheTurn(d) == 0 && len(decrypted) == 0 {
				runtime.Gosched()
			}
			return w.Commit(ctx, &store.Step{Term: w.term, Claim: w.claim(t), Keys: keys.(store.Keys)})
		})
		defer watch.End()
		if _, err := d.Sessions.GetManySessions(ctx, []string{phone}); err != nil {
			t.Fatal(err)
		}
		if err := d.Sessions.PutManySessions(ctx, map[string][]byte{phone: []byte("encrypted")}); err != nil {
			t.Fatal(err)
		}
		if err := <-decrypted; err != nil || read != "encrypted" {
			t.Errorf("the decryption read %q, %v; want what the frame that leaves was encrypted with", read, err)
		}
	})
}

func TestAnAnswerToARetryThatOverlapsASendEndsTheGeneration(t *testing.T) {
	phone := otherLID.SignalAddress().String()
	w := newWorld(t, storetest.SQLite(t))
	o := w.fence(t)
	d := o.device(t)
	for i := range 2 { // alone it may store what it read, again and again
		if _, err := d.Sessions.GetSession(o.generation, phone); err != nil {
			t.Fatal(err)
		}
		if err := d.Sessions.PutSession(o.generation, phone, []byte(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Sessions.GetSession(o.generation, phone); err != nil {
		t.Fatal(err)
	}
	ctx, watch := o.BeginSend(o.generation, otherLID.String(), nil)
	defer watch.End()
	if _, err := d.Sessions.GetManySessions(ctx, []string{phone}); err != nil {
		t.Fatal(err)
	}
	if err := d.Sessions.PutManySessions(ctx, map[string][]byte{phone: []byte("sent")}); err != nil {
		t.Fatal(err)
	}
	err := d.Sessions.PutSession(o.generation, phone, []byte("retried"))
	if !errors.Is(err, wastore.ErrOverlap) || !errors.Is(context.Cause(o.generation), wastore.ErrOverlap) || o.term.Err() != nil {
		t.Errorf("PutSession = %v, generation %v, term %v; want ErrOverlap, ended with it, alive", err, context.Cause(o.generation), o.term.Err())
	}
	if got, err := d.Sessions.GetSession(t.Context(), phone); err != nil || string(got) != "sent" {
		t.Errorf("GetSession = %q, %v, want what the send stored", got, err)
	}
}

func TestASendThatGaveUpItsClaimStoresNothingLater(t *testing.T) {
	phone := otherLID.SignalAddress().String()
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		o := w.fence(t)
		d := o.device(t)
		var late *store.Step
		ctx, watch := o.BeginSend(o.generation, otherLID.String(), func(_ context.Context, keys any) error {
			late = &store.Step{Term: w.term, Claim: w.claim(t), Keys: keys.(store.Keys)}
			return errors.New("the claim took too long") // but it is in the queue of the commits
		})
		defer watch.End()
		if _, err := d.Sessions.GetManySessions(ctx, []string{phone}); err != nil {
			t.Fatal(err)
		}
		if err := d.Sessions.PutManySessions(ctx, map[string][]byte{phone: []byte("encrypted")}); err == nil {
			t.Fatal("PutManySessions with a claim that failed = nil")
		}
		if err := d.Sessions.PutSession(o.generation, phone, []byte("decrypted")); err != nil { // the turn is free
			t.Fatal(err)
		}
		if err := w.Commit(t.Context(), late); err != nil || !late.Claimed {
			t.Fatalf("Commit = %v, claimed %v", err, late.Claimed)
		}
		if got, err := d.Sessions.GetSession(t.Context(), phone); err != nil || string(got) != "decrypted" {
			t.Errorf("GetSession = %q, %v, want what came after the send had left", got, err)
		}
	})
}

// claim is for a message that is queued.
func (w *world) claim(t *testing.T) *store.Claim {
	t.Helper()
	var m fleet.Message
	err := w.InTx(t.Context(), func(ctx context.Context) error {
		cnv, err := w.Conversation(ctx, "org-a", "5511900000002")
		if err != nil {
			return err
		}
		m, err = w.CreateMessage(ctx, fleet.Message{
			OrgID: "org-a", SessionID: w.session, ConversationID: cnv, ContactKey: "5511900000002", To: "+5511900000002",
			ToJID: otherPN.String(), Kind: "text", Text: "hello", WAID: fleet.NewWAID(),
		}, time.Hour)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return &store.Claim{ID: m.ID, Payload: []byte("hello"), Kind: fleet.AttemptSend, LockFor: time.Minute}
}
