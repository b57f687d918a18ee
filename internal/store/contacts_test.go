package store_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

const (
	personPhone = "5511900000001"
	personShort = "551100000001" // the same line without its 9
	personLID   = "100000000000001"
)

func meet(t *testing.T, s *store.Store, g store.Sighting) store.Met {
	t.Helper()
	met, err := s.Meet(t.Context(), "org-a", g)
	if err != nil {
		t.Fatal(err)
	}
	return met
}

// known looks a recipient up as a send does; it must be there.
func known(t *testing.T, s *store.Store, to string) store.Known {
	t.Helper()
	r, err := fleet.ParseRecipient(to)
	if err != nil {
		t.Fatal(err)
	}
	k, err := s.Recipient(t.Context(), "org-a", r)
	if err != nil || k == nil {
		t.Fatalf("Recipient(%q) = %v, %v, want somebody", to, k, err)
	}
	return *k
}

func decide(t *testing.T, s *store.Store, k store.Known, d store.Decision) bool {
	t.Helper()
	changed, err := s.Decide(t.Context(), k, d)
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

func TestTwoContactsBecomeOneWhenWhatsAppTellsSo(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		byLID := meet(t, s, store.Sighting{Person: fleet.Person{LID: personLID}, Present: true})
		byPhone := meet(t, s, store.Sighting{Person: fleet.Person{Phone: personShort}})
		if byLID.ID == byPhone.ID || byLID.JID != personLID+"@lid" || byPhone.JID != "" {
			t.Fatalf("before anything is told: %+v and %+v, want two, and an address of the one that wrote only", byLID, byPhone)
		}
		mustSQL(t, s, `UPDATE contacts SET created_at = created_at - 1 WHERE id = $1`, byLID.ID) // both may be of one millisecond
		first := l.accept(byPhone.Key, "first")
		second := l.accept(byLID.Key, "second")
		if first.ConversationID == second.ConversationID {
			t.Fatalf("both messages are in %s, want two conversations", first.ConversationID)
		}
		if !decide(t, s, byLID.Known, store.Decision{Stop: true, Source: fleet.OptOutKeyword, At: time.Now()}) {
			t.Error("the first STOP changed nothing")
		}

		for key, ago := range map[string]time.Duration{byLID.Key: 2 * time.Hour, byPhone.Key: time.Hour} {
			if _, err := s.WriteIn(t.Context(), l.sess.ID, key, time.Now().Add(-ago)); err != nil {
				t.Fatal(err)
			}
		}

		met := meet(t, s, store.Sighting{Person: fleet.Person{Phone: personPhone, LID: personLID}, Present: true})
		chats, err := s.Chats(t.Context(), personPhone)
		if err != nil || len(chats) != 1 || time.Since(chats[0].FirstInAt) < 110*time.Minute || time.Since(chats[0].LastInAt) > 70*time.Minute {
			t.Errorf("chats = %+v, %v, want one with the earlier first and the later last time", chats, err)
		}
		if old, err := s.Chats(t.Context(), byLID.Key); err != nil || len(old) != 0 {
			t.Errorf("chats under the LID = %+v, %v, want none", old, err)
		}
		if met.ID != byLID.ID || met.ConversationID != byLID.ConversationID || met.Key != personPhone || met.JID != personPhone+"@s.whatsapp.net" ||
			met.Phone != personPhone || met.LID != personLID || !met.OptedOut || !slices.Equal(met.Merged, []string{"lid:" + personLID}) {
			t.Errorf("Meet = %+v, want the older contact under the number, opted out, with the pin of the LID to be moved", met)
		}
		for _, to := range []string{personPhone, personShort, "+" + personPhone, personLID + "@lid", string(byLID.ID), string(byPhone.ID)} {
			if k := known(t, s, to); k.ID != met.ID || !k.OptedOut {
				t.Errorf("Recipient(%q) = %s, opted out %v, want %s, opted out", to, k.ID, k.OptedOut, met.ID)
			}
		}
		for _, m := range []fleet.Message{first, second} {
			if got := l.get(m.ID); got.ContactKey != personPhone || got.ConversationID != met.ConversationID {
				t.Errorf("message %q belongs to %s in %s, want %s in %s", m.Text, got.ContactKey, got.ConversationID, personPhone, met.ConversationID)
			}
		}
		if page, _, err := s.ListMessages(t.Context(), store.MessageQuery{Org: "org-a", ContactKey: "lid:" + personLID}); err != nil || len(page) != 2 {
			t.Errorf("ListMessages of the person by LID = %d messages, %v, want both", len(page), err)
		}
		if again := meet(t, s, store.Sighting{Person: fleet.Person{Phone: personPhone, LID: personLID}, Present: true}); len(again.Merged) != 0 || again.ID != met.ID {
			t.Errorf("the second time Meet = %+v, want the same and no news", again)
		}
		if _, err := s.GetContact(t.Context(), "org-b", met.ID); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("GetContact of another organization = %v, want ErrNotFound", err)
		}
	})
}

