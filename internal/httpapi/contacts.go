package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

const (
	checkTime = 20 * time.Second // for WhatsApp's answer
	checkPoll = 100 * time.Millisecond
)

// Contact is one person as the organization knows them.
type Contact struct {
	ContactID      fleet.ContactID      `json:"contactId" example:"ctc_01k8z3v5hq2m6t9x4c7b0n1d8e"`
	Phone          string               `json:"phone,omitempty" doc:"As WhatsApp writes the number once it was asked. Missing: only a LID is known." example:"+5511900000001"`
	LID            string               `json:"lid,omitempty" doc:"What WhatsApp calls the person by when it hides the number." example:"100000000000001"`
	ConversationID fleet.ConversationID `json:"conversationId" example:"cnv_01k8z3v5hq2m6t9x4c7b0n1d8e"`
	OptedOut       bool                 `json:"optedOut" doc:"Nothing is sent to them, on any of the organization's numbers."`
	OnWhatsApp     *bool                `json:"onWhatsApp,omitempty" doc:"Missing: WhatsApp was not asked."`
	CheckedAt      *time.Time           `json:"checkedAt,omitempty" doc:"When WhatsApp said so."`
}

func contactView(k store.Known) Contact {
	v := Contact{ContactID: k.ID, LID: k.LID, ConversationID: k.ConversationID, OptedOut: k.OptedOut, CheckedAt: when(k.CheckedAt)}
	if k.Phone != "" {
		v.Phone = "+" + k.Phone
	}
	if !k.CheckedAt.IsZero() {
		on := !k.Absent
		v.OnWhatsApp = &on
	}
	return v
}

// CheckedNumber is WhatsApp's word about one recipient.
type CheckedNumber struct {
	To         string   `json:"to" doc:"As the request wrote it." example:"+5511900000001"`
	OnWhatsApp bool     `json:"onWhatsApp"`
	Cached     bool     `json:"cached" doc:"WhatsApp said so earlier: within 30 days that there is an account, within a day that there is none."`
	Contact    *Contact `json:"contact,omitempty" doc:"Who that is. Its phone may have other digits than the request."`
}

func registerContacts(api huma.API, d *deps) {
	tags := []string{"Contacts"}
	huma.Register(api, huma.Operation{
		OperationID: "get-contact", Method: http.MethodGet, Path: "/api/v1/contacts/{contactId}", Tags: tags, Security: organizationSecurity,
		Summary: "Get a contact", Description: "The id of one that was merged into another gives that.",
	}, func(ctx context.Context, in *struct {
		ContactID fleet.ContactID `path:"contactId" example:"ctc_01k8z3v5hq2m6t9x4c7b0n1d8e"`
	},
	) (*reply[Contact], error) {
		k, err := d.store.GetContact(ctx, caller(ctx).OrgID, in.ContactID)
		if err != nil {
			return nil, err
		}
		return &reply[Contact]{contactView(k)}, nil
	})

	huma.Register(api, huma.Operation{
		OperationID: "check-contacts", Method: http.MethodPost, Path: "/api/v1/contacts/check", Tags: tags, Security: organizationSecurity,
		Summary: "Ask whether people are on WhatsApp", DefaultStatus: http.StatusOK,
		Description: "Asks on one of the organization's numbers, and remembers the answer. It is not needed before sending: that asks by itself. " +
			"WhatsApp limits such questions, so ask about people you are going to write to.",
	}, func(ctx context.Context, in *struct {
		Body struct {
			To []string `json:"to" minItems:"1" maxItems:"32" doc:"Recipients, in any form that sending takes." example:"[\"+5511900000001\"]"`
		}
	},
	) (*reply[CheckedNumbers], error) {
		items, err := d.checkNumbers(ctx, caller(ctx).OrgID, in.Body.To)
		if err != nil {
			return nil, err
		}
		return &reply[CheckedNumbers]{CheckedNumbers{items}}, nil
	})
}

