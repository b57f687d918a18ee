package wastore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.mau.fi/whatsmeow/types"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/wastore"
)

func TestSendIsSavedOnlyWithTheRecipientsPhoneInTheBatch(t *testing.T) {
	own := ownLID.SignalAddress().String()
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		for _, tc := range []struct {
			name  string
			to    string
			batch []string
			saved bool
		}{
			{"recipient by LID, their device 0 in the batch", otherLID.String(), []string{otherLID.SignalAddress().String(), own}, true},
			{"recipient by phone, encrypted under their LID", otherPN.String(), []string{otherLID.SignalAddress().String(), own}, true},
			{"recipient by LID, encrypted under their phone number", otherLID.String(), []string{otherPN.SignalAddress().String()}, true},
			{"recipient by phone without a LID", "5511900000003@s.whatsapp.net", []string{"5511900000003:0"}, true},
			{"only our own devices", otherPN.String(), []string{own}, false},
			{"the recipient's companion but not their phone", otherLID.String(), []string{"100000000000002_1:4", own}, false},
			{"somebody else's device 0", otherLID.String(), []string{"100000000000003_1:0", own}, false},
			{"a phone number that only starts like the recipient's", "551190000000@s.whatsapp.net", []string{"5511900000002:0"}, false},
			{"nothing at all", otherLID.String(), nil, false},
			{"a group, which is not one recipient", "1203630000000001@g.us", []string{own}, true},
		} {
			t.Run(tc.name, func(t *testing.T) {
				o := w.fence(t)
				d := o.device(t)
				if err := d.LIDs.PutLIDMapping(t.Context(), otherLID, otherPN); err != nil {
					t.Fatal(err)
				}
				ctx, watch := o.BeginSend(o.generation, tc.to, nil)
				defer watch.End()
				batch := map[string][]byte{}
				for _, a := range tc.batch {
					batch[a] = []byte("session")
				}
				if watch.Saved() {
					t.Error("Saved before anything was encrypted = true")
				}
				before := w.dump(t)
				err := d.Sessions.PutManySessions(ctx, batch)
				if watch.Saved() != tc.saved || (err == nil) != tc.saved || (ctx.Err() == nil) != tc.saved {
					t.Errorf("PutManySessions(%v) = %v, Saved %v, send cancelled %v; want saved = %v", tc.batch, err, watch.Saved(), ctx.Err() != nil, tc.saved)
				}
				if !tc.saved {
					if !errors.Is(watch.Err(), wastore.ErrRecipientSkipped) || !errors.Is(context.Cause(ctx), wastore.ErrRecipientSkipped) {
						t.Errorf("Err = %v, cause %v; want ErrRecipientSkipped", watch.Err(), context.Cause(ctx))
					}
					if after := w.dump(t); len(after) != len(before) {
						t.Error("a refused batch was stored")
					}
				}
				if o.generation.Err() != nil {
					t.Errorf("the generation ended: %v", context.Cause(o.generation))
				}
			})
		}
	})
}

func TestBatchThatWasNotCommittedIsNotSaved(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		o := w.fence(t)
		d := o.device(t)
		ctx, watch := o.BeginSend(o.generation, otherLID.String(), nil)
		defer watch.End()
		w.exec(t, `ALTER TABLE whatsmeow_sessions RENAME TO away`)
		if err := d.Sessions.PutManySessions(ctx, map[string][]byte{otherLID.SignalAddress().String(): []byte("x")}); err == nil || watch.Saved() || ctx.Err() == nil {
			t.Errorf("PutManySessions that fails = %v, Saved %v, send %v; want an error, not saved, cancelled", err, watch.Saved(), ctx.Err())
		}
	})
}

