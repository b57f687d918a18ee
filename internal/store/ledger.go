package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

// LedgerRows is what the ledger of budgets is made from when it was lost.
type LedgerRows struct {
	Generation  int64
	Now         time.Time // by the database's clock
	Frames      []FrameRow
	Outstanding []string // reservations of messages whose frame has not left for certain
	Tried       []TriedRow
	Pins        []PinRow
	Backlog     map[fleet.ProjectID]int64
	Quota       []QuotaRow
}

// FrameRow is a number of frames of one session that left at this time or shortly before.
type FrameRow struct {
	Session  fleet.SessionSlug
	At       time.Time
	Frames   int
	NewChats int // of them, first messages to somebody
}

// TriedRow is what became of one frame, in the order in which they left.
type TriedRow struct {
	Session fleet.SessionSlug
	Outcome fleet.Outcome
	Code    int
}

// PinRow is who a person hears from.
type PinRow struct {
	Org     fleet.OrgID
	Key     string
	Session fleet.SessionSlug
	Until   time.Time
}

// QuotaRow is what a project used in a month.
type QuotaRow struct {
	Project fleet.ProjectID
	Month   string // "2026-11"
	Used    int64
}

// RebuildLedger holds the ledger's row while fn runs, so that only one process rebuilds and no message is
// inserted meanwhile. Once fn calls read, the ledger has a new generation: what was reserved under an
// earlier one can't be inserted any more, and what read returns has everything that was.
func (s *Store) RebuildLedger(ctx context.Context, fn func(ctx context.Context, read func(ctx context.Context) (LedgerRows, error)) error) error {
	err := s.InTx(ctx, func(ctx context.Context) error {
		var generation int64
		if err := s.row(ctx, `SELECT generation FROM ledger WHERE name='ledger' @update@`).Scan(&generation); err != nil {
			return unavailable(err)
		}
		return fn(ctx, s.ledgerRows)
	})
	if err != nil {
		return fmt.Errorf("rebuild ledger: %w", err)
	}
	return nil
}

