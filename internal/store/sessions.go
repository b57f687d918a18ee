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

// sessionSelect reads sessions beside their leases; live says by the database's clock whether the
// lease still runs, so no reader compares it with a clock of its own.
const sessionColumns = `s.id, s.slug, s.org_id, s.label, s.position, s.desired, s.paused,
	s.observed, s.observed_since, s.observed_epoch, s.generation, s.reason, s.reason_code, s.last_error, s.attempts,
	s.retry_at, s.until_at, s.phone, s.device_jid, s.lid, s.push_name, s.platform, s.paired_at, s.revoked_at,
	s.pairing_method, s.pairing_qr, s.pairing_code, s.pairing_expires_at, s.pairing_ends_at, s.invite_id, s.created_at,
	s.detached, s.budget_minute, s.budget_hour, s.budget_day, s.new_chats_day, s.rate_minute, s.rate_burst, s.warmup_at,
	(SELECT n.cold_until FROM number_limits n WHERE n.phone = s.phone), (SELECT n.capped_until FROM number_limits n WHERE n.phone = s.phone),
	l.owner, l.epoch, l.expires_at, l.owner <> '' AND l.expires_at > @now@`

const sessionSelect = `SELECT ` + sessionColumns + ` FROM sessions s JOIN leases l ON l.session_id = s.id `

// scanSession reads sessionColumns and what more the statement selects.
func scanSession(row dbutil.Scannable, more ...any) (fleet.Session, error) {
	var v fleet.Session
	err := row.Scan(append([]any{
		&v.ID, &v.Slug, &v.OrgID, &v.Label, &v.Position, &v.Desired, &v.Paused,
		&v.Observed,
		at{&v.ObservedSince},
		&v.Epoch, &v.Generation, &v.Reason, &v.ReasonCode, &v.LastError, &v.Attempts,
		at{&v.RetryAt},
		at{&v.Until},
		&v.Phone, &v.DeviceJID, &v.LID, &v.PushName, &v.Platform,
		at{&v.PairedAt},
		at{&v.RevokedAt},
		&v.Pairing.Method, &v.Pairing.QR, &v.Pairing.Code,
		at{&v.Pairing.ExpiresAt},
		at{&v.Pairing.EndsAt},
		&v.InviteID,
		at{&v.CreatedAt},
		&v.Detached,
		&v.Budget.PerMinute, &v.Budget.PerHour, &v.Budget.PerDay, &v.Budget.NewChatsPerDay, &v.Rate.PerMinute, &v.Rate.Burst,
		at{&v.WarmupAt},
		at{&v.ColdUntil},
		at{&v.CappedUntil},
		&v.LeaseOwner, &v.LeaseEpoch,
		at{&v.LeaseExpiresAt},
		&v.LeaseLive,
	}, more...)...)
	return v, err
}

// NewSession is what an operator says of a session to be made.
type NewSession struct {
	Org   fleet.OrgID
	Slug  fleet.SessionSlug // "" = the next of the organization: "org-a-01", "org-a-02", …
	Label string
	// Invite is the pairing link that adds it; "" = an operator does. Taking the link's slot is
	// AddThroughInvite's.
	Invite fleet.InviteID
	// Warmed says that its number has been sending elsewhere: no ramp begins when it is paired.
	Warmed bool
	// WarmupAt is when its ramp began there, if it still runs; the zero time with Warmed is long ago.
	WarmupAt time.Time
	// Phone is the number it had elsewhere, in digits: only that one can be linked to it, as its age is
	// that number's. "" = not known.
	Phone string
}

