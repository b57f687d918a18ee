package store

import (
	"context"
	"fmt"
	"time"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

// usageDays is for how many days back what was counted is counted again: what became of a message is known late.
const usageDays = 3

// RollUpUsage counts what projects sent and organizations received today and in the days before, by day of the
// organization's time zone, and stores it. Counting anew gives the same, however often it is done and wherever it was
// interrupted. Retention must keep messages for longer than these days.
func (s *Store) RollUpUsage(ctx context.Context) (int, error) {
	now, err := s.Now(ctx)
	if err != nil {
		return 0, err
	}
	zones, err := column[string](ctx, s, `SELECT DISTINCT time_zone FROM organizations WHERE deleted_at=0 ORDER BY time_zone`)
	if err != nil {
		return 0, fmt.Errorf("roll up usage: %w", err)
	}
	total := 0
	for _, zone := range zones {
		where, err := time.LoadLocation(zone)
		if err != nil {
			where = time.UTC
		}
		local := now.In(where)
		for back := range usageDays {
			from := time.Date(local.Year(), local.Month(), local.Day()-back, 0, 0, 0, 0, where)
			to := time.Date(local.Year(), local.Month(), local.Day()-back+1, 0, 0, 0, 0, where)
			n, err := s.rollUp(ctx, zone, from, to)
			if err != nil {
				return total, fmt.Errorf("roll up usage of %s in %s: %w", from.Format(time.DateOnly), zone, err)
			}
			total += n
		}
	}
	return total, nil
}

func (s *Store) rollUp(ctx context.Context, zone string, from, to time.Time) (int, error) {
	first, err := s.before(ctx, messagesByAge, from.Add(-commitSkew))
	if err != nil {
		return 0, err
	}
	last, err := s.before(ctx, messagesByAge, to.Add(commitSkew))
	if err != nil {
		return 0, err
	}
	day := from.Format(time.DateOnly)
	sent, err := s.exec(ctx, `INSERT INTO usage_days (org_id, project_id, day, accepted, sent, delivered, failed)
		SELECT m.org_id, m.project_id, CAST($1 AS TEXT), count(*), sum(CASE WHEN m.sent_at>0 THEN 1 ELSE 0 END),
			sum(CASE WHEN m.delivered_at>0 OR m.read_at>0 OR m.played_at>0 THEN 1 ELSE 0 END),
			sum(CASE WHEN m.sent_at=0 AND m.status IN ('failed', 'expired', 'cancelled', 'suppressed') THEN 1 ELSE 0 END)
		FROM messages m JOIN organizations o ON o.id=m.org_id AND o.time_zone=$2 AND o.deleted_at=0
		WHERE m.seq>=$3 AND m.seq<$4 AND m.created_at>=$5 AND m.created_at<$6 GROUP BY m.org_id, m.project_id
		ON CONFLICT (org_id, project_id, day) DO UPDATE SET accepted=excluded.accepted, sent=excluded.sent, delivered=excluded.delivered, failed=excluded.failed`,
		day, zone, first, last, ms(from), ms(to))
	if err != nil {
		return 0, err
	}
	received, err := s.exec(ctx, `INSERT INTO usage_days (org_id, project_id, day, received)
		SELECT i.org_id, '', CAST($1 AS TEXT), count(*) FROM inbound_messages i JOIN organizations o ON o.id=i.org_id AND o.time_zone=$2 AND o.deleted_at=0
		WHERE i.received_at>=$3 AND i.received_at<$4 GROUP BY i.org_id
		ON CONFLICT (org_id, project_id, day) DO UPDATE SET received=excluded.received`, day, zone, ms(from), ms(to))
	return int(sent + received), err
}

// UsageQuery selects days of usage: from and to are days themselves, both included.
type UsageQuery struct {
	Org      fleet.OrgID // "" = of every organization
	From, To string
	Limit    int
}

// ListUsage reads usage in the order of days, organizations and projects.
func (s *Store) ListUsage(ctx context.Context, q UsageQuery) ([]fleet.Usage, error) {
	var all []fleet.Usage
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var u fleet.Usage
		err := row.Scan(&u.OrgID, &u.ProjectID, &u.Day, &u.Accepted, &u.Sent, &u.Delivered, &u.Failed, &u.Received)
		all = append(all, u)
		return err
	}, `SELECT org_id, project_id, day, accepted, sent, delivered, failed, received FROM usage_days
		WHERE ($1='' OR org_id=$1) AND day>=$2 AND day<=$3 ORDER BY day, org_id, project_id LIMIT $4`, string(q.Org), q.From, q.To, q.Limit)
	if err != nil {
		return nil, fmt.Errorf("list usage: %w", err)
	}
	return all, nil
}
