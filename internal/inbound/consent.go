package inbound

import (
	"context"
	"fmt"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/keyword"
	"github.com/wafleet/wafleet/internal/store"
)

// consent reads whether a message that came in opts its sender out of all of the organization's numbers, or in
// again, and makes it so in the transaction that stores the message. Only a text that somebody wrote to this number
// counts: captions, edits and reactions say something about something else. Who opts out is told so once, if the
// organization wants that: the message goes to whoever wrote, from the number they wrote to. It has no reservation yet
// and no lane sends it: whoever dispatches takes what it needs of the number, as for any other message.
func (h *Handler) consent(ctx context.Context, m fleet.Inbound, from store.Known) (said fleet.Consent, confirmed bool, err error) {
	if m.Kind != fleet.KindText || from.ID == "" || !keyword.MayMatch(m.Text) {
		return fleet.ConsentNone, false, nil
	}
	rules, err := h.store.PeopleRules(ctx, m.OrgID)
	if err != nil {
		return said, false, err
	}
	if said = keyword.Match(m.Text, rules.Keywords); said == fleet.ConsentNone {
		return said, false, nil
	}
	changed, err := h.store.Decide(ctx, from, store.Decision{
		Stop: said == fleet.ConsentStop, At: m.SentAt, Source: fleet.OptOutKeyword, Keyword: m.Text,
	})
	if err != nil || !changed || said != fleet.ConsentStop || rules.Confirmation == "" {
		return said, false, err
	}
	project, err := h.store.DefaultProject(ctx, m.OrgID)
	if err != nil {
		return said, false, err
	}
	to := from.JID
	if from.Phone != "" {
		to = "+" + from.Phone
	}
	_, err = h.store.CreateMessage(ctx, fleet.Message{
		OrgID: m.OrgID, ProjectID: project, SessionID: m.SessionID, ContactKey: from.Key, ConversationID: from.ConversationID,
		To: to, ToJID: from.JID, Kind: "text", Text: rules.Confirmation, Exempt: true, Parked: true,
	}, fleet.DefaultTTL)
	if err != nil {
		return said, false, fmt.Errorf("confirm opt-out: %w", err)
	}
	return said, true, nil
}
