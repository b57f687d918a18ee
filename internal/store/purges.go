package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

// Kinds of purges.
const (
	PurgeSession      = "session"
	PurgeOrganization = "organization"
)

// PurgeKey names a purge.
type PurgeKey struct {
	Kind    string
	Subject string // a session's id, or an organization's
}

// Purge is the deletion of what belongs to a session or an organization that is no more.
type Purge struct {
	PurgeKey
	Org        fleet.OrgID
	Slug       fleet.SessionSlug // of a session whose row is still there
	Step       int
	Steps      int
	Deleted    int64
	CreatedAt  time.Time
	FinishedAt time.Time // zero: it goes on
}

// orgPurgeDelay is how long after an organization's end its rows go: whoever knew a key of it has let go of it by then.
const orgPurgeDelay = time.Minute

// purgeWalk is how many rows of a table that has no index by organization one transaction looks at.
const purgeWalk = 5000

// purgeStep deletes up to limit rows and returns how many. It is done when it deletes none, or when it says so.
type purgeStep struct {
	name string
	run  func(ctx context.Context, p *purge) (int64, error)
}

// purge is one that is being worked on, with its row locked.
type purge struct {
	PurgeKey
	place int64
	limit int
	wait  bool // it can't go on now
	more  bool // the step is not done, although it deleted nothing
}

// purgeSteps are the steps of a kind of purge in their order. A row stores the number of its next one, so they are only
// ever added to at the end of a list; a step that finds nothing costs one look.
func (s *Store) purgeSteps(kind string) []purgeStep {
	if kind == PurgeSession {
		return []purgeStep{
			{"lease", s.purgeLease},
			{"commands", s.deleting("commands", `session_id=$1`)},
			{"chats", s.deleting("chats", `session_id=$1`)},
			{"lease_log", s.deleting("lease_log", `session_id=$1`)},
			{"device", s.purgeDevicesGone},
		}
	}
	return []purgeStep{
		{"sessions purged", s.purgeSessionsGone},
		{"deliveries", s.deleting("deliveries", `org_id=$1`)},
		{"events", s.walking("events", "n", `DELETE FROM streams WHERE id IN (
			SELECT conversation_id FROM events WHERE org_id=$1 AND conversation_id<>'' AND n>$2 AND n<=$3)`)},
		{"messages", s.purgeOrgMessages},
		{"inbound_messages", s.walking("inbound_messages", "n")},
		{"idempotency_keys", s.deleting("idempotency_keys", `org_id=$1`)},
		{"opt_outs", s.deleting("opt_outs", `org_id=$1`)},
		{"contacts", s.purgeContacts},
		{"contact_aliases", s.deleting("contact_aliases", `org_id=$1`)},
		{"pairing_invites", s.deleting("pairing_invites", `org_id=$1`)},
		{"api_keys", s.deleting("api_keys", `org_id=$1`)},
		{"usage_days", s.deleting("usage_days", `org_id=$1`)},
		{"projects", s.deleting("projects", `org_id=$1`)},
		{"endpoints", s.deleting("endpoints", `org_id=$1`)},
		{"sessions", s.purgeSessions},
		{"organization", s.purgeOrgRow},
	}
}

// addPurge makes the row of a purge, in the transaction that ends what it is for.
func (s *Store) addPurge(ctx context.Context, kind, subject string, org fleet.OrgID) error {
	_, err := s.exec(ctx, `INSERT INTO purges (kind, subject, org_id, created_at) VALUES ($1, $2, $3, @now@) ON CONFLICT DO NOTHING`, kind, subject, org)
	return err
}

// OpenPurges returns up to limit purges that have something to do, the oldest first.
func (s *Store) OpenPurges(ctx context.Context, limit int) ([]PurgeKey, error) {
	var open []PurgeKey
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var k PurgeKey
		err := row.Scan(&k.Kind, &k.Subject)
		open = append(open, k)
		return err
	}, `SELECT kind, subject FROM purges WHERE finished_at=0 AND (kind='session' OR created_at<=@now@-$1)
		ORDER BY CASE WHEN kind='session' THEN 0 ELSE 1 END, created_at LIMIT $2`, orgPurgeDelay.Milliseconds(), limit)
	if err != nil {
		return nil, fmt.Errorf("look for purges: %w", err)
	}
	return open, nil
}