func (s *Store) ledgerRows(ctx context.Context) (LedgerRows, error) {
	rows := LedgerRows{Backlog: map[fleet.ProjectID]int64{}}
	// Not only one more than before: if this is not committed, nobody else's may have the same number.
	err := s.row(ctx, `UPDATE ledger SET generation = CASE WHEN generation < @now@ THEN @now@ ELSE generation + 1 END WHERE name='ledger'
		RETURNING generation, @now@`).Scan(&rows.Generation, at{&rows.Now})
	if err != nil {
		return rows, unavailable(err)
	}
	for _, read := range []func(context.Context, *LedgerRows) error{s.readFrames, s.readTried, s.readOutstanding, s.readPins, s.readUse} {
		if err := read(ctx, &rows); err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// readFrames sums frames finely where a window is short. A frame whose outcome nobody knows yet is
// outstanding instead.
func (s *Store) readFrames(ctx context.Context, rows *LedgerRows) error {
	return s.query(ctx, func(row dbutil.Scannable) error {
		var f FrameRow
		err := row.Scan(&f.Session, at{&f.At}, &f.Frames, &f.NewChats)
		rows.Frames = append(rows.Frames, f)
		return err
	}, `SELECT s.slug, max(f.at), count(*), sum(f.opened) FROM (
			SELECT a.session_id, a.at, CASE WHEN m.opened AND a.kind='send' THEN 1 ELSE 0 END AS opened,
				CASE WHEN a.at>@now@-120000 THEN a.at/1000 WHEN a.at>@now@-7200000 THEN a.at/60000 ELSE a.at/1200000 END AS part
			FROM sessions s JOIN attempts a ON a.session_id=s.id JOIN messages m ON m.id=a.message_id
			WHERE a.at>@now@-90000000 AND a.outcome<>'nothing'
				AND NOT (a.outcome='' AND a.kind='send' AND m.status='sending' AND m.outcome='' AND m.reservation<>'')) AS f
		JOIN sessions s ON s.id=f.session_id GROUP BY s.slug, f.part`)
}

// readTried reads what became of the latest frames of sessions that had a refusal among them.
func (s *Store) readTried(ctx context.Context, rows *LedgerRows) error {
	return s.query(ctx, func(row dbutil.Scannable) error {
		var t TriedRow
		err := row.Scan(&t.Session, &t.Outcome, &t.Code)
		rows.Tried = append(rows.Tried, t)
		return err
	}, `SELECT s.slug, a.outcome, a.code FROM attempts a JOIN sessions s ON s.id=a.session_id
		WHERE a.at>@now@-21600000 AND a.outcome IN ('sent', 'refused')
			AND EXISTS (SELECT 1 FROM attempts r WHERE r.session_id=s.id AND r.at>@now@-21600000 AND r.outcome='refused')
		ORDER BY a.at, a.message_id, a.n`)
}

func (s *Store) readOutstanding(ctx context.Context, rows *LedgerRows) error {
	var err error
	rows.Outstanding, err = column[string](ctx, s, `SELECT reservation FROM messages
		WHERE status IN ('queued', 'sending') AND reservation<>'' AND (status='queued' OR outcome='')`)
	return err
}

// readPins finds who wrote to a person last; where nobody did, who heard from them last.
func (s *Store) readPins(ctx context.Context, rows *LedgerRows) error {
	var longest int64
	if err := s.row(ctx, `SELECT coalesce(max(affinity_ttl), 0) FROM organizations`).Scan(&longest); err != nil {
		return unavailable(err)
	}
	first, err := s.before(ctx, messagesByAge, rows.Now.Add(-time.Duration(longest)*time.Millisecond-commitSkew))
	if err != nil {
		return err
	}
	return s.query(ctx, func(row dbutil.Scannable) error {
		var p PinRow
		err := row.Scan(&p.Org, &p.Key, &p.Session, at{&p.Until})
		rows.Pins = append(rows.Pins, p)
		return err
	}, `SELECT p.org_id, p.contact_key, s.slug, p.until FROM (
			SELECT w.org_id, w.contact_key, w.session_id, w.at+o.affinity_ttl AS until,
				row_number() OVER (PARTITION BY w.org_id, w.contact_key ORDER BY w.sent DESC, w.at DESC) AS place
			FROM (SELECT m.org_id, m.contact_key, m.session_id, m.created_at AS at, 1 AS sent FROM messages m
					WHERE m.seq>=$1 AND NOT m.parked
						AND (m.send_at=0 OR m.attempts>0) AND m.status NOT IN ('cancelled', 'suppressed')
				UNION ALL
				SELECT c.org_id, c.contact_key, i.session_id, i.received_at, 0 FROM inbound_messages i JOIN contacts c ON c.conversation_id=i.conversation_id
					WHERE i.received_at>@now@-(SELECT max(affinity_ttl) FROM organizations)) AS w
			JOIN organizations o ON o.id=w.org_id WHERE w.at+o.affinity_ttl>@now@) AS p
		JOIN sessions s ON s.id=p.session_id WHERE p.place=1 AND s.desired<>'deleted' AND NOT s.detached`, first)
}

// readUse reads what projects have waiting, and what they used of this month's quota.
func (s *Store) readUse(ctx context.Context, rows *LedgerRows) error {
	var err error
	if rows.Backlog, err = s.Backlogs(ctx); err != nil {
		return err
	}
	type project struct {
		id    fleet.ProjectID
		month string
		from  time.Time
	}
	var limited []project
	err = s.query(ctx, func(row dbutil.Scannable) error {
		var p project
		var zone string
		var since time.Time
		if err := row.Scan(&p.id, &zone, at{&since}); err != nil {
			return err
		}
		p.month, p.from = fleet.Month(rows.Now, zone)
		if since.After(p.from) { // it had none before
			p.from = since
		}
		limited = append(limited, p)
		return nil
	}, `SELECT p.id, o.time_zone, p.quota_since FROM projects p JOIN organizations o ON o.id=p.org_id WHERE p.monthly_quota>0 AND p.deleted_at=0`)
	if err != nil {
		return err
	}
	for _, p := range limited {
		q := QuotaRow{Project: p.id, Month: p.month}
		first, err := s.before(ctx, messagesByAge, p.from.Add(-commitSkew))
		if err != nil {
			return err
		}
		err = s.row(ctx, `SELECT count(*) FROM messages m WHERE m.project_id=$1 AND m.org_id=(SELECT org_id FROM projects WHERE id=$1) AND m.seq>=$3
			AND m.created_at>=$2 AND NOT `+endedUnsent, p.id, ms(p.from), first).Scan(&q.Used)
		if err != nil {
			return fmt.Errorf("count quota of project %s: %w", p.id, unavailable(err))
		}
		rows.Quota = append(rows.Quota, q)
	}
	return nil
}

// Backlogs counts the messages that wait to be sent, scheduled ones too, by project.
func (s *Store) Backlogs(ctx context.Context) (map[fleet.ProjectID]int64, error) {
	all := map[fleet.ProjectID]int64{}
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var id fleet.ProjectID
		var n int64
		err := row.Scan(&id, &n)
		all[id] = n
		return err
	}, `SELECT project_id, count(*) FROM messages WHERE status IN ('queued', 'sending') AND (status='queued' OR outcome='') GROUP BY project_id`)
	if err != nil {
		return nil, fmt.Errorf("count waiting messages: %w", err)
	}
	return all, nil
}

// endedUnsent is true for a message that ended before any frame, word for word as in the index messages_owed.
const endedUnsent = `(status IN ('cancelled', 'expired', 'suppressed') OR status = 'failed' AND attempts = 0)`

// TakeOwed takes up to limit reservations off messages that ended before a frame, those of one message only
// if it is named, so that whoever got them gives them back to the ledger, once. A chat that such a message
// opened was not opened.
func (s *Store) TakeOwed(ctx context.Context, id fleet.MessageID, limit int) (owed []string, err error) {
	err = s.InTx(ctx, func(ctx context.Context) error {
		owed = nil
		var opened []chatArg
		var seqs []int64
		err := s.query(ctx, func(r dbutil.Scannable) error {
			var seq int64
			var reservation string
			var chat chatArg
			var open bool
			err := r.Scan(&seq, &reservation, &chat.Contact, &chat.Session, &open)
			seqs, owed = append(seqs, seq), append(owed, reservation)
			if open {
				opened = append(opened, chat)
			}
			return err
		}, `SELECT seq, reservation, contact_key, session_id, opened FROM messages
			WHERE reservation <> '' AND `+endedUnsent+` AND ($1='' OR id=$1)
			ORDER BY seq LIMIT CAST($2 AS BIGINT) @skip@`, string(id), limit)
		if err != nil || len(seqs) == 0 {
			return err
		}
		for _, seq := range seqs {
			if _, err := s.exec(ctx, `UPDATE messages SET reservation='' WHERE seq=$1`, seq); err != nil {
				return err
			}
		}
		slices.SortFunc(opened, byChat)
		for _, chat := range opened {
			if err := s.unopen(ctx, chat); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("take back reservations: %w", err)
	}
	return owed, nil
}