func TestWhoseALIDIsIsLearntInEveryOrganization(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		a := newLane(t, s, "org-a")
		newOrg(t, s, "org-b")
		b, err := s.CreateSession(t.Context(), store.NewSession{Org: "org-b"})
		if err != nil {
			t.Fatal(err)
		}
		byLID := meet(t, s, store.Sighting{Person: fleet.Person{LID: personLID}, Present: true})
		decide(t, s, byLID.Known, store.Decision{Stop: true, Source: fleet.OptOutKeyword, At: time.Now()})
		byPhone := meet(t, s, store.Sighting{Person: fleet.Person{Phone: personPhone}})
		mustSQL(t, s, `UPDATE contacts SET created_at = created_at - 1 WHERE id = $1`, byLID.ID)
		// In org-b nobody knows the person, who gave its number a token.
		for _, id := range []fleet.SessionID{a.sess.ID, b.ID} {
			token := store.Token{Person: fleet.Person{LID: personLID}, At: time.Now()}
			if err := s.KeepTokens(t.Context(), id, []store.Token{token, {Person: token.Person, At: token.At.Add(-time.Hour)}}); err != nil {
				t.Fatal(err)
			}
		}
		met, err := s.Learn(t.Context(), []fleet.Person{{Phone: personShort, LID: personLID}, {Phone: "5511900000399", LID: "100000000000399"}})
		if err != nil || len(met) != 1 || met[0].OrgID != "org-a" || met[0].ID != byLID.ID || !slices.Equal(met[0].Merged, []string{"lid:" + personLID}) {
			t.Fatalf("Learn = %+v, %v, want the older contact of org-a under the number", met, err)
		}
		if k := known(t, s, personPhone); k.ID != byLID.ID || !k.OptedOut || known(t, s, string(byPhone.ID)).ID != byLID.ID {
			t.Errorf("the number leads to %+v, want the older contact, opted out", k)
		}
		chats, err := s.Chats(t.Context(), personPhone)
		if err != nil || len(chats) != 2 || time.Since(chats[0].TokenAt) > time.Minute || time.Since(chats[1].TokenAt) > time.Minute {
			t.Errorf("chats under the number = %+v, %v, want those of both organizations with the later token", chats, err)
		}
		if left, err := s.Chats(t.Context(), "lid:"+personLID); err != nil || len(left) != 0 {
			t.Errorf("chats under the LID = %+v, %v, want none", left, err)
		}
		if again, err := s.Learn(t.Context(), []fleet.Person{{Phone: personShort, LID: personLID}}); err != nil || len(again) != 0 {
			t.Errorf("the second time Learn = %+v, %v, want no news", again, err)
		}
	})
}

