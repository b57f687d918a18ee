package outbound

import (
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

func to(recipient string) func(*Request) { return func(r *Request) { r.To = recipient } }

func TestASendGoesToWhomTheOrganizationKnows(t *testing.T) {
	const long, short, lid = "5511900000077", "551100000077", "100000000000077"
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		first, err := w.o.Accept(t.Context(), request(to("+"+long)))
		if err != nil || !first.Message.Unresolved || first.Message.ToJID != long+"@s.whatsapp.net" {
			t.Fatalf("a stranger: %+v, %v, want accepted and to be asked for", first.Message, err)
		}
		met, err := s.Meet(t.Context(), "org-a", store.Sighting{Person: fleet.Person{Phone: short, LID: lid}, Asked: long, Present: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, form := range []string{long, short, lid + "@lid", string(met.ID)} {
			a, err := w.o.Accept(t.Context(), request(to(form)))
			if m := a.Message; err != nil || m.Unresolved || m.ToJID != short+"@s.whatsapp.net" || m.To != form ||
				m.ContactKey != first.Message.ContactKey || m.ConversationID != first.Message.ConversationID {
				t.Errorf("to %s: %+v, %v, want the same person where WhatsApp said", form, m, err)
			}
		}
		_, err = w.o.Accept(t.Context(), request(to(string(fleet.NewContactID()))))
		wantCode(t, err, "INVALID_RECIPIENT")
	})
}

func TestWhoOptedOutIsRefusedAndTheKeyKeepsThat(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		r := withKey("order-8")
		out := fleet.Recipient{Phone: "5511900000001"}
		for _, other := range []string{"+55 11 0000-0001", "5511900000001@c.us"} {
			if _, _, err := s.OptOut(t.Context(), "org-a", out, store.Decision{Stop: true, Source: fleet.OptOutManual}); err != nil {
				t.Fatal(err)
			}
			_, err := w.o.Accept(t.Context(), request(to(other)))
			wantCode(t, err, fleet.CodeOptedOut)
		}
		_, err := w.o.Accept(t.Context(), r)
		wantCode(t, err, fleet.CodeOptedOut)
		if _, _, err := s.OptOut(t.Context(), "org-a", out, store.Decision{Source: fleet.OptOutManual, At: time.Now().Add(time.Second)}); err != nil {
			t.Fatal(err)
		}
		a, err := w.o.Accept(t.Context(), r)
		wantCode(t, err, fleet.CodeOptedOut)
		if !a.Replayed {
			t.Error("the refusal under the key was not replayed")
		}
		if _, err := w.o.Accept(t.Context(), request()); err != nil {
			t.Errorf("after the opt-out ended: %v, want accepted", err)
		}
		w.wantMessages(1)
	})
}

func TestANumberKnownToHaveNoAccountIsRefusedForADay(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		w := newWorld(t, s)
		met, err := s.Meet(t.Context(), "org-a", store.Sighting{Asked: "5511900000078", Absent: true})
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.o.Accept(t.Context(), request(to("5511900000078")))
		wantCode(t, err, fleet.CodeNotOnWhatsApp)
		if _, err := s.DB().Exec(t.Context(), `UPDATE contacts SET checked_at=$2 WHERE id=$1`, met.ID, time.Now().Add(-fleet.AbsentFor-time.Minute).UnixMilli()); err != nil {
			t.Fatal(err)
		}
		if a, err := w.o.Accept(t.Context(), request(to("5511900000078"))); err != nil || !a.Message.Unresolved {
			t.Errorf("a day later: %+v, %v, want accepted and to be asked for again", a.Message, err)
		}
	})
}

func TestARegionReadsNumbersWithoutACountryCode(t *testing.T) {
	s := storetest.SQLite(t)
	w := newWorld(t, s)
	_, err := w.o.Accept(t.Context(), request(to("(011) 96123-4567")))
	wantCode(t, err, "INVALID_RECIPIENT")
	if _, err := s.UpdateOrganization(t.Context(), "org-a", store.OrgChange{People: func(p *fleet.PeopleRules) { p.Region = "BR" }}); err != nil {
		t.Fatal(err)
	}
	other, _ := open(t, s) // this process may remember for two seconds that there was none
	if a, err := other.Accept(t.Context(), request(to("(011) 96123-4567"))); err != nil || a.Message.ToJID != "5511961234567@s.whatsapp.net" {
		t.Errorf("Accept = %+v, %v, want it read as a number of Brazil", a.Message, err)
	}
}

func TestAnExplanationReadsRecipientsAsASendDoes(t *testing.T) {
	s := storetest.SQLite(t)
	w := newWorld(t, s)
	if _, err := s.UpdateOrganization(t.Context(), "org-a", store.OrgChange{People: func(p *fleet.PeopleRules) { p.Region = "BR" }}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.OptOut(t.Context(), "org-a", fleet.Recipient{Phone: "5511900000001"}, store.Decision{Stop: true, Source: fleet.OptOutManual}); err != nil {
		t.Fatal(err)
	}
	project := request().Project
	if e, err := w.o.Explain(t.Context(), "org-a", project, "(011) 96123-4567"); err != nil || e.Refusal != nil {
		t.Errorf("Explain of a national number = %v, %v, want that it would be sent", e.Refusal, err)
	}
	e, err := w.o.Explain(t.Context(), "org-a", project, "5511900000001@c.us")
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, e.Refusal, fleet.CodeOptedOut)
	_, err = w.o.Explain(t.Context(), "org-a", project, string(fleet.NewContactID()))
	wantCode(t, err, "INVALID_RECIPIENT")
}