// CreateSession makes a session at the end of its organization's list, with a lease that nobody
// owns, wanted running and not paired. The first one of an organization becomes its head.
// fleet.ErrNotFound: no such organization. fleet.ErrConflict: the slug is taken; a deleted
// session's slug stays taken, so that old events and logs keep one meaning.
func (s *Store) CreateSession(ctx context.Context, n NewSession) (fleet.Session, error) {
	if n.Slug != "" && !fleet.ValidSlug(string(n.Slug)) {
		return fleet.Session{}, fmt.Errorf("create session: %w: slug", fleet.ErrInvalid)
	}
	var out fleet.Session
	err := s.InTx(ctx, func(ctx context.Context) error {
		slug, err := s.claimSlug(ctx, n)
		if err != nil {
			return err
		}
		id := fleet.NewSessionID()
		key := fleet.ShardKey(id)
		warmup := ms(n.WarmupAt)
		if n.Warmed && warmup == 0 {
			warmup = 1 // long ago
		}
		_, err = s.exec(ctx, `INSERT INTO sessions (id, shard_key, slug, org_id, label, position, desired, observed, observed_since, invite_id, created_at, warmup_at, phone)
			SELECT $1, $2, $3, $4, $5, coalesce(max(position), 0) + 1, 'running', 'needs_pairing', @now@, $6, @now@, CAST($7 AS BIGINT), $8 FROM sessions WHERE org_id = $4`,
			id, key, slug, n.Org, n.Label, n.Invite, warmup, n.Phone)
		if err != nil {
			return err
		}
		if _, err := s.exec(ctx, `INSERT INTO leases (session_id) VALUES ($1)`, id); err != nil {
			return err
		}
		_, err = s.exec(ctx, `UPDATE organizations SET head_session_id = $2 WHERE id = $1 AND head_session_id = ''`, n.Org, id)
		if err != nil {
			return err
		}
		if out, err = s.SessionByID(ctx, id); err != nil {
			return err
		}
		return s.audit(ctx, change{action: "session.create", org: n.Org, subject: string(slug), after: auditSession(&out)})
	})
	if err != nil {
		return out, fmt.Errorf("create session in %s: %w", n.Org, err)
	}
	return out, nil
}

// claimSlug writes the organization's row in every case: it makes creations in one organization
// wait for each other, and says whether there is such an organization.
func (s *Store) claimSlug(ctx context.Context, n NewSession) (fleet.SessionSlug, error) {
	step := 1
	if n.Slug != "" {
		step = 0
	}
	for {
		var next int
		err := s.row(ctx, `UPDATE organizations SET next_number = next_number + $2 WHERE id = $1 AND deleted_at = 0 RETURNING next_number`, n.Org, step).Scan(&next)
		if err != nil {
			return "", notFound(err)
		}
		if n.Slug != "" {
			return n.Slug, nil
		}
		slug := fleet.SessionSlug(fmt.Sprintf("%s-%02d", n.Org, next-step))
		if !fleet.ValidSlug(string(slug)) {
			return "", fmt.Errorf("%w: %s is too long for a session id, give one", fleet.ErrInvalid, slug)
		}
		var taken int
		if err := s.row(ctx, `SELECT count(*) FROM sessions WHERE slug = $1`, slug).Scan(&taken); err != nil {
			return "", unavailable(err)
		}
		if taken == 0 {
			return slug, nil // somebody may have chosen this very name by hand; then the next number
		}
	}
}

// SessionByID reads one session, also a deleted one, or fleet.ErrNotFound.
func (s *Store) SessionByID(ctx context.Context, id fleet.SessionID) (fleet.Session, error) {
	v, err := scanSession(s.row(ctx, sessionSelect+`WHERE s.id = $1`, id))
	if err != nil {
		return v, fmt.Errorf("get session %s: %w", id, notFound(err))
	}
	return v, nil
}

// SessionBySlug reads one session that is not deleted, or fleet.ErrNotFound. Text that is no slug
// matches nothing.
func (s *Store) SessionBySlug(ctx context.Context, slug fleet.SessionSlug) (fleet.Session, error) {
	if !fleet.ValidSlug(string(slug)) {
		return fleet.Session{}, fmt.Errorf("get session: %w", fleet.ErrNotFound)
	}
	v, err := scanSession(s.row(ctx, sessionSelect+`WHERE s.slug = $1 AND s.desired <> 'deleted'`, slug))
	if err != nil {
		return v, fmt.Errorf("get session %s: %w", slug, notFound(err))
	}
	return v, nil
}

