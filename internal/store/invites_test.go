package store_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

func newInvite(t *testing.T, s *store.Store, org fleet.OrgID, slots int) fleet.Invite {
	t.Helper()
	id := fleet.NewInviteID()
	i, err := s.InsertInvite(t.Context(), fleet.Invite{ID: id, OrgID: org, MaxSessions: slots, LookupHash: []byte(id), VerifyHash: "v"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func pairQR() fleet.Command {
	return fleet.Command{Kind: fleet.CommandPair, Payload: `{"method":"qr"}`}
}

func addNumber(t *testing.T, s *store.Store, i fleet.InviteID) fleet.Session {
	t.Helper()
	v, err := s.AddThroughInvite(t.Context(), i, pairQR())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func inviteUsed(t *testing.T, s *store.Store, id fleet.InviteID) int {
	t.Helper()
	list, err := s.ListInvites(t.Context(), store.InviteQuery{Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		if i.ID == id {
			return i.Used
		}
	}
	t.Fatalf("no invite %s", id)
	return 0
}

func wantCode(t *testing.T, what string, err error, code string) {
	t.Helper()
	if coded, ok := errors.AsType[*fleet.CodedError](err); !ok || coded.Code != code {
		t.Errorf("%s = %v, want %s", what, err, code)
	}
}

func TestALinkThatNobodyUsesLeavesNothingBehind(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		i := newInvite(t, s, "org-a", 2)
		if list, err := s.OrgSessions(t.Context(), "org-a"); err != nil || len(list) != 0 {
			t.Errorf("sessions after minting = %v, %v, want none", slugs(list), err)
		}
		first, second := addNumber(t, s, i.ID), addNumber(t, s, i.ID)
		if diff := cmp.Diff([]fleet.SessionSlug{"org-a-01", "org-a-02"}, []fleet.SessionSlug{first.Slug, second.Slug}); diff != "" {
			t.Errorf("sessions (-want +got):\n%s", diff)
		}
		if first.InviteID != i.ID {
			t.Errorf("the session's invite = %q, want %q", first.InviteID, i.ID)
		}
		if _, err := s.InsertInvite(t.Context(), fleet.Invite{ID: fleet.NewInviteID(), OrgID: "org-z", MaxSessions: 1, LookupHash: []byte("z")}, time.Hour); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("InsertInvite for an unknown organization = %v, want ErrNotFound", err)
		}
	})
}

func TestTheLastSlotOfALinkIsTakenOnceHoweverManyPressAtOnce(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		i := newInvite(t, s, "org-a", 2)
		addNumber(t, s, i.ID)
		var wg sync.WaitGroup
		var mu sync.Mutex
		won := 0
		for range 8 {
			wg.Go(func() {
				_, err := s.AddThroughInvite(context.WithoutCancel(t.Context()), i.ID, pairQR())
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won++
					return
				}
				wantCode(t, "AddThroughInvite beyond the cap", err, "INVITE_FULL")
			})
		}
		wg.Wait()
		if won != 1 {
			t.Errorf("%d presses took the last slot, want 1", won)
		}
		// Who lost the race left nothing: no session, no command, no hole in the numbers.
		list, err := s.OrgSessions(t.Context(), "org-a")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]fleet.SessionSlug{"org-a-01", "org-a-02"}, slugs(list)); diff != "" {
			t.Errorf("sessions (-want +got):\n%s", diff)
		}
		if got := inviteUsed(t, s, i.ID); got != 2 {
			t.Errorf("used = %d, want 2", got)
		}
	})
}

