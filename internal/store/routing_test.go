package store_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

// reserved is a draft that a ledger of this generation reserved for.
func (l *lane) reserved(contact, reservation string, generation int64, opened bool) *store.Acceptance {
	a := l.draft(contact, "", "")
	a.Message.Reservation, a.Message.Generation, a.Message.Opened = reservation, generation, opened
	return a
}

func ledgerRows(t *testing.T, s *store.Store) store.LedgerRows {
	t.Helper()
	var rows store.LedgerRows
	err := s.RebuildLedger(t.Context(), func(ctx context.Context, read func(context.Context) (store.LedgerRows, error)) (err error) {
		rows, err = read(ctx)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func TestAMessageReservedBeforeARebuildIsNotStoredAndItsKeyIsNotCompleted(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		before := ledgerRows(t, s).Generation
		after := ledgerRows(t, s).Generation
		if after <= before {
			t.Fatalf("generation %d after %d", after, before)
		}
		claim := l.holdKey("order-1", "mine")
		old := l.reserved("5511900000001", "r1", before, true)
		old.Key, old.Holder = "order-1", "mine"
		if err := s.Accept(t.Context(), old); !errors.Is(err, store.ErrReservedBefore) {
			t.Fatalf("Accept = %v, want ErrReservedBefore", err)
		}
		if got, err := s.GetIdempotency(t.Context(), claim); err != nil || got.State != store.IdempotencyMine && got.State != store.IdempotencyPending {
			t.Errorf("key is %v, %v, want it still held", got.State, err)
		}
		if chats, err := s.Chats(t.Context(), "5511900000001"); err != nil || len(chats) != 0 {
			t.Errorf("chats = %v, %v, want none: nothing was stored", chats, err)
		}
		old.Message.Generation = after
		if err := s.Accept(t.Context(), old); err != nil {
			t.Fatalf("Accept under the ledger's generation: %v", err)
		}
		if chats, err := s.Chats(t.Context(), "5511900000001"); err != nil || len(chats) != 1 || chats[0].FirstOutAt.IsZero() {
			t.Errorf("chats = %v, %v, want one that we opened", chats, err)
		}
	})
}

func TestLedgerRowsCountFramesOnceAndWaitingMessagesAsOutstanding(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		generation := ledgerRows(t, s).Generation
		for _, a := range []*store.Acceptance{
			l.reserved("5511900000001", "sent", generation, true),
			l.reserved("5511900000002", "on its way", generation, false),
			l.reserved("5511900000003", "waiting", generation, false),
			l.reserved("5511900000004", "cancelled", generation, true),
		} {
			if err := s.Accept(t.Context(), a); err != nil {
				t.Fatal(err)
			}
			switch a.Message.Reservation {
			case "sent":
				l.claim(a.Message.ID, fleet.AttemptSend)
				if err := s.RecordOutcome(t.Context(), l.term, store.Result{ID: a.Message.ID, Outcome: fleet.OutcomeSent}); err != nil {
					t.Fatal(err)
				}
			case "on its way":
				l.claim(a.Message.ID, fleet.AttemptSend)
			case "cancelled":
				if _, err := s.CancelMessage(t.Context(), "org-a", a.Message.ID); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := s.WriteIn(t.Context(), l.sess.ID, "5511900000009", time.Time{}); err != nil {
			t.Fatal(err)
		}
		rows := ledgerRows(t, s)
		want := store.LedgerRows{
			Frames:      []store.FrameRow{{Session: "org-a-01", Frames: 1, NewChats: 1}},
			Outstanding: []string{"on its way", "waiting"},
			Pins: []store.PinRow{
				{Org: "org-a", Key: "5511900000001", Session: "org-a-01"},
				{Org: "org-a", Key: "5511900000002", Session: "org-a-01"},
				{Org: "org-a", Key: "5511900000003", Session: "org-a-01"},
			},
			Backlog: map[fleet.ProjectID]int64{"prj_1": 2},
		}
		opts := []cmp.Option{
			cmpopts.IgnoreFields(store.LedgerRows{}, "Generation", "Now"), cmpopts.IgnoreFields(store.FrameRow{}, "At"), cmpopts.IgnoreFields(store.PinRow{}, "Until"),
			cmpopts.SortSlices(func(a, b string) bool { return a < b }), cmpopts.SortSlices(func(a, b store.PinRow) bool { return a.Key < b.Key }), cmpopts.EquateEmpty(),
		}
		if diff := cmp.Diff(want, rows, opts...); diff != "" {
			t.Errorf("LedgerRows (-want +got):\n%s", diff)
		}
		if age := rows.Now.Sub(rows.Frames[0].At); age < 0 || age > time.Minute {
			t.Errorf("frame at %s, now %s", rows.Frames[0].At, rows.Now)
		}
	})
}

func TestAReservationIsOwedOnceByAMessageThatEndedBeforeItsFrame(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		generation := ledgerRows(t, s).Generation
		a := l.reserved("5511900000001", "r1", generation, true)
		if err := s.Accept(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		take := func(want ...string) {
			t.Helper()
			owed, err := s.TakeOwed(t.Context(), "", 10)
			if diff := cmp.Diff(want, owed, cmpopts.EquateEmpty()); err != nil || diff != "" {
				t.Fatalf("TakeOwed: %v (-want +got):\n%s", err, diff)
			}
		}
		take()
		if _, err := s.CancelMessage(t.Context(), "org-a", a.Message.ID); err != nil {
			t.Fatal(err)
		}
		take("r1")
		take()
		chats, err := s.Chats(t.Context(), "5511900000001")
		if err != nil || len(chats) != 1 || !chats[0].FirstOutAt.IsZero() {
			t.Errorf("chats = %+v, %v, want the chat as if we had not written", chats, err)
		}
	})
}