// SlugOwner says which organization a session id belongs to, that of a deleted session too: it stays
// taken. False: it is free.
func (s *Store) SlugOwner(ctx context.Context, slug fleet.SessionSlug) (org fleet.OrgID, taken bool, err error) {
	var desired fleet.Desired
	err = s.row(ctx, `SELECT org_id, desired FROM sessions WHERE slug = $1`, slug).Scan(&org, &desired)
	switch err = notFound(err); {
	case errors.Is(err, fleet.ErrNotFound):
		return "", false, nil
	case err != nil:
		return "", false, fmt.Errorf("look for session %s: %w", slug, err)
	case desired == fleet.DesiredDeleted:
		return "", true, nil
	default:
		return org, true, nil
	}
}

// NumberOwner says which live session has a phone number; "" = none.
func (s *Store) NumberOwner(ctx context.Context, phone string) (fleet.SessionSlug, error) {
	var slug fleet.SessionSlug
	err := s.row(ctx, `SELECT slug FROM sessions WHERE phone = $1 AND phone <> '' AND desired <> 'deleted'`, phone).Scan(&slug)
	if err = notFound(err); err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return "", fmt.Errorf("look for a number: %w", err)
	}
	return slug, nil
}

// OrgSessions reads an organization's sessions in list order, without deleted ones.
func (s *Store) OrgSessions(ctx context.Context, org fleet.OrgID) ([]fleet.Session, error) {
	out, err := s.sessions(ctx, `WHERE s.org_id = $1 AND s.desired <> 'deleted' ORDER BY s.position, s.slug`, org)
	if err != nil {
		return nil, fmt.Errorf("list sessions of %s: %w", org, err)
	}
	return out, nil
}

// Senders is what a send of an organization is decided on.
type Senders struct {
	Sessions    []fleet.Session   // in list order, without deleted ones
	Head        fleet.SessionSlug // what consumers see as sessionId; see HeadSlug
	Strategy    fleet.Strategy    // without sessions it and what follows is zero
	AffinityTTL time.Duration
	TimeZone    string
	Rate        fleet.Rate
	Projects    map[fleet.ProjectID]fleet.Entitlements
}

// orgLook asks for one organization's senders.
type orgLook struct {
	org   fleet.OrgID
	found Senders
}

// Senders reads an organization's sessions as they are now. Callers that ask at about the same time
// share one statement, which begins after they asked.
func (s *Store) Senders(ctx context.Context, org fleet.OrgID) (Senders, error) {
	look := &orgLook{org: org}
	if err := s.looks.Do(ctx, look); err != nil {
		return Senders{}, fmt.Errorf("look at sessions of %s: %w", org, err)
	}
	return look.found, nil
}

func (s *Store) lookAtAll(ctx context.Context, looks []*orgLook) error {
	found := map[fleet.OrgID]*Senders{}
	orgs := make([]fleet.OrgID, 0, len(looks))
	for _, look := range looks {
		if found[look.org] == nil {
			found[look.org] = &Senders{}
			orgs = append(orgs, look.org)
		}
	}
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var head sql.Null[fleet.SessionSlug]
		var strategy fleet.Strategy
		var ttl int64
		var rate fleet.Rate
		var zone string
		v, err := scanSession(row, &head, &strategy, &ttl, &zone, &rate.PerMinute, &rate.Burst)
		if err != nil {
			return err
		}
		o := found[v.OrgID]
		o.Sessions, o.Head, o.Strategy, o.AffinityTTL, o.TimeZone, o.Rate = append(o.Sessions, v), head.V, strategy, time.Duration(ttl)*time.Millisecond, zone, rate
		return nil
	}, `SELECT `+sessionColumns+`, (SELECT h.slug FROM sessions h WHERE h.id = o.head_session_id), o.strategy, o.affinity_ttl, o.time_zone,
			o.rate_minute, o.rate_burst
		FROM @ids:$1@ AS wanted JOIN organizations o ON o.id = wanted.id JOIN sessions s ON s.org_id = o.id JOIN leases l ON l.session_id = s.id
		WHERE s.desired <> 'deleted' ORDER BY s.org_id, s.position, s.slug`, idList(orgs))
	if err != nil {
		return err
	}
	err = s.query(ctx, func(row dbutil.Scannable) error {
		var org fleet.OrgID
		var id fleet.ProjectID
		var e fleet.Entitlements
		err := row.Scan(&org, &id, &e.MonthlyQuota, &e.MaxBacklog, &e.RateMinute, &e.RateBurst)
		if o := found[org]; o != nil {
			if o.Projects == nil {
				o.Projects = map[fleet.ProjectID]fleet.Entitlements{}
			}
			o.Projects[id] = e
		}
		return err
	}, `SELECT p.org_id, p.id, p.monthly_quota, p.max_backlog, p.rate_minute, p.rate_burst
		FROM @ids:$1@ AS wanted JOIN projects p ON p.org_id = wanted.id AND p.deleted_at = 0`, idList(orgs))
	if err != nil {
		return err
	}
	for _, look := range looks {
		look.found = *found[look.org]
	}
	return nil
}

