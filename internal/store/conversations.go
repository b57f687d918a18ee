package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/wafleet/wafleet/internal/fleet"
)

// Conversation returns the id of an organization's exchange with one person and makes it at the
// first contact. contactKey is a match key (fleet.ContactKey) and never blank. Two callers at once
// get the same id.
func (s *Store) Conversation(ctx context.Context, org fleet.OrgID, contactKey string) (fleet.ConversationID, error) {
	if org == "" || contactKey == "" {
		return "", fmt.Errorf("conversation of organization %q: blank organization or contact: %w", org, fleet.ErrInvalid)
	}
	read := func() (id fleet.ConversationID, err error) {
		err = s.row(ctx, `SELECT id FROM conversations WHERE org_id=$1 AND contact_key=$2`, org, contactKey).Scan(&id)
		return id, err
	}
	// Look first: nearly every message belongs to a conversation that exists.
	id, err := read()
	if err == nil {
		return id, nil
	}
	if errors.Is(err, sql.ErrNoRows) {
		if _, err = s.exec(ctx, `INSERT INTO conversations (id, org_id, contact_key, created_at) VALUES ($1, $2, $3, @now@)
			ON CONFLICT (org_id, contact_key) DO NOTHING`, fleet.NewConversationID(), org, contactKey); err == nil {
			id, err = read()
		}
	}
	if err != nil {
		return "", fmt.Errorf("conversation of organization %s: %w", org, unavailable(err))
	}
	return id, nil
}
