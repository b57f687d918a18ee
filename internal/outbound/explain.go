package outbound

import (
	"context"
	"errors"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/router"
)

// Explanation is how a message would be routed.
type Explanation = router.Explanation

// Explain says how a message to this recipient would be routed now, and takes nothing. A recipient that a send would not
// take either is an *fleet.InvalidError.
func (o *Outbound) Explain(ctx context.Context, org fleet.OrgID, project fleet.ProjectID, to string) (router.Explanation, error) {
	r, err := o.ParseRecipient(ctx, org, to)
	if err != nil {
		return router.Explanation{}, err
	}
	m := fleet.Message{OrgID: org}
	optedOut := o.address(ctx, r, &m)
	if coded, ok := errors.AsType[*fleet.CodedError](optedOut); ok && coded.Code == fleet.CodeOptedOut {
		return router.Explanation{Refusal: optedOut}, nil
	} else if optedOut != nil {
		return router.Explanation{}, optedOut
	}
	return o.router.Explain(ctx, router.Send{Org: org, Project: project, Key: m.ContactKey, Wait: fleet.DefaultTTL})
}

// Capacity says what an organization's numbers have sent and may send.
func (o *Outbound) Capacity(ctx context.Context, org fleet.OrgID) (router.Explanation, error) {
	return o.router.Explain(ctx, router.Send{Org: org, Wait: fleet.DefaultTTL})
}