// SessionQuery selects sessions to list.
type SessionQuery struct {
	Org   fleet.OrgID       // "" = of every organization
	After fleet.SessionSlug // those with a later slug
	Limit int
}

// ListSessions reads sessions in slug order, without deleted ones.
func (s *Store) ListSessions(ctx context.Context, q SessionQuery) ([]fleet.Session, error) {
	out, err := s.sessions(ctx, `WHERE ($1 = '' OR s.org_id = $1) AND s.desired <> 'deleted' AND s.slug > $2 ORDER BY s.slug LIMIT $3`,
		string(q.Org), q.After, q.Limit)
	if err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	return out, nil
}

func (s *Store) sessions(ctx context.Context, where string, args ...any) ([]fleet.Session, error) {
	var out []fleet.Session
	err := s.query(ctx, func(row dbutil.Scannable) error {
		v, err := scanSession(row)
		out = append(out, v)
		return err
	}, sessionSelect+where, args...)
	return out, err
}

// ActiveSessions are the sessions that should be connected, of every organization and shard: those whose leases workers
// claim. They come in the order of their ids.
func (s *Store) ActiveSessions(ctx context.Context) ([]fleet.SessionID, error) {
	ids, err := column[fleet.SessionID](ctx, s, `SELECT s.id FROM sessions s WHERE s.desired = 'running' ORDER BY s.id`)
	if err != nil {
		return nil, fmt.Errorf("list active sessions: %w", err)
	}
	return ids, nil
}

// SessionChange says what to change of a session; nil means: leave it.
type SessionChange struct {
	Label   *string
	Paused  *bool
	Desired *fleet.Desired // running or stopped; deletion has a method of its own

	Budget         *fleet.Budget // all of it but NewChatsPerDay; negative parts are the default's
	NewChatsPerDay *int          // negative: the default

	RateMinute, RateBurst *int64 // how fast it may take messages
}

// UpdateSession changes one session's configuration, or says fleet.ErrNotFound. It never touches
// what the owner observed.
func (s *Store) UpdateSession(ctx context.Context, slug fleet.SessionSlug, c SessionChange) (fleet.Session, error) {
	if !fleet.ValidSlug(string(slug)) {
		return fleet.Session{}, fmt.Errorf("update session: %w", fleet.ErrNotFound)
	}
	if c.Desired != nil && *c.Desired != fleet.DesiredRunning && *c.Desired != fleet.DesiredStopped {
		return fleet.Session{}, fmt.Errorf("update session %s: %w: desired is running or stopped", slug, fleet.ErrInvalid)
	}
	var out fleet.Session
	err := s.InTx(ctx, func(ctx context.Context) error {
		before, err := s.SessionBySlug(ctx, slug)
		if err != nil {
			return err
		}
		var minute, hour, day *int
		if c.Budget != nil {
			minute, hour, day = &c.Budget.PerMinute, &c.Budget.PerHour, &c.Budget.PerDay
		}
		n, err := s.exec(ctx, `UPDATE sessions SET label = coalesce($2, label), paused = coalesce($3, paused), desired = coalesce($4, desired),
				budget_minute = coalesce($5, budget_minute), budget_hour = coalesce($6, budget_hour), budget_day = coalesce($7, budget_day),
				new_chats_day = coalesce($8, new_chats_day), rate_minute = coalesce($9, rate_minute), rate_burst = coalesce($10, rate_burst)
			WHERE slug = $1 AND desired <> 'deleted'`, slug, c.Label, c.Paused, c.Desired, minute, hour, day, c.NewChatsPerDay, c.RateMinute, c.RateBurst)
		if err := exactlyOne(n, err); err != nil {
			return err
		}
		if out, err = s.SessionBySlug(ctx, slug); err != nil {
			return err
		}
		return s.audit(ctx, change{action: "session.update", org: out.OrgID, subject: string(slug), before: auditSession(&before), after: auditSession(&out)})
	})
	if err != nil {
		return out, fmt.Errorf("update session %s: %w", slug, err)
	}
	return out, nil
}

