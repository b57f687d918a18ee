package store_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

// draft is a message for a person, under a key of organization org-a unless that is "".
func (l *lane) draft(contact, key, holder string) *store.Acceptance {
	return &store.Acceptance{
		Message: fleet.Message{
			OrgID: l.org.ID, ProjectID: "prj_1", SessionID: l.sess.ID, ContactKey: contact, To: "+" + contact,
			ToJID: contact + "@s.whatsapp.net", Kind: "text", Text: "for " + contact,
		},
		TTL: fleet.DefaultTTL, Key: key, Holder: holder,
		Answer: func(m *fleet.Message) ([]byte, error) { return []byte("answer of " + m.ID), nil },
	}
}

func (l *lane) holdKey(key, holder string) store.IdempotencyClaim {
	l.t.Helper()
	c := store.IdempotencyClaim{Org: l.org.ID, Key: key, BodyHash: []byte("body"), Holder: holder, LockFor: fleet.DefaultTTL}
	if got, err := l.s.ClaimIdempotency(l.t.Context(), c); err != nil || got.State != store.IdempotencyMine {
		l.t.Fatalf("ClaimIdempotency(%s) = %+v, %v", key, got, err)
	}
	return c
}

func (l *lane) stored() map[fleet.MessageID]fleet.Message {
	l.t.Helper()
	page, _, err := l.s.ListMessages(l.t.Context(), store.MessageQuery{Org: l.org.ID, Limit: 100})
	if err != nil {
		l.t.Fatal(err)
	}
	all := map[fleet.MessageID]fleet.Message{}
	for _, m := range page {
		all[m.ID] = m
	}
	return all
}

func TestMessagesAcceptedTogetherAreStoredAsToldWithTheirKeys(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		claim := l.holdKey("order-1", "mine")
		all := []*store.Acceptance{l.draft("5511900000001", "", ""), l.draft("5511900000002", "order-1", "mine"), l.draft("5511900000001", "", "")}
		if err := store.AcceptTogether(t.Context(), s, all...); err != nil {
			t.Fatal(err)
		}
		stored := l.stored()
		for _, a := range all {
			if diff := cmp.Diff(stored[a.Message.ID], a.Message); diff != "" {
				t.Errorf("told something else than is stored (-stored +told):\n%s", diff)
			}
		}
		if len(stored) != 3 || all[0].Message.ConversationID != all[2].Message.ConversationID || all[0].Message.ConversationID == all[1].Message.ConversationID {
			t.Errorf("%d messages in conversations %s, %s, %s, want 3 in one conversation per person", len(stored),
				all[0].Message.ConversationID, all[1].Message.ConversationID, all[2].Message.ConversationID)
		}
		found, err := s.GetIdempotency(t.Context(), claim)
		if want := "answer of " + string(all[1].Message.ID); err != nil || found.State != store.IdempotencyDone || found.Status != 202 || string(found.Answer) != want {
			t.Errorf("GetIdempotency = %+v, %v, want done with 202 and %q", found, err, want)
		}
	})
}

func TestALostKeyLeavesOnlyItsOwnMessageOut(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		l.holdKey("order-1", "winner")
		l.holdKey("order-2", "mine")
		late, fine, free := l.draft("5511900000001", "order-1", "late"), l.draft("5511900000002", "order-2", "mine"), l.draft("5511900000003", "", "")
		if err := store.AcceptTogether(t.Context(), s, late, fine, free); err != nil {
			t.Fatal(err)
		}
		if !store.KeyLost(late) || store.KeyLost(fine) || store.KeyLost(free) {
			t.Errorf("lost: %v, %v, %v, want only the first", store.KeyLost(late), store.KeyLost(fine), store.KeyLost(free))
		}
		stored := l.stored()
		_, hasFine := stored[fine.Message.ID]
		_, hasFree := stored[free.Message.ID]
		if len(stored) != 2 || !hasFine || !hasFree {
			t.Errorf("%d messages stored, want the two whose keys were not lost", len(stored))
		}
		if err := s.Accept(t.Context(), l.draft("5511900000001", "order-1", "late")); !errors.Is(err, store.ErrIdempotencyLost) {
			t.Errorf("Accept under another's key = %v, want ErrIdempotencyLost", err)
		}
	})
}

func TestAMessageThatCanNotBeAcceptedFailsNoOther(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		poison := errors.New("no answer")
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				a := l.draft(fmt.Sprintf("55119%08d", i), "", "")
				if i%8 == 3 {
					a.Answer = func(*fleet.Message) ([]byte, error) { return nil, poison }
				}
				if err := s.Accept(t.Context(), a); errors.Is(err, poison) != (i%8 == 3) || err != nil && !errors.Is(err, poison) {
					t.Errorf("Accept of message %d = %v", i, err)
				}
			})
		}
		wg.Wait()
		if got := len(l.stored()); got != 35 {
			t.Errorf("%d messages stored, want the 35 that are not poison", got)
		}
	})
}

func TestSendersAreEachOrganizationsOwnInListOrder(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		for _, org := range []fleet.OrgID{"org-a", "org-b"} {
			newOrg(t, s, org)
			for range 2 {
				newSession(t, s, store.NewSession{Org: org})
			}
		}
		order := store.OrgChange{Order: []fleet.SessionSlug{"org-a-02", "org-a-01"}}
		if _, err := s.UpdateOrganization(t.Context(), "org-a", order); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				org := fleet.OrgID([]string{"org-a", "org-b", "org-c"}[i%3])
				got, err := s.Senders(t.Context(), org)
				var slugs []fleet.SessionSlug
				for _, v := range got.Sessions {
					slugs = append(slugs, v.Slug)
				}
				want := map[fleet.OrgID][]fleet.SessionSlug{"org-a": order.Order, "org-b": {"org-b-01", "org-b-02"}}[org]
				head := map[fleet.OrgID]fleet.SessionSlug{"org-a": "org-a-01", "org-b": "org-b-01"}[org]
				if diff := cmp.Diff(want, slugs); err != nil || diff != "" || got.Head != head {
					t.Errorf("Senders(%s) = %v with head %q, %v, want %v with head %q", org, slugs, got.Head, err, want, head)
				}
			})
		}
		wg.Wait()
	})
}
