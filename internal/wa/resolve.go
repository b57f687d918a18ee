package wa

import (
	"context"
	"fmt"
	"slices"

	"go.mau.fi/whatsmeow"
	"go.mau.fi/whatsmeow/types"

	"github.com/wafleet/wafleet/internal/fleet"
)

// MostResolved is how many people are asked for at once at most.
const MostResolved = 32

// Account is WhatsApp's word about somebody.
type Account struct {
	Asked fleet.Person
	// Person is how WhatsApp writes the number, and what else it says of them. Of somebody who was asked for by LID it
	// is what this device knows.
	Person fleet.Person
	Absent bool // there is no account
}

// Resolve asks WhatsApp who these people are. A number is asked for in all its variants, and the one that was given wins
// if it has an account: digits are never guessed. People that WhatsApp says nothing about are left out of the answer.
func (s *Socket) Resolve(ctx context.Context, people []fleet.Person) ([]Account, error) {
	var numbers []string
	for _, p := range people {
		if p.Phone != "" {
			numbers = append(numbers, fleet.PhoneVariants(p.Phone)...)
		}
	}
	if len(people) > MostResolved {
		return nil, fmt.Errorf("resolve %d people, at most %d: %w", len(people), MostResolved, fleet.ErrInvalid)
	}
	slices.Sort(numbers)
	numbers = slices.Compact(numbers)
	var out []Account
	err := s.do(ctx, func(ctx context.Context, c *whatsmeow.Client) error {
		said := map[string]types.IsOnWhatsAppResponse{}
		if len(numbers) > 0 {
			answers, err := c.IsOnWhatsApp(ctx, numbers)
			if err != nil {
				return err
			}
			for _, a := range answers {
				said[a.Query] = a
			}
		}
		var found []Account
		for _, p := range people {
			if p.Phone == "" {
				pn, err := c.Store.LIDs.GetPNForLID(ctx, types.NewJID(p.LID, types.HiddenUserServer))
				if err != nil {
					return err
				}
				known := Account{Asked: p, Person: p}
				known.Person.Phone, _ = identity(pn, types.EmptyJID)
				found = append(found, known)
			} else if a, ok := account(p, said); ok {
				found = append(found, a)
			}
		}
		out = found
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("resolve: %w", err)
	}
	return out, nil
}

// account picks among the answers about a number's variants. A variant that WhatsApp left out leaves it open whether
// there is an account.
func account(p fleet.Person, said map[string]types.IsOnWhatsAppResponse) (Account, bool) {
	open := false
	for _, v := range fleet.PhoneVariants(p.Phone) {
		a, ok := said[v]
		open = open || !ok
		if !ok || !a.IsIn {
			continue
		}
		who := Account{Asked: p}
		if who.Person.Phone, who.Person.LID = identity(a.JID, a.PhoneNumber); who.Person != (fleet.Person{}) {
			return who, true
		}
		open = true
	}
	return Account{Asked: p, Person: p, Absent: true}, !open
}