// PurgeBatch does one short transaction of a purge, which deletes up to about limit rows. more: the next one may follow
// at once; otherwise the purge is finished, somebody else is at it, or it waits, such as for the owner of a session to
// let it go.
func (s *Store) PurgeBatch(ctx context.Context, k PurgeKey, limit int) (n int, more bool, err error) {
	err = s.InTx(ctx, func(ctx context.Context) error {
		n, more = 0, false
		p := purge{PurgeKey: k, limit: limit}
		var step int
		err := s.row(ctx, `SELECT step, place FROM purges WHERE kind=$1 AND subject=$2 AND finished_at=0 @skip@`, k.Kind, k.Subject).Scan(&step, &p.place)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return nil
		case err != nil:
			return unavailable(err)
		}
		steps := s.purgeSteps(k.Kind)
		if step < len(steps) {
			deleted, err := steps[step].run(ctx, &p)
			if err != nil {
				return fmt.Errorf("%s: %w", steps[step].name, err)
			}
			n = int(deleted)
			if p.wait {
				return nil
			}
			if n == 0 && !p.more {
				step, p.place = step+1, 0
			}
		}
		more = step < len(steps)
		_, err = s.exec(ctx, `UPDATE purges SET step=$3, place=$4, deleted=deleted+$5, finished_at=CASE WHEN $6 THEN finished_at ELSE @now@ END
			WHERE kind=$1 AND subject=$2`, k.Kind, k.Subject, step, p.place, n, more)
		return err
	})
	if err != nil {
		return 0, false, fmt.Errorf("purge %s %s: %w", k.Kind, k.Subject, err)
	}
	return n, more, nil
}

// ListPurges reads the purges of an organization, "" for all, the latest first.
func (s *Store) ListPurges(ctx context.Context, org fleet.OrgID, limit int) ([]Purge, error) {
	var all []Purge
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var p Purge
		err := row.Scan(&p.Kind, &p.Subject, &p.Org, &p.Slug, &p.Step, &p.Deleted, at{&p.CreatedAt}, at{&p.FinishedAt})
		p.Steps = len(s.purgeSteps(p.Kind))
		all = append(all, p)
		return err
	}, `SELECT p.kind, p.subject, p.org_id, coalesce((SELECT s.slug FROM sessions s WHERE p.kind='session' AND s.id=p.subject), ''),
			p.step, p.deleted, p.created_at, p.finished_at
		FROM purges p WHERE $1='' OR p.org_id=$1 ORDER BY p.created_at DESC, p.subject LIMIT $2`, string(org), limit)
	if err != nil {
		return nil, fmt.Errorf("list purges: %w", err)
	}
	return all, nil
}

// PurgePurges forgets up to limit purges that were finished before a time.
func (s *Store) PurgePurges(ctx context.Context, before time.Time, limit int) (int, error) {
	n, err := s.exec(ctx, `DELETE FROM purges WHERE (kind, subject) IN (SELECT kind, subject FROM purges WHERE finished_at>0 AND finished_at<$1 LIMIT $2)`, ms(before), limit)
	if err != nil {
		return 0, fmt.Errorf("forget purges: %w", err)
	}
	return int(n), nil
}

// deleteSome deletes up to limit rows of a table, the last argument, for which where is true.
func (s *Store) deleteSome(ctx context.Context, table, where, limit string, args ...any) (int64, error) {
	if s.Postgres() {
		return s.exec(ctx, `DELETE FROM `+table+` WHERE ctid=ANY(ARRAY(SELECT ctid FROM `+table+` WHERE `+where+` LIMIT `+limit+`))`, args...)
	}
	return s.exec(ctx, `DELETE FROM `+table+` WHERE rowid IN (SELECT rowid FROM `+table+` WHERE `+where+` LIMIT `+limit+`)`, args...)
}

// deleting is the step that deletes the rows of a table for which where is true of $1, the subject.
func (s *Store) deleting(table, where string) func(context.Context, *purge) (int64, error) {
	return func(ctx context.Context, p *purge) (int64, error) {
		return s.deleteSome(ctx, table, where, "$2", p.Subject, p.limit)
	}
}

// walking is the step that walks through a table by its numbers, because it has no index by organization. What comes
// before has the same arguments as the DELETE: organization, and between which numbers.
func (s *Store) walking(table, number string, before ...string) func(context.Context, *purge) (int64, error) {
	return func(ctx context.Context, p *purge) (int64, error) {
		var low, high int64
		err := s.row(ctx, `SELECT coalesce((SELECT min(`+number+`) FROM `+table+` WHERE `+number+`>$1), 0), coalesce((SELECT max(`+number+`) FROM `+table+`), 0)`, p.place).
			Scan(&low, &high)
		if err != nil {
			return 0, unavailable(err)
		}
		if low == 0 {
			return 0, nil
		}
		from, to := low-1, low-1+purgeWalk
		for _, q := range before {
			if _, err := s.exec(ctx, q, p.Subject, from, to); err != nil {
				return 0, err
			}
		}
		n, err := s.exec(ctx, `DELETE FROM `+table+` WHERE org_id=$1 AND `+number+`>$2 AND `+number+`<=$3`, p.Subject, from, to)
		p.place, p.more = to, to < high
		return n, err
	}
}