// CheckedNumbers are the answers, in the order of the request.
type CheckedNumbers struct {
	Items []CheckedNumber `json:"items"`
}

func (d *deps) checkNumbers(ctx context.Context, org fleet.OrgID, all []string) ([]CheckedNumber, error) {
	items := make([]CheckedNumber, len(all))
	recipients := make([]fleet.Recipient, len(all))
	var ask []fleet.Person
	for i, to := range all {
		var err error
		if recipients[i], err = d.outbound.ParseRecipient(ctx, org, to); err != nil {
			return nil, err
		}
		items[i] = CheckedNumber{To: to, Cached: true}
		known, err := d.store.Recipient(ctx, org, recipients[i])
		if errors.Is(err, fleet.ErrNotFound) {
			return nil, invalid("INVALID_RECIPIENT", "to", "is no contact of this organization")
		} else if err != nil {
			return nil, err
		}
		if !items[i].answer(known) {
			items[i].Cached = false
			p := fleet.Person{Phone: recipients[i].Phone, LID: recipients[i].LID}
			if recipients[i].Contact != "" {
				p = known.Person()
			}
			ask = append(ask, p)
		}
	}
	if len(ask) == 0 {
		return items, nil
	}
	if err := d.askWhatsApp(ctx, org, ask); err != nil {
		return nil, err
	}
	for i := range items {
		known, err := d.store.Recipient(ctx, org, recipients[i])
		if err != nil {
			return nil, err
		}
		if !items[i].Cached && !items[i].answer(known) {
			return nil, errCheckUnanswered
		}
	}
	return items, nil
}

// answer fills in what is known, and reports whether that is fresh enough to count.
func (c *CheckedNumber) answer(known *store.Known) bool {
	if known == nil || known.CheckedAt.IsZero() {
		return false
	}
	limit := fleet.PresentFor
	if known.Absent {
		limit = fleet.AbsentFor
	}
	if time.Since(known.CheckedAt) > limit {
		return false
	}
	v := contactView(*known)
	c.OnWhatsApp, c.Contact = !known.Absent, &v
	return true
}

var errCheckUnanswered = &fleet.CodedError{
	Code: "CHECK_UNANSWERED", Detail: "WhatsApp did not answer in time; what it says later is remembered, so ask again",
	RetryAfter: 10 * time.Second, Err: fleet.ErrUnavailable,
}

// askWhatsApp lets one of the organization's sessions ask, and waits for it.
func (d *deps) askWhatsApp(ctx context.Context, org fleet.OrgID, people []fleet.Person) error {
	id, err := d.store.Asker(ctx, org)
	if errors.Is(err, fleet.ErrNotFound) {
		return &fleet.CodedError{
			Code: "NONE_ELIGIBLE", Detail: "no number of the organization is connected, so nobody can ask WhatsApp", RetryAfter: 5 * time.Second, Err: fleet.ErrUnavailable,
		}
	} else if err != nil {
		return err
	}
	payload, err := json.Marshal(fleet.CheckPayload{People: people})
	if err != nil {
		return err
	}
	c, err := d.store.EnqueueCommand(ctx, fleet.Command{SessionID: id, Kind: fleet.CommandCheck, Payload: string(payload), ExpiresAt: time.Now().Add(checkTime)})
	if err != nil {
		return err
	}
	session, err := d.store.SessionByID(ctx, id)
	if err != nil {
		return err
	}
	d.nudge(ctx, session)
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	poll := time.NewTicker(checkPoll)
	defer poll.Stop()
	for {
		if c, err = d.store.GetCommand(ctx, c.ID); err != nil {
			return err
		}
		switch c.Status {
		case fleet.CommandDone:
			return nil
		case fleet.CommandFailed, fleet.CommandExpired:
			return errCheckUnanswered
		case fleet.CommandPending, fleet.CommandRunning:
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return errCheckUnanswered
		}
	}
}
