package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

// notOptedOut is true for a message m whose recipient wants to hear from the organization: one lookup in a
// small table, whatever name the message was addressed to.
const notOptedOut = ` AND (m.exempt OR (SELECT 1 FROM opt_outs o WHERE o.org_id=m.org_id AND o.contact_key=m.contact_key AND o.active LIMIT 1) IS NULL)`

// Decision is a person's word about being written to, or an operator's about them.
type Decision struct {
	Stop    bool
	At      time.Time // WhatsApp's time of a keyword; zero = now
	Source  fleet.OptOutSource
	Keyword string
}

// Decide opts a contact out of an organization or in again, and reports whether that changed anything. The
// later decision counts, by WhatsApp's time, which knows whole seconds: of those of one second a STOP beats
// what was there, and a START only what WhatsApp told before it.
func (s *Store) Decide(ctx context.Context, c Known, d Decision) (bool, error) {
	when := d.At
	if when.IsZero() {
		when = s.clockTime()
	}
	order := `opt_outs.at<=excluded.at`
	if d.Stop {
		order = `opt_outs.at/1000<=excluded.at/1000`
	}
	n, err := s.exec(ctx, `INSERT INTO opt_outs (org_id, contact_key, contact_id, active, at, source, keyword)
		SELECT a.org_id, a.alias, a.contact_id, $2, CAST($3 AS BIGINT), $4, $5 FROM contact_aliases a WHERE a.contact_id=$1 AND a.alias NOT LIKE 'ctc%' ORDER BY a.alias
		ON CONFLICT (org_id, contact_key) DO UPDATE SET contact_id=excluded.contact_id, active=excluded.active, at=excluded.at, source=excluded.source, keyword=excluded.keyword
		WHERE `+order, c.ID, d.Stop, ms(when), d.Source, clip(clean(d.Keyword), maxPushName))
	if err != nil {
		return false, fmt.Errorf("opt-out of contact %s: %w", c.ID, err)
	}
	return n > 0 && c.OptedOut != d.Stop, nil
}

// spreadOptOuts makes the opt-out of any of these contacts, which are one person now or have got one more name,
// that of all names of the first.
func (s *Store) spreadOptOuts(ctx context.Context, ids []fleet.ContactID) error {
	var active bool
	var at int64
	var source, keyword string
	err := s.row(ctx, `SELECT o.active, o.at, o.source, o.keyword FROM opt_outs o WHERE o.contact_id IN (SELECT id FROM @ids:$1@ AS wanted)
		ORDER BY o.active DESC, o.at DESC LIMIT 1`, idList(ids)).Scan(&active, &at, &source, &keyword)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err == nil {
		_, err = s.exec(ctx, `INSERT INTO opt_outs (org_id, contact_key, contact_id, active, at, source, keyword)
			SELECT a.org_id, a.alias, a.contact_id, $2, CAST($3 AS BIGINT), $4, $5 FROM contact_aliases a WHERE a.contact_id=$1 AND a.alias NOT LIKE 'ctc%' ORDER BY a.alias
			ON CONFLICT (org_id, contact_key) DO UPDATE SET contact_id=excluded.contact_id, active=excluded.active, at=excluded.at, source=excluded.source, keyword=excluded.keyword`,
			ids[0], active, at, source, keyword)
	}
	if err != nil {
		return fmt.Errorf("opt-outs of one person: %w", unavailable(err))
	}
	return nil
}

// Suppress ends a queued message to somebody who opted out, and lets one whose frame may have left be
// repeated no more. It reports whether it did either: the message can't be claimed then. The next in the
// lane may be.
func (s *Store) Suppress(ctx context.Context, term fleet.Term, id fleet.MessageID) (bool, error) {
	const optedOut = ` WHERE id=$1 AND session_id=$2 AND NOT exempt
		AND (SELECT 1 FROM opt_outs o WHERE o.org_id=messages.org_id AND o.contact_key=messages.contact_key AND o.active) IS NOT NULL `
	var done bool
	err := s.Fenced(ctx, term, func(ctx context.Context) error {
		ended, err := s.changeMessages(ctx, `UPDATE messages SET status='suppressed', error_code='`+fleet.CodeOptedOut+`',
				error_detail='The recipient opted out of messages from this organization.'`+optedOut+`AND status='queued'
			RETURNING `+changedColumns, id, term.SessionID)
		if err != nil || len(ended) > 0 {
			done = len(ended) > 0
			return err
		}
		n, err := s.exec(ctx, `UPDATE messages SET next_repeat_at=0`+optedOut+`AND status='sending' AND outcome='unknown'`, id, term.SessionID)
		done = n > 0
		return err
	})
	if err != nil {
		return false, fmt.Errorf("suppress message %s: %w", id, err)
	}
	return done, nil
}

