package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

// Learn makes one of what organizations know of people by a LID and by a number, now that WhatsApp told whose LID it is.
// Everybody has both. Organizations that know somebody by number alone learn the LID when they hear from it. It joins
// the caller's transaction, and returns the contacts that go by another match key now.
func (s *Store) Learn(ctx context.Context, people []fleet.Person) ([]Met, error) {
	byLID := make(map[string]fleet.Person, len(people))
	keys := make([]string, 0, len(people))
	for _, p := range people {
		if p.Phone == "" || p.LID == "" {
			return nil, fmt.Errorf("learn names of people: blank number or LID: %w", fleet.ErrInvalid)
		}
		key := fleet.ContactKey("", p.LID)
		if _, ok := byLID[key]; !ok {
			keys = append(keys, key)
		}
		byLID[key] = p
	}
	var found []name
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var n name
		err := row.Scan(&n.Org, &n.Name)
		found = append(found, n)
		return err
	}, `SELECT a.org_id, wanted.id FROM @ids:$1@ AS wanted `+s.perRow("contact_aliases", "a", "a.alias=wanted.id AND a.alias LIKE 'lid:%'")+`
		UNION ALL SELECT '', wanted.id FROM @ids:$1@ AS wanted WHERE (SELECT 1 FROM chats c WHERE c.contact_key=wanted.id LIMIT 1) IS NOT NULL`, rowList(keys))
	if err != nil {
		return nil, fmt.Errorf("learn names of people: %w", err)
	}
	// The order in which whoever else locks several contacts does so; chats of nobody's come last.
	slices.SortFunc(found, func(a, b name) int {
		if (a.Org == "") != (b.Org == "") {
			return cmp.Compare(b.Org, a.Org)
		}
		return cmp.Or(cmp.Compare(a.Org, b.Org), slices.Compare(Sighting{Person: byLID[a.Name]}.keys(), Sighting{Person: byLID[b.Name]}.keys()))
	})
	var all []Met
	for _, n := range found {
		if n.Org == "" {
			if err := s.moveChats(ctx, "", fleet.ContactKey(byLID[n.Name].Phone, ""), []string{n.Name}); err != nil {
				return nil, err
			}
			continue
		}
		met, err := s.Meet(ctx, n.Org, Sighting{Person: byLID[n.Name]})
		if err != nil {
			return nil, err
		}
		if len(met.Merged) > 0 {
			all = append(all, met)
		}
	}
	return all, nil
}