func TestASlotComesBackExactlyWhenAnAttemptCameToNothing(t *testing.T) {
	const phone = "5511900000001"
	login := store.Login{DeviceJID: phone + ":1@s.whatsapp.net", Phone: phone}
	show := func(ends time.Duration) func(t *testing.T, s *store.Store, term fleet.Term) {
		return func(t *testing.T, s *store.Store, term fleet.Term) {
			t.Helper()
			cmds := claimCommands(t, s, term, 1)
			p := fleet.Pairing{Method: fleet.PairQR, QR: "2@x", ExpiresAt: time.Now().Add(time.Minute), EndsAt: time.Now().Add(ends)}
			if err := s.RecordPairing(t.Context(), term, 1, p); err != nil {
				t.Fatal(err)
			}
			if err := s.FinishCommand(t.Context(), term, cmds[0].ID, fleet.CommandDone, "{}", "", ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	observe := func(state fleet.Observed, reason string) func(t *testing.T, s *store.Store, term fleet.Term) {
		return func(t *testing.T, s *store.Store, term fleet.Term) {
			t.Helper()
			if _, err := s.RecordObserved(t.Context(), term, store.Observation{State: state, Reason: reason}); err != nil {
				t.Fatal(err)
			}
		}
	}
	linked := func(t *testing.T, s *store.Store, term fleet.Term) {
		t.Helper()
		if err := s.RecordLogin(t.Context(), term, login); err != nil {
			t.Fatal(err)
		}
	}
	paired := func(t *testing.T, s *store.Store, term fleet.Term) {
		t.Helper()
		if err := s.RecordPaired(t.Context(), term); err != nil {
			t.Fatal(err)
		}
	}
	revoked := func(t *testing.T, s *store.Store, term fleet.Term) {
		t.Helper()
		if _, err := s.RevokeDevice(t.Context(), term.SessionID, login.DeviceJID); err != nil {
			t.Fatal(err)
		}
	}
	late := func(t *testing.T, s *store.Store, term fleet.Term) {
		t.Helper()
		execSQL(t, s, `UPDATE commands SET expires_at = 1 WHERE session_id = $1`, term.SessionID)
	}
	dead := func(t *testing.T, s *store.Store, term fleet.Term) {
		t.Helper()
		expire(t, s, term.SessionID)
	}
	type step = func(t *testing.T, s *store.Store, term fleet.Term)
	tests := []struct {
		name  string
		steps []step
		want  fleet.InviteEnd // "" = it keeps the slot
	}{
		{"nobody has taken it up yet", nil, ""},
		{"a code is shown", []step{show(time.Minute)}, ""},
		{"nobody takes it up", []step{late}, fleet.InviteEndUnavailable},
		{"the codes ran out", []step{show(time.Minute), observe(fleet.ObservedPairingExpired, "pair_expired")}, fleet.InviteEndExpired},
		{"the number is another session's", []step{show(time.Minute), observe(fleet.ObservedNeedsPairing, fleet.ReasonNumberInUse)}, fleet.InviteEndNumberInUse},
		{"WhatsApp wants a passkey", []step{show(time.Minute), observe(fleet.ObservedNeedsPairing, fleet.ReasonPasskey)}, fleet.InviteEndPasskey},
		{"WhatsApp refuses", []step{show(time.Minute), observe(fleet.ObservedNeedsPairing, "pair_failed")}, fleet.InviteEndFailed},
		{"its worker is dead", []step{show(time.Minute), dead}, fleet.InviteEndInterrupted},
		{"its time passed and nobody said so", []step{show(-time.Second)}, fleet.InviteEndInterrupted},
		{"it is being linked", []step{show(time.Minute), linked, observe(fleet.ObservedConnecting, "")}, ""},
		{"it is linked and its worker dies", []step{show(time.Minute), linked, dead}, ""},
		{"it was unlinked before it was complete", []step{show(time.Minute), linked, revoked, observe(fleet.ObservedLoggedOut, "logged_out")}, fleet.InviteEndFailed},
		{"it is linked", []step{show(time.Minute), linked, paired, observe(fleet.ObservedConnected, "")}, ""},
		{"it was linked and is logged out later", []step{show(time.Minute), linked, paired, revoked, observe(fleet.ObservedLoggedOut, "logged_out")}, ""},
	}
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		for _, tt := range tests {
			i := newInvite(t, s, "org-a", 1)
			v := addNumber(t, s, i.ID)
			term := claim(t, s, "w1", 10)[0]
			for _, step := range tt.steps {
				step(t, s, term)
			}
			n, err := s.InviteNumber(t.Context(), i.ID, v.Slug)
			if err != nil || n.Over != (tt.want != "") {
				t.Errorf("%s: InviteNumber says over = %v, %v, want %v", tt.name, n.Over, err, tt.want != "")
			}
			for range 2 { // the second time there is nothing left to do
				if _, err := s.ReleaseInviteSlots(t.Context(), "", 100); err != nil {
					t.Fatal(err)
				}
			}
			used, desired := 1, fleet.DesiredRunning
			if tt.want != "" {
				used, desired = 0, fleet.DesiredDeleted
			}
			if n, err = s.InviteNumber(t.Context(), i.ID, v.Slug); err != nil || n.End != tt.want || n.Desired != desired || n.Over {
				t.Errorf("%s: after the release it is %s, %q, over %v, %v, want %s, %q", tt.name, n.Desired, n.End, n.Over, err, desired, tt.want)
			}
			if got := inviteUsed(t, s, i.ID); got != used {
				t.Errorf("%s: used = %d, want %d", tt.name, got, used)
			}
			if tt.want != "" {
				addNumber(t, s, i.ID) // the slot is free again
			}
			execSQL(t, s, `UPDATE sessions SET desired = 'deleted'`)
		}
	})
}

func TestARevokedLinkEndsWhatItBeganAndKeepsWhatItLinked(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		i := newInvite(t, s, "org-a", 3)
		linked, open := addNumber(t, s, i.ID), addNumber(t, s, i.ID)
		execSQL(t, s, `UPDATE sessions SET paired_at = 1, device_jid = 'x' WHERE id = $1`, linked.ID)
		out, ended, err := s.RevokeInvite(t.Context(), i.ID)
		if err != nil || out.State() != fleet.InviteRevoked || out.Used != 2 || len(ended) != 1 || ended[0].ID != open.ID {
			t.Errorf("RevokeInvite = %s used %d, ended %v, %v, want revoked and only %s ended", out.State(), out.Used, slugs(ended), err, open.Slug)
		}
		if got := inviteUsed(t, s, i.ID); got != 1 {
			t.Errorf("used = %d, want 1", got)
		}
		if _, err := s.AddThroughInvite(t.Context(), i.ID, pairQR()); err == nil {
			t.Error("a revoked link adds numbers")
		} else {
			wantCode(t, "AddThroughInvite", err, "INVITE_OVER")
		}
		if again, ended, err := s.RevokeInvite(t.Context(), i.ID); err != nil || len(ended) != 0 || !again.RevokedAt.Equal(out.RevokedAt) {
			t.Errorf("RevokeInvite again = %v, %v, %v, want no change", again, ended, err)
		}
		for _, id := range []fleet.InviteID{"", "%", "*", "inv_unknown"} {
			if _, _, err := s.RevokeInvite(t.Context(), id); !errors.Is(err, fleet.ErrNotFound) {
				t.Errorf("RevokeInvite(%q) = %v, want ErrNotFound", id, err)
			}
		}
	})
}