// purgeLease takes the lease of a deleted session that nobody owns any more, under an epoch of its own, so that nothing
// an earlier owner may still write counts; and lets go of its device. Who was its number, and since when, stays: messages
// name the session, and the age of a number does not begin anew.
func (s *Store) purgeLease(ctx context.Context, p *purge) (int64, error) {
	n, err := s.exec(ctx, `UPDATE leases SET owner='', epoch=epoch+1, expires_at=0 WHERE session_id=$1 AND (owner='' OR expires_at<=@now@)`, p.Subject)
	if err != nil {
		return 0, err
	}
	if n == 0 {
		p.wait = true
		return 0, nil
	}
	if _, err := s.exec(ctx, `INSERT INTO former_devices (jid, session_id) SELECT device_jid, id FROM sessions WHERE id=$1 AND device_jid<>'' ON CONFLICT DO NOTHING`, p.Subject); err != nil {
		return 0, err
	}
	_, err = s.exec(ctx, `UPDATE sessions SET device_jid='', lid='', push_name='', last_error='',
			pairing_method='', pairing_qr='', pairing_code='', pairing_expires_at=0, pairing_ends_at=0 WHERE id=$1`, p.Subject)
	return 0, err
}

// purgeDevicesGone waits for the keys of the session's devices to be gone, which whoever knows their tables deletes.
func (s *Store) purgeDevicesGone(ctx context.Context, p *purge) (int64, error) {
	err := s.row(ctx, `SELECT EXISTS (SELECT 1 FROM former_devices WHERE session_id=$1)`, p.Subject).Scan(&p.wait)
	return 0, unavailable(err)
}

// purgeSessionsGone waits for the purges of the organization's sessions.
func (s *Store) purgeSessionsGone(ctx context.Context, p *purge) (int64, error) {
	err := s.row(ctx, `SELECT EXISTS (SELECT 1 FROM purges WHERE kind='session' AND org_id=$1 AND finished_at=0)
		OR EXISTS (SELECT 1 FROM sessions WHERE org_id=$1 AND desired<>'deleted')`, p.Subject).Scan(&p.wait)
	return 0, unavailable(err)
}

func (s *Store) purgeOrgMessages(ctx context.Context, p *purge) (int64, error) {
	return s.deleteMessages(ctx, `org_id=$1`, p.limit, p.Subject)
}

// purgeContacts deletes contacts with the counters of their conversations.
func (s *Store) purgeContacts(ctx context.Context, p *purge) (int64, error) {
	var keyed string
	if err := s.row(ctx, `SELECT @keyed@`).Scan(&keyed); err != nil {
		return 0, unavailable(err)
	}
	conversations, err := column[string](ctx, s, `SELECT conversation_id FROM contacts WHERE org_id=$1 ORDER BY id LIMIT $2`, p.Subject, p.limit)
	if err != nil || len(conversations) == 0 {
		return 0, err
	}
	if _, err := s.exec(ctx, `DELETE FROM streams WHERE id IN (SELECT id FROM @ids:$1@ AS gone)`, idList(conversations)); err != nil {
		return 0, err
	}
	return s.exec(ctx, `DELETE FROM contacts WHERE conversation_id IN (SELECT id FROM @ids:$1@ AS gone)`, idList(conversations))
}

// purgeSessions deletes the rows of sessions. One that sent or received for another organization before it was moved
// becomes a deleted session of that one, whose messages name it.
func (s *Store) purgeSessions(ctx context.Context, p *purge) (int64, error) {
	ids, err := column[fleet.SessionID](ctx, s, `SELECT id FROM sessions WHERE org_id=$1 ORDER BY id LIMIT 50`, p.Subject)
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	var keyed string
	if err := s.row(ctx, `SELECT @keyed@`).Scan(&keyed); err != nil {
		return 0, unavailable(err)
	}
	const of = ` IN (SELECT id FROM @ids:$1@ AS gone)`
	left, err := s.exec(ctx, `UPDATE sessions SET org_id=coalesce((SELECT m.org_id FROM messages m WHERE m.session_id=sessions.id LIMIT 1),
			(SELECT i.org_id FROM inbound_messages i WHERE i.session_id=sessions.id LIMIT 1))
		WHERE id`+of+` AND (EXISTS (SELECT 1 FROM messages m WHERE m.session_id=sessions.id) OR EXISTS (SELECT 1 FROM inbound_messages i WHERE i.session_id=sessions.id))`, idList(ids))
	if err != nil {
		return 0, err
	}
	if left > 0 {
		p.more = true
		return 0, nil
	}
	var n int64
	for _, q := range []string{
		`DELETE FROM attempts WHERE session_id`, `DELETE FROM commands WHERE session_id`, `DELETE FROM chats WHERE session_id`,
		`DELETE FROM streams WHERE id`, `DELETE FROM lease_log WHERE session_id`, `DELETE FROM leases WHERE session_id`, `DELETE FROM sessions WHERE id`,
	} {
		gone, err := s.exec(ctx, q+of, idList(ids))
		if err != nil {
			return 0, err
		}
		n += gone
	}
	return n, nil
}

// purgeOrgRow leaves an empty row, so that the organization's name is not used again.
func (s *Store) purgeOrgRow(ctx context.Context, p *purge) (int64, error) {
	if _, err := s.exec(ctx, `UPDATE organizations SET label='', head_session_id='', people_rules='' WHERE id=$1`, p.Subject); err != nil {
		return 0, err
	}
	return s.exec(ctx, `DELETE FROM streams WHERE id=$1`, p.Subject)
}
