package inbound_test

import (
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

func TestAKeywordOptsOutOnceAndIsToldLikeAnyMessage(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		term := owned(t, s, "org-a")
		rules := fleet.PeopleRules{Confirmation: "You will hear no more from us."}
		if _, err := s.UpdateOrganization(t.Context(), "org-a", store.OrgChange{People: func(p *fleet.PeopleRules) { *p = rules }}); err != nil {
			t.Fatal(err)
		}
		h := handler(t, s, bus.NewLocal())
		sent := time.UnixMilli(1_790_000_000_000).UTC()
		for _, step := range []struct {
			name, kind, text string
			said             fleet.Consent
			out              bool
			confirmations    int
		}{
			{"a sentence with the word in it", fleet.KindText, "please stop by at 5", fleet.ConsentNone, false, 0},
			{"a caption", fleet.KindImage, "STOP", fleet.ConsentNone, false, 0},
			{"an edit", fleet.KindEdited, "STOP", fleet.ConsentNone, false, 0},
			{"a reaction", fleet.KindReaction, "STOP", fleet.ConsentNone, false, 0},
			{"the keyword", fleet.KindText, " Stop! ", fleet.ConsentStop, true, 1},
			{"a second time", fleet.KindText, "PARAR", fleet.ConsentStop, true, 1},
			{"START", fleet.KindText, "start", fleet.ConsentStart, false, 1},
			{"after that it is confirmed again", fleet.KindText, "STOP", fleet.ConsentStop, true, 2},
		} {
			sent = sent.Add(time.Minute)
			m := hello()
			m.WAID, m.Kind, m.Text, m.SentAt = step.name, step.kind, step.text, sent
			for range 2 { // WhatsApp may deliver twice
				if err := h.Handle(t.Context(), term, "org-a", m); err != nil {
					t.Fatal(err)
				}
			}
			events := told(t, s, "org-a")
			if last := events[len(events)-1]; last.Kind != fleet.EventMessage || last.Data.Consent != step.said {
				t.Errorf("%s was told as %s with consent %q, want a message with %q", step.name, last.Kind, last.Data.Consent, step.said)
			}
			if k := contactOf(t, s, m); k.OptedOut != step.out {
				t.Errorf("after %s opted out is %v, want %v", step.name, k.OptedOut, step.out)
			}
			queued, _, err := s.ListMessages(t.Context(), store.MessageQuery{Org: "org-a"})
			if err != nil || len(queued) != step.confirmations {
				t.Errorf("after %s %d messages are queued, %v, want %d confirmations", step.name, len(queued), err, step.confirmations)
			}
			for _, c := range queued {
				if !c.Exempt || c.Text != rules.Confirmation || c.SessionID != term.SessionID || c.ToJID != m.Sender {
					t.Errorf("confirmation = %+v, want %q to the sender on the session they wrote to", c, rules.Confirmation)
				}
			}
		}
	})
}