func TestAnExpiredLinkAddsNothing(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		i := newInvite(t, s, "org-a", 1)
		execSQL(t, s, `UPDATE pairing_invites SET expires_at = 1 WHERE id = $1`, i.ID)
		_, err := s.AddThroughInvite(t.Context(), i.ID, pairQR())
		wantCode(t, "AddThroughInvite", err, "INVITE_OVER")
		list, err := s.InvitesByLookup(t.Context(), [][]byte{[]byte("other"), []byte(i.ID)})
		if err != nil || len(list) != 1 || list[0].State() != fleet.InviteExpired {
			t.Errorf("InvitesByLookup = %v, %v, want the expired one", list, err)
		}
	})
}

func TestALinkReachesItsOwnNumbersOnly(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		mine, other := newInvite(t, s, "org-a", 2), newInvite(t, s, "org-a", 2)
		v := addNumber(t, s, mine.ID)
		byHand := newSession(t, s, store.NewSession{Org: "org-a"})
		for _, slug := range []fleet.SessionSlug{v.Slug, byHand.Slug, "", "%"} {
			if _, err := s.InviteNumber(t.Context(), other.ID, slug); !errors.Is(err, fleet.ErrNotFound) {
				t.Errorf("InviteNumber(%q) of another link = %v, want ErrNotFound", slug, err)
			}
			if _, err := s.PairThroughInvite(t.Context(), other.ID, slug, pairQR()); !errors.Is(err, fleet.ErrNotFound) {
				t.Errorf("PairThroughInvite(%q) of another link = %v, want ErrNotFound", slug, err)
			}
			if _, err := s.CancelThroughInvite(t.Context(), other.ID, slug); !errors.Is(err, fleet.ErrNotFound) {
				t.Errorf("CancelThroughInvite(%q) of another link = %v, want ErrNotFound", slug, err)
			}
		}
		if list, err := s.InviteNumbers(t.Context(), mine.ID); err != nil || len(list) != 1 || list[0].Slug != v.Slug || list[0].Pair.Status != fleet.CommandPending {
			t.Errorf("InviteNumbers = %v, %v, want %s with its command", list, err, v.Slug)
		}
		if _, err := s.CancelThroughInvite(t.Context(), mine.ID, v.Slug); err != nil {
			t.Fatal(err)
		}
		if got := inviteUsed(t, s, mine.ID); got != 0 {
			t.Errorf("used after cancelling = %d, want 0", got)
		}
		if _, err := s.PairThroughInvite(t.Context(), mine.ID, v.Slug, pairQR()); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("PairThroughInvite of a cancelled one = %v, want ErrNotFound", err)
		}
	})
}

func TestANumberThatWasUnlinkedIsLinkedAgainWithoutAnotherSlot(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		i := newInvite(t, s, "org-a", 1)
		v := addNumber(t, s, i.ID)
		execSQL(t, s, `UPDATE sessions SET paired_at = 1, device_jid = 'x', phone = '5511900000001' WHERE id = $1`, v.ID)
		_, err := s.PairThroughInvite(t.Context(), i.ID, v.Slug, pairQR())
		wantCode(t, "PairThroughInvite of a linked number", err, "ALREADY_PAIRED")
		if _, err := s.CancelThroughInvite(t.Context(), i.ID, v.Slug); err != nil {
			t.Fatal(err)
		}
		execSQL(t, s, `UPDATE sessions SET revoked_at = 2 WHERE id = $1`, v.ID)
		if _, err := s.PairThroughInvite(t.Context(), i.ID, v.Slug, pairQR()); err != nil {
			t.Errorf("PairThroughInvite of an unlinked number = %v", err)
		}
		if got := inviteUsed(t, s, i.ID); got != 1 {
			t.Errorf("used = %d, want 1", got)
		}
	})
}