func TestARampBeginsOnceForANumber(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		pair := func(l *lane, phone string) fleet.Session {
			t.Helper()
			if err := s.RecordLogin(t.Context(), l.term, store.Login{DeviceJID: phone + ":1@s.whatsapp.net", Phone: phone}); err != nil {
				t.Fatal(err)
			}
			if err := s.RecordPaired(t.Context(), l.term); err != nil {
				t.Fatal(err)
			}
			v, err := s.SessionByID(t.Context(), l.sess.ID)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		l := newLane(t, s, "org-a")
		first := pair(l, "5511900000001")
		if first.WarmupAt.IsZero() || !first.WarmupAt.Equal(first.PairedAt) {
			t.Errorf("ramp of a new number begins at %s, paired at %s", first.WarmupAt, first.PairedAt)
		}
		if again := pair(l, "5511900000001"); !again.WarmupAt.Equal(first.WarmupAt) {
			t.Errorf("ramp after a re-pair begins at %s, want %s", again.WarmupAt, first.WarmupAt)
		}
		if _, err := s.DeleteSession(t.Context(), first.Slug); err != nil {
			t.Fatal(err)
		}
		heir := newLane(t, s, "org-b")
		if got := pair(heir, "5511900000001"); !got.WarmupAt.Equal(first.WarmupAt) {
			t.Errorf("ramp of a number in a new session begins at %s, want %s", got.WarmupAt, first.WarmupAt)
		}
		warmed := newSession(t, s, store.NewSession{Org: "org-b", Warmed: true})
		if got := warmed.EffectiveBudget(time.Now()); got != fleet.DefaultBudget {
			t.Errorf("budget of a number that sent elsewhere = %+v, want all of it", got)
		}
	})
}

func TestDetachedSessionsLeaveTheListAndTheHeadMovesOn(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		newOrg(t, s, "org-b")
		for range 2 {
			newSession(t, s, store.NewSession{Org: "org-a"})
		}
		newSession(t, s, store.NewSession{Org: "org-b"})
		change := func(c store.OrgChange) error {
			_, err := s.UpdateOrganization(t.Context(), "org-a", c)
			return err
		}
		head := func(want fleet.SessionSlug) {
			t.Helper()
			if got, err := s.HeadSlug(t.Context(), "org-a"); err != nil || got != want {
				t.Errorf("head = %q, %v, want %q", got, err, want)
			}
		}
		if err := change(store.OrgChange{Order: []fleet.SessionSlug{"org-a-02", "org-a-01"}}); err != nil {
			t.Fatal(err)
		}
		head("org-a-01")
		if err := change(store.OrgChange{Remove: "org-a-01"}); err != nil {
			t.Fatal(err)
		}
		head("org-a-02")
		if err := change(store.OrgChange{Add: "org-a-01"}); err != nil {
			t.Fatal(err)
		}
		head("org-a-02")
		if err := change(store.OrgChange{Add: "org-b-01"}); !errors.Is(err, fleet.ErrConflict) {
			t.Errorf("adding another organization's session: %v, want a conflict", err)
		}
		if err := change(store.OrgChange{Remove: "org-b-01"}); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("removing another organization's session: %v, want not found", err)
		}
		for _, slug := range []fleet.SessionSlug{"org-a-02", "org-a-01"} {
			if err := change(store.OrgChange{Remove: slug}); err != nil {
				t.Fatal(err)
			}
		}
		head("org-a-01") // the last one, until there is another
	})
}