// SuppressParked ends up to limit due messages to people who opted out that no lane looks at, because no session
// has them, and returns their number.
func (s *Store) SuppressParked(ctx context.Context, limit int) (int, error) {
	var n int
	err := s.InTx(ctx, func(ctx context.Context) error {
		ended, err := s.changeMessages(ctx, `WITH out AS MATERIALIZED (SELECT m.id AS out_id FROM messages m
				WHERE m.parked AND m.status='queued' AND m.due_at<=@now@ AND NOT m.exempt
				AND (SELECT 1 FROM opt_outs o WHERE o.org_id=m.org_id AND o.contact_key=m.contact_key AND o.active) IS NOT NULL
				ORDER BY m.due_at LIMIT CAST($1 AS BIGINT) @skip@)
			UPDATE messages SET status='suppressed', parked=FALSE, error_code='`+fleet.CodeOptedOut+`',
				error_detail='The recipient opted out of messages from this organization.' FROM out WHERE id=out_id AND status='queued'
			RETURNING `+changedColumns, limit)
		n = len(ended)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("suppress messages without a session: %w", err)
	}
	return n, nil
}

// ListOptOuts returns who opted out of an organization, in the order of their match keys and after one of
// them, and the cursor of the next page ("" = no more).
func (s *Store) ListOptOuts(ctx context.Context, org fleet.OrgID, after string, limit int) (page []fleet.OptOut, next string, err error) {
	limit = cmp.Or(limit, 50)
	var last string
	err = s.query(ctx, func(row dbutil.Scannable) error {
		o := fleet.OptOut{OrgID: org}
		var key string
		if err := row.Scan(&key, &o.ContactID, &o.Phone, &o.LID, &o.Source, &o.Keyword, at{&o.At}); err != nil {
			return err
		}
		if len(page) == limit {
			next = last
			return nil
		}
		page, last = append(page, o), key
		return nil
	}, `SELECT o.contact_key, c.id, c.phone, c.lid, o.source, o.keyword, o.at FROM opt_outs o
			`+s.perRow("contacts", "c", "c.id=o.contact_id AND c.contact_key=o.contact_key")+`
		WHERE o.org_id=$1 AND o.active AND o.contact_key>$2 ORDER BY o.contact_key LIMIT CAST($3 AS BIGINT)`, org, after, limit+1)
	if err != nil {
		return nil, "", fmt.Errorf("list opt-outs of %s: %w", org, err)
	}
	return page, next, nil
}

// PeopleRules reads what an organization set about the people it writes to; the zero value if nothing.
func (s *Store) PeopleRules(ctx context.Context, org fleet.OrgID) (fleet.PeopleRules, error) {
	var rules fleet.PeopleRules
	var text string
	err := s.row(ctx, `SELECT people_rules FROM organizations WHERE id=$1`, org).Scan(&text)
	if err == nil && text != "" {
		err = json.Unmarshal([]byte(text), &rules)
	}
	if err != nil {
		return rules, fmt.Errorf("rules of %s about people: %w", org, notFound(err))
	}
	return rules, nil
}

// changePeopleRules changes them, and writes that into the audit log.
func (s *Store) changePeopleRules(ctx context.Context, org fleet.OrgID, edit func(*fleet.PeopleRules)) error {
	before, err := s.PeopleRules(ctx, org)
	if err != nil {
		return err
	}
	rules := before
	rules.Keywords = maps.Clone(before.Keywords)
	edit(&rules)
	text, err := json.Marshal(rules)
	if err == nil {
		_, err = s.exec(ctx, `UPDATE organizations SET people_rules=$2 WHERE id=$1`, org, string(text))
	}
	if err != nil {
		return fmt.Errorf("rules of %s about people: %w", org, err)
	}
	return s.audit(ctx, change{action: "organization.people", org: org, subject: string(org), before: before, after: rules})
}

// OptOut opts a recipient out of an organization or in again by hand, and makes a contact of one who is none yet.
// A contact's id that is none of its own is fleet.ErrNotFound.
func (s *Store) OptOut(ctx context.Context, org fleet.OrgID, r fleet.Recipient, d Decision) (k Known, changed bool, err error) {
	err = s.InTx(ctx, func(ctx context.Context) (err error) {
		if r.Contact != "" {
			k, err = s.GetContact(ctx, org, r.Contact)
		} else {
			var met Met
			met, err = s.Meet(ctx, org, Sighting{Person: fleet.Person{LID: r.LID}, Asked: r.Phone})
			k = met.Known
		}
		if err != nil {
			return err
		}
		changed, err = s.Decide(ctx, k, d)
		k.OptedOut = d.Stop
		return err
	})
	return k, changed, err
}