func TestFrameOfAMessageEncryptedForNobodyIsHeldBack(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t))
	o := w.fence(t)
	d := o.device(t)
	// whatsmeow stores nothing when all devices were skipped; its last look before the frame is for the token.
	ctx, watch := o.BeginSend(o.generation, otherPN.String(), nil)
	if _, err := d.PrivacyTokens.GetPrivacyToken(ctx, otherPN); err != nil || ctx.Err() != nil {
		t.Errorf("token by phone number, looked for before the encryption too = %v, send %v; want no error", err, ctx.Err())
	}
	if _, err := d.PrivacyTokens.GetPrivacyToken(ctx, otherLID); !errors.Is(err, wastore.ErrRecipientSkipped) || ctx.Err() == nil || watch.Saved() {
		t.Errorf("token by LID with nothing saved = %v, send %v; want ErrRecipientSkipped and a cancelled send", err, ctx.Err())
	}
	watch.End()

	ctx, watch = o.BeginSend(o.generation, otherPN.String(), nil)
	defer watch.End()
	if err := d.LIDs.PutLIDMapping(ctx, otherLID, otherPN); err != nil {
		t.Fatal(err)
	}
	if err := d.Sessions.PutManySessions(ctx, map[string][]byte{otherLID.SignalAddress().String(): []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.PrivacyTokens.GetPrivacyToken(ctx, otherLID); err != nil || ctx.Err() != nil {
		t.Errorf("token after the sessions were saved = %v, send %v; want no error", err, ctx.Err())
	}
}

func TestErrorAfterTheSendWasSavedStillCancelsItAndSaysSo(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t))
	o := w.fence(t)
	d := o.device(t)
	ctx, watch := o.BeginSend(o.generation, otherLID.String(), nil)
	defer watch.End()
	if err := d.Sessions.PutManySessions(ctx, map[string][]byte{otherLID.SignalAddress().String(): []byte("x")}); err != nil {
		t.Fatal(err)
	}
	w.exec(t, `DROP TABLE whatsmeow_privacy_tokens`)
	if _, err := d.PrivacyTokens.GetPrivacyToken(ctx, otherLID); err == nil {
		t.Fatal("GetPrivacyToken without its table = nil")
	}
	if ctx.Err() == nil || watch.Err() == nil || !watch.Saved() || o.generation.Err() != nil {
		t.Errorf("send %v, Err %v, Saved %v, generation %v; want cancelled, an error, saved, alive", ctx.Err(), watch.Err(), watch.Saved(), o.generation.Err())
	}
}

func TestLeaseLostInsideASendEndsSendGenerationAndTerm(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t))
	o := w.fence(t)
	d := o.device(t)
	ctx, watch := o.BeginSend(o.generation, otherLID.String(), nil)
	defer watch.End()
	w.takeOver(t)
	err := d.Sessions.PutManySessions(ctx, map[string][]byte{otherLID.SignalAddress().String(): []byte("x")})
	for what, got := range map[string]error{"error": err, "send": context.Cause(ctx), "generation": context.Cause(o.generation), "term": context.Cause(o.term), "watch": watch.Err()} {
		if !errors.Is(got, fleet.ErrLeaseLost) {
			t.Errorf("%s: %v, want ErrLeaseLost", what, got)
		}
	}
	if watch.Saved() {
		t.Error("Saved = true after the lease was lost")
	}
}

func TestAfterEndASendCountsNoMoreAndTheGenerationDoes(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t))
	o := w.fence(t)
	d := o.device(t)
	ctx, watch := o.BeginSend(o.generation, otherLID.String(), nil)
	watch.End()
	if ctx.Err() == nil {
		t.Error("the send's context lives on after End")
	}
	w.exec(t, `DROP TABLE whatsmeow_nct_salt`)
	if _, err := d.NCTSalt.GetNCTSalt(context.WithoutCancel(ctx)); err == nil || watch.Err() != nil || o.generation.Err() == nil {
		t.Errorf("late call = %v, watch %v, generation %v; want an error that ends the generation", err, watch.Err(), o.generation.Err())
	}
}

func TestSendToWhatIsNoJIDIsCancelledAtOnce(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t))
	o := w.fence(t)
	for _, to := range []string{"", "@s.whatsapp.net", "a:b:c@s.whatsapp.net"} {
		ctx, watch := o.BeginSend(t.Context(), to, nil)
		if ctx.Err() == nil || watch.Err() == nil {
			t.Errorf("BeginSend(%q): send %v, Err %v; want it cancelled", to, ctx.Err(), watch.Err())
		}
		watch.End()
	}
}