func TestChatsAreForgottenWhenNobodyHasUsedThemForLong(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		now := time.Now()
		old, recent := now.Add(-400*24*time.Hour), now.Add(-24*time.Hour)
		for key, at := range map[string][3]time.Time{ // out, in, token
			"5511900000301": {old, old, old}, "5511900000302": {recent, old, old}, "5511900000303": {{}, recent, {}},
			"5511900000304": {old, {}, recent}, "5511900000305": {{}, old, {}}, "5511900000306": {{}, {}, old},
		} {
			ms := func(t time.Time) int64 {
				if t.IsZero() {
					return 0
				}
				return t.UnixMilli()
			}
			if _, err := s.DB().Exec(t.Context(), `INSERT INTO chats (contact_key, session_id, first_out_at, last_out_at, first_in_at, last_in_at, token_at)
				VALUES ($1, $2, $3, $3, $4, $4, $5)`, key, l.sess.ID, ms(at[0]), ms(at[1]), ms(at[2])); err != nil {
				t.Fatal(err)
			}
		}
		before := now.Add(-365 * 24 * time.Hour)
		for _, want := range []int{2, 1, 0} {
			if n, err := s.PurgeChats(t.Context(), before, 2); err != nil || n != want {
				t.Fatalf("PurgeChats = %d, %v, want %d", n, err, want)
			}
		}
		for key, want := range map[string]int{"5511900000301": 0, "5511900000302": 1, "5511900000303": 1, "5511900000304": 1, "5511900000305": 0, "5511900000306": 0} {
			if chats, err := s.Chats(t.Context(), key); err != nil || len(chats) != want {
				t.Errorf("chats of %s = %+v, %v, want %d", key, chats, err, want)
			}
		}
	})
}

func TestAContactIsMadeOnceHoweverManyMeetIt(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		sights := []store.Sighting{
			{Person: fleet.Person{Phone: personPhone, LID: personLID}, Present: true},
			{Person: fleet.Person{LID: personLID}},
			{Person: fleet.Person{Phone: personShort}},
		}
		var wg sync.WaitGroup
		for i := range 24 {
			wg.Go(func() {
				// Two that merge at once may have to be tried again: the one that waited too long is told so.
				for {
					_, err := s.Meet(t.Context(), "org-a", sights[i%3])
					if err == nil {
						return
					}
					if !errors.Is(err, fleet.ErrUnavailable) {
						t.Errorf("Meet = %v", err)
						return
					}
				}
			})
		}
		wg.Wait()
		met := meet(t, s, sights[0])
		for _, to := range []string{personPhone, personShort, personLID + "@lid"} {
			if k := known(t, s, to); k.ID != met.ID {
				t.Errorf("Recipient(%q) = %s, want %s", to, k.ID, met.ID)
			}
		}
		var n int
		if err := s.DB().QueryRow(t.Context(), `SELECT count(*) FROM contacts`).Scan(&n); err != nil || n != 1 {
			t.Errorf("%d contacts, %v, want 1", n, err)
		}
	})
}

func TestTheLaterDecisionCountsByWhatsAppsTime(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(1_790_000_000+s, 0) }
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		meet(t, s, store.Sighting{Person: fleet.Person{Phone: personPhone}})
		for _, step := range []struct {
			name   string
			stop   bool
			at     time.Time
			change bool
			out    bool
		}{
			{"a START before any STOP is remembered", false, at(10), false, false},
			{"an old STOP that comes late does not count", true, at(5), false, false},
			{"a STOP counts", true, at(20), true, true},
			{"a second one changes nothing", true, at(30), false, true},
			{"a START older than that does not count", false, at(25), false, true},
			{"a START counts", false, at(40), true, false},
			{"an operator's word in the middle of a second", false, at(50).Add(700 * time.Millisecond), false, false},
			{"a STOP of the same second beats it", true, at(50), true, true},
		} {
			changed := decide(t, s, known(t, s, personPhone), store.Decision{Stop: step.stop, At: step.at, Source: fleet.OptOutKeyword})
			if out := known(t, s, personShort).OptedOut; changed != step.change || out != step.out {
				t.Errorf("%s: changed %v, opted out %v, want %v, %v", step.name, changed, out, step.change, step.out)
			}
		}
	})
}

