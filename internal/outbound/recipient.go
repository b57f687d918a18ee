package outbound

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/phone"
)

// regionKept is how long an organization's region is remembered, which nearly every request would read.
const regionKept = 2 * time.Second

// regions remembers what organizations set.
type regions struct {
	mu sync.Mutex // never held while the database is asked
	of map[fleet.OrgID]region
}

type region struct {
	name string
	read time.Time
}

// region is the country whose numbers the organization may write without their code, as far as that could make a
// difference for this recipient.
func (o *Outbound) region(ctx context.Context, org fleet.OrgID, to string) (string, error) {
	if !phone.National(to) {
		return "", nil
	}
	o.regions.mu.Lock()
	have, ok := o.regions.of[org]
	o.regions.mu.Unlock()
	if ok && time.Since(have.read) < regionKept {
		return have.name, nil
	}
	now := time.Now()
	rules, err := o.store.PeopleRules(ctx, org)
	if errors.Is(err, fleet.ErrNotFound) {
		err = nil // the router says so
	}
	if err != nil {
		return "", err
	}
	o.regions.mu.Lock()
	defer o.regions.mu.Unlock()
	if o.regions.of == nil || len(o.regions.of) > 10_000 {
		o.regions.of = map[fleet.OrgID]region{}
	}
	o.regions.of[org] = region{rules.Region, now}
	return rules.Region, nil
}

// ParseRecipient reads a recipient as its organization writes it. The error is an *fleet.InvalidError with
// code INVALID_RECIPIENT.
func (o *Outbound) ParseRecipient(ctx context.Context, org fleet.OrgID, to string) (fleet.Recipient, error) {
	region, err := o.region(ctx, org, to)
	if err != nil {
		return fleet.Recipient{}, err
	}
	return phone.ParseRecipient(to, region)
}

// address writes into a message who it is for, by what the organization knows of the person: the match key, the
// conversation, and where it goes if WhatsApp has been asked. Who opted out is refused, and so is a number that
// WhatsApp said to have no account.
func (o *Outbound) address(ctx context.Context, to fleet.Recipient, m *fleet.Message) error {
	known, err := o.store.Recipient(ctx, m.OrgID, to)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		return &fleet.InvalidError{Code: "INVALID_RECIPIENT", Field: "to", Detail: "is no contact of this organization"}
	case err != nil:
		return err
	}
	m.ContactKey, m.ToJID, m.Unresolved = to.ContactKey, to.JID, true
	if known == nil {
		return nil
	}
	age := time.Since(known.CheckedAt)
	switch {
	case known.OptedOut:
		return &fleet.CodedError{
			Code: fleet.CodeOptedOut, Detail: "the recipient opted out of messages from this organization, on all of its numbers", Err: fleet.ErrConflict,
		}
	case known.Absent && age < fleet.AbsentFor:
		return &fleet.InvalidError{Code: fleet.CodeNotOnWhatsApp, Field: "to", Detail: "has no WhatsApp account, as WhatsApp said within the last day"}
	}
	m.ContactKey, m.ConversationID = known.Key, known.ConversationID
	switch {
	case known.JID != "" && (known.LID != "" || known.Phone == "") && age < fleet.PresentFor:
		m.ToJID, m.Unresolved = known.JID, false
	case m.ToJID == "": // a contact that is to be asked for
		m.ToJID = known.Person().Address()
	}
	return nil
}