func TestOneSendEndsWithItsErrorAndAnotherGoesOn(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t))
	o := w.fence(t)
	d := o.device(t)
	a, wa := o.BeginSend(o.generation, otherLID.String(), nil)
	defer wa.End()
	b, wb := o.BeginSend(o.generation, otherLID.String(), nil)
	defer wb.End()
	if err := d.Sessions.PutManySessions(a, map[string][]byte{"1:0": nil}); !errors.Is(err, wastore.ErrRecipientSkipped) {
		t.Fatalf("PutManySessions = %v, want ErrRecipientSkipped", err)
	}
	if b.Err() != nil || wb.Err() != nil {
		t.Errorf("the other send: %v, %v; want it alive", b.Err(), wb.Err())
	}
}

func TestHashOfAnEventStaysAndItsPlaintextIsSealed(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		e := w.fence(t).device(t).EventBuffer
		ctx := t.Context()
		at := time.Unix(1_700_000_000, 0)
		if err := e.PutBufferedEvent(ctx, hash, []byte("the text of a message"), at); err != nil {
			t.Fatal(err)
		}
		var raw []byte
		if err := w.DB().QueryRow(ctx, `SELECT plaintext FROM whatsmeow_event_buffer`).Scan(&raw); err != nil {
			t.Fatal(err)
		}
		if len(raw) == 0 || string(raw) == "the text of a message" {
			t.Errorf("stored plaintext = %q, want it sealed", raw)
		}
		got, err := e.GetBufferedEvent(ctx, hash)
		if err != nil || got == nil || string(got.Plaintext) != "the text of a message" || !got.ServerTime.Equal(at) {
			t.Errorf("GetBufferedEvent = %+v, %v, want the text and the time", got, err)
		}
		if err := e.DeleteOldBufferedHashes(ctx); err != nil {
			t.Errorf("DeleteOldBufferedHashes = %v", err)
		}
		if err := e.ClearBufferedEventPlaintext(ctx, hash); err != nil {
			t.Fatal(err)
		}
		if got, err := e.GetBufferedEvent(ctx, hash); err != nil || got == nil || got.Plaintext != nil {
			t.Errorf("GetBufferedEvent after the text was cleared = %+v, %v, want a row without text", got, err)
		}
		// A sealed text that is moved to another row does not open, and that is no plain miss.
		if err := e.PutBufferedEvent(ctx, [32]byte{1}, []byte("one"), at); err != nil {
			t.Fatal(err)
		}
		other := [32]byte{2}
		w.exec(t, `UPDATE whatsmeow_event_buffer SET ciphertext_hash=$1 WHERE plaintext IS NOT NULL`, other[:])
		o := w.fence(t)
		if _, err := o.device(t).EventBuffer.GetBufferedEvent(o.generation, other); err == nil || o.generation.Err() == nil {
			t.Errorf("GetBufferedEvent of another row's text = %v, generation %v; want an error and a cancelled generation", err, o.generation.Err())
		}
	})
}

func TestOutgoingEventIsSealedToo(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t))
	e := w.fence(t).device(t).EventBuffer
	if err := e.AddOutgoingEvent(t.Context(), otherPN, "3EB0AA", "wa", []byte("an outgoing text")); err != nil {
		t.Fatal(err)
	}
	var raw []byte
	if err := w.DB().QueryRow(t.Context(), `SELECT plaintext FROM whatsmeow_retry_buffer`).Scan(&raw); err != nil || string(raw) == "an outgoing text" {
		t.Errorf("stored text = %q, %v, want it sealed", raw, err)
	}
	for _, chat := range []types.JID{otherPN, otherLID} {
		format, got, err := e.GetOutgoingEvent(t.Context(), chat, otherPN, "3EB0AA")
		if err != nil || format != "wa" || string(got) != "an outgoing text" {
			t.Errorf("GetOutgoingEvent(%s) = %q, %q, %v", chat, format, got, err)
		}
	}
}