func TestNoFrameIsClaimedForWhoOptedOut(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		queued, other := l.accept(personPhone, "queued"), l.accept("5511900000002", "other")
		exempt, err := s.CreateMessage(t.Context(), fleet.Message{
			OrgID: "org-a", ProjectID: "prj_1", SessionID: l.sess.ID, ContactKey: personPhone, To: personPhone,
			ToJID: personPhone + "@s.whatsapp.net", Kind: "text", Text: "You will hear no more from us.", Exempt: true,
		}, fleet.DefaultTTL)
		if err != nil {
			t.Fatal(err)
		}
		// The STOP came from a LID that nobody knew to be the person's.
		decide(t, s, meet(t, s, store.Sighting{Person: fleet.Person{LID: personLID}}).Known, store.Decision{Stop: true, Source: fleet.OptOutKeyword, Keyword: "STOP"})
		if did, err := s.Suppress(t.Context(), l.term, queued.ID); did || err != nil {
			t.Fatalf("Suppress = %v, %v of somebody who did not opt out", did, err)
		}
		meet(t, s, store.Sighting{Person: fleet.Person{Phone: personPhone, LID: personLID}})

		l.wantNext(&queued)
		if ok, err := l.tryClaim(l.term, queued.ID, fleet.AttemptSend); ok || err != nil {
			t.Fatalf("claim = %v, %v for who opted out, want refused", ok, err)
		}
		if did, err := s.Suppress(t.Context(), l.term, queued.ID); !did || err != nil {
			t.Fatalf("Suppress = %v, %v, want done", did, err)
		}
		if m := l.wantState(queued.ID, fleet.StatusSuppressed, fleet.OutcomeNone); m.ErrorCode != fleet.CodeOptedOut || m.Attempts != 0 {
			t.Errorf("suppressed message = %+v, want %s and no attempt", m, fleet.CodeOptedOut)
		}
		l.wantAttempts(queued.ID)
		if kinds := eventKinds(t, s, queued.ID); !slices.Equal(kinds, []fleet.EventKind{fleet.EventMessageStatus, fleet.EventMessageSuppressed}) {
			t.Errorf("events %v, want message.status and message.suppressed", kinds)
		}
		l.claim(other.ID, fleet.AttemptSend)
		l.claim(exempt.ID, fleet.AttemptSend)

		page, next, err := s.ListOptOuts(t.Context(), "org-a", "", 10)
		if err != nil || next != "" || len(page) != 1 || page[0].Phone != personPhone || page[0].LID != personLID || page[0].Keyword != "STOP" {
			t.Errorf("ListOptOuts = %+v, %q, %v, want the person once, by number and LID", page, next, err)
		}
	})
}

func TestARepeatToWhoOptedOutIsNotSent(t *testing.T) {
	now := time.Now()
	for _, name := range []string{"sqlite", "postgres"} {
		t.Run(name, func(t *testing.T) {
			at := now
			var url string
			if name == "sqlite" {
				url = storetest.SQLiteURL(t)
			} else {
				url = storetest.PostgresURL(t)
			}
			s := storetest.Open(t, url, func(o *store.Options) { o.Now = func() time.Time { return at } })
			l := newLane(t, s, "org-a")
			m := l.accept(personPhone, "hello")
			l.send(m, fleet.OutcomeUnknown)
			decide(t, s, known(t, s, personPhone), store.Decision{Stop: true, Source: fleet.OptOutManual})
			at = at.Add(fleet.RepeatAfter[0] + time.Second)
			l.wantNext(&m)
			if ok, err := l.tryClaim(l.term, m.ID, fleet.AttemptRepeat); ok || err != nil {
				t.Fatalf("claim of the repeat = %v, %v, want refused", ok, err)
			}
			if did, err := s.Suppress(t.Context(), l.term, m.ID); !did || err != nil {
				t.Fatalf("Suppress = %v, %v, want done", did, err)
			}
			l.wantState(m.ID, fleet.StatusSending, fleet.OutcomeUnknown)
			l.wantNext(nil)
		})
	}
}