// DeleteSession takes a session out of service for good and frees its number. The row stays, for
// the messages and events that name it; its owner sees desired "deleted" and ends it, and then it is purged. If it was its
// organization's head, the first session that is left in list order becomes the head.
func (s *Store) DeleteSession(ctx context.Context, slug fleet.SessionSlug) (fleet.Session, error) {
	if !fleet.ValidSlug(string(slug)) {
		return fleet.Session{}, fmt.Errorf("delete session: %w", fleet.ErrNotFound)
	}
	var id fleet.SessionID
	var org fleet.OrgID
	var out fleet.Session
	err := s.InTx(ctx, func(ctx context.Context) error {
		err := s.row(ctx, `SELECT id, org_id FROM sessions WHERE slug = $1 AND desired <> 'deleted'`, slug).Scan(&id, &org)
		if err != nil {
			return notFound(err)
		}
		if err := s.holdOrg(ctx, org); err != nil {
			return err
		}
		n, err := s.exec(ctx, `UPDATE sessions SET desired = 'deleted' WHERE id = $1 AND slug = $2 AND org_id = $3 AND desired <> 'deleted'`, id, slug, org)
		if err := exactlyOne(n, err); err != nil {
			return err
		}
		if err := s.passHead(ctx, org, id); err != nil {
			return err
		}
		if err := s.addPurge(ctx, PurgeSession, string(id), org); err != nil {
			return err
		}
		if out, err = s.SessionByID(ctx, id); err != nil {
			return err
		}
		return s.audit(ctx, change{action: "session.delete", org: org, subject: string(slug), before: auditSession(&out)})
	})
	if err != nil {
		return out, fmt.Errorf("delete session %s: %w", slug, err)
	}
	return out, nil
}

// holdOrg locks an organization's row: changes of its list wait for each other, and take it before
// any session or invite of it.
func (s *Store) holdOrg(ctx context.Context, org fleet.OrgID) error {
	_, err := s.exec(ctx, `UPDATE organizations SET next_number = next_number WHERE id = $1`, org)
	return err
}

// passHead makes the first session that is left in list order the head, if this one was it.
func (s *Store) passHead(ctx context.Context, org fleet.OrgID, from fleet.SessionID) error {
	var head fleet.SessionID
	err := s.row(ctx, `SELECT id FROM sessions WHERE org_id = $1 AND desired <> 'deleted' ORDER BY detached, position, slug LIMIT 1`, org).Scan(&head)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return unavailable(err)
	}
	_, err = s.exec(ctx, `UPDATE organizations SET head_session_id = $3 WHERE id = $1 AND head_session_id = $2`, org, from, head)
	return err
}

// errManyRows: a statement for one row found several, so the transaction must not commit.
var errManyRows = errors.New("a statement for one row matched several")

// exactlyOne turns the row count of a statement that is for one row into an error otherwise.
func exactlyOne(n int64, err error) error {
	switch {
	case err != nil:
		return err
	case n == 0:
		return fleet.ErrNotFound
	case n > 1:
		return errManyRows
	default:
		return nil
	}
}
