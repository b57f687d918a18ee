package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

// Before its first frame to somebody a lane asks WhatsApp who they are: messages say by unresolved that this has not
// been done. People are asked for together, and what WhatsApp said counts for all sessions of the organization.

// Unresolved returns up to limit people that queued messages of a session wait for: the one whose turn it is first, then
// in the order of the lane.
func (s *Store) Unresolved(ctx context.Context, session fleet.SessionID, turn fleet.MessageID, limit int) ([]fleet.Person, error) {
	var people []fleet.Person
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var jid, key string
		err := row.Scan(&jid, &key)
		if p := personOf(jid, key); !slices.Contains(people, p) {
			people = append(people, p)
		}
		return err
	}, `SELECT m.to_jid, m.contact_key FROM messages m WHERE m.session_id=$1 AND m.status IN ('queued', 'sending')
		AND m.status='queued' AND m.unresolved AND m.due_at<=@now@ ORDER BY m.id<>$3, m.seq LIMIT CAST($2 AS BIGINT)`, session, limit, turn)
	if err != nil {
		return nil, fmt.Errorf("unresolved recipients of session %s: %w", session, err)
	}
	return people, nil
}

// Resolved writes what WhatsApp told of people under a session's term: contacts are made and merged, messages that
// waited for it go where WhatsApp says, and those to numbers without an account have failed. It returns the contacts.
func (s *Store) Resolved(ctx context.Context, term fleet.Term, org fleet.OrgID, told []Sighting) ([]Met, error) {
	// Whoever locks several contacts does so in one order.
	told = slices.SortedFunc(slices.Values(told), func(a, b Sighting) int { return slices.Compare(a.keys(), b.keys()) })
	var all []Met
	err := s.Fenced(ctx, term, func(ctx context.Context) error {
		all = nil
		for _, g := range told {
			met, err := s.Meet(ctx, org, g)
			if err != nil {
				return err
			}
			if err := s.resolveMessages(ctx, met, g.keys()); err != nil {
				return err
			}
			all = append(all, met)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("recipients of session %s: %w", term.SessionID, err)
	}
	return all, nil
}

// resolveMessages lets the messages go that waited for WhatsApp's word about somebody, or ends them.
func (s *Store) resolveMessages(ctx context.Context, met Met, keys []string) error {
	wait := `WITH waits AS MATERIALIZED (SELECT m.seq AS place FROM sessions s JOIN messages m ON m.session_id=s.id AND m.status IN ('queued', 'sending')
			WHERE s.org_id=$1 AND m.status='queued' AND m.unresolved AND m.contact_key IN (SELECT id FROM @ids:$2@ AS names) ORDER BY m.seq ` + s.forUpdateOf("m") + `) `
	names := idList(slices.Compact(slices.Sorted(slices.Values(append(keys, met.Key)))))
	if met.Absent {
		_, err := s.changeMessages(ctx, wait+`UPDATE messages SET status='failed', unresolved=FALSE, error_code='`+fleet.CodeNotOnWhatsApp+`',
				error_detail='The number has no WhatsApp account.' FROM waits WHERE seq=waits.place AND status='queued' RETURNING `+changedColumns, met.OrgID, names)
		return err
	}
	_, err := s.exec(ctx, wait+`UPDATE messages SET unresolved=FALSE, to_jid=$3, contact_key=$4, conversation_id=$5 FROM waits WHERE seq=waits.place AND status='queued'`,
		met.OrgID, names, cmp.Or(met.JID, met.Person().Address()), met.Key, met.ConversationID)
	return err
}

// Postpone lets the messages wait whose recipients WhatsApp said nothing about.
func (s *Store) Postpone(ctx context.Context, term fleet.Term, people []fleet.Person, wait time.Duration) error {
	var jids []string
	for _, p := range people {
		jids = append(jids, p.Address())
	}
	err := s.Fenced(ctx, term, func(ctx context.Context) error {
		_, err := s.exec(ctx, `UPDATE messages SET due_at=@now@+CAST($3 AS BIGINT) WHERE session_id=$1 AND status IN ('queued', 'sending')
			AND status='queued' AND unresolved AND to_jid IN (SELECT id FROM @ids:$2@ AS names)`, term.SessionID, idList(jids), wait.Milliseconds())
		return err
	})
	if err != nil {
		return fmt.Errorf("postpone messages of session %s: %w", term.SessionID, err)
	}
	return nil
}