// What a message had reserved is given back when it ends before any frame, whatever ended it.
func TestWhatNeverLeftIsOwedToTheLedger(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		reserved := func(phone string) fleet.Message {
			m, err := s.CreateMessage(t.Context(), fleet.Message{
				OrgID: "org-a", ProjectID: "prj_1", SessionID: l.sess.ID, ContactKey: phone, To: phone, ToJID: phone + "@s.whatsapp.net",
				Kind: "text", Text: "hello", Unresolved: true, Reservation: "of " + phone, Generation: 1,
			}, fleet.DefaultTTL)
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		out, nobody, fine := reserved(personPhone), reserved("5511900000002"), reserved("5511900000003")
		if people, err := s.Unresolved(t.Context(), l.sess.ID, "", 2); err != nil || len(people) != 2 || people[0].Phone != personPhone {
			t.Errorf("Unresolved = %v, %v, want the first two", people, err)
		}
		decide(t, s, known(t, s, personPhone), store.Decision{Stop: true, Source: fleet.OptOutManual})
		_, err := s.Resolved(t.Context(), l.term, "org-a", []store.Sighting{
			{Person: fleet.Person{Phone: "5511900000002"}, Asked: "5511900000002", Absent: true},
			{Person: fleet.Person{Phone: "5511900000003", LID: "100000000000003"}, Asked: "5511900000003", Present: true},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Postpone(t.Context(), l.term, []fleet.Person{{Phone: personPhone}}, time.Hour); err != nil {
			t.Fatal(err)
		}
		if m := l.get(out.ID); !m.Unresolved || time.Until(m.DueAt) < 50*time.Minute {
			t.Errorf("postponed message = %+v, want it due in an hour", m)
		}
		if did, err := s.Suppress(t.Context(), l.term, out.ID); !did || err != nil {
			t.Fatalf("Suppress = %v, %v", did, err)
		}
		if m := l.wantState(nobody.ID, fleet.StatusFailed, fleet.OutcomeNone); m.ErrorCode != fleet.CodeNotOnWhatsApp {
			t.Errorf("message to nobody = %+v, want %s", m, fleet.CodeNotOnWhatsApp)
		}
		if m := l.get(fine.ID); m.Unresolved || m.Status != fleet.StatusQueued {
			t.Errorf("message to somebody = %+v, want it to go", m)
		}
		parked, err := s.CreateMessage(t.Context(), fleet.Message{
			OrgID: "org-a", ProjectID: "prj_1", SessionID: l.sess.ID, ContactKey: personPhone, To: personPhone, ToJID: personPhone + "@s.whatsapp.net",
			Kind: "text", Text: "hello", Parked: true,
		}, fleet.DefaultTTL)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := s.SuppressParked(t.Context(), 10); n != 1 || err != nil {
			t.Errorf("SuppressParked = %d, %v, want 1", n, err)
		}
		l.wantState(parked.ID, fleet.StatusSuppressed, fleet.OutcomeNone)
		owed, err := s.TakeOwed(t.Context(), "", 10)
		if err != nil || !slices.Equal(owed, []string{out.Reservation, nobody.Reservation}) {
			t.Errorf("TakeOwed = %q, %v, want those of the two that never left", owed, err)
		}
	})
}

// eventKinds are the kinds of the events that a message has had, in order.
func eventKinds(t *testing.T, s *store.Store, id fleet.MessageID) []fleet.EventKind {
	t.Helper()
	rows, err := s.DB().Query(t.Context(), `SELECT kind FROM events WHERE data LIKE '%' || $1 || '%' ORDER BY n`, string(id))
	if err != nil {
		t.Fatal(err)
	}
	var out []fleet.EventKind
	for rows.Next() {
		var kind fleet.EventKind
		if err := rows.Scan(&kind); err != nil {
			t.Fatal(err)
		}
		out = append(out, kind)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		t.Fatal(err)
	}
	return out
}
