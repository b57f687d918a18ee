package outbound

import (
	"context"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/router"
)

// Explanation is how a message would be routed.
type Explanation = router.Explanation

// Explain says how a message to this recipient would be routed now, and takes nothing. A recipient that can't be
// read is an *fleet.InvalidError.
func (o *Outbound) Explain(ctx context.Context, org fleet.OrgID, project fleet.ProjectID, to string) (router.Explanation, error) {
	r, err := fleet.ParseRecipient(to)
	if err != nil {
		return router.Explanation{}, err
	}
	key := r.ContactKey
	switch known, err := o.store.Recipient(ctx, org, r); {
	case err != nil:
		return router.Explanation{}, err
	case known != nil:
		key = known.Key
	case key == "":
		return router.Explanation{}, &fleet.InvalidError{Code: "INVALID_RECIPIENT", Field: "to", Detail: "is not the id of a contact"}
	}
	return o.router.Explain(ctx, router.Send{Org: org, Project: project, Key: key, Wait: fleet.DefaultTTL})
}

// Capacity says what an organization's numbers have sent and may send.
func (o *Outbound) Capacity(ctx context.Context, org fleet.OrgID) (router.Explanation, error) {
	return o.router.Explain(ctx, router.Send{Org: org, Wait: fleet.DefaultTTL})
}
