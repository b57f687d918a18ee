package store

import (
	"context"
	"encoding/json"
	"fmt"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

type actorKey struct{}

// AsActor returns a context whose changes are written into the audit log under this name: an admin
// key's id, an invite's, or the command that makes them. Without one nothing is: the change is a
// consumer's own, or the gateway's.
func AsActor(ctx context.Context, actor string) context.Context {
	return context.WithValue(ctx, actorKey{}, actor)
}

// change is one entry to be: nil before means that it did not exist, nil after that it does not any
// more. Both go in as JSON and must hold no secret and no whole phone number.
type change struct {
	action, subject string
	org             fleet.OrgID
	before, after   any
}

// audit writes an entry in the transaction of the change itself, so that neither is without the
// other. A change that changed nothing is not one.
func (s *Store) audit(ctx context.Context, c change) error {
	actor, ok := ctx.Value(actorKey{}).(string)
	if !ok {
		return nil
	}
	before, after := auditText(c.before), auditText(c.after)
	if before == after && before != "" {
		return nil
	}
	_, err := s.exec(ctx, `INSERT INTO audit_log (at, actor, action, org_id, subject, before, after) VALUES (@now@, $1, $2, $3, $4, $5, $6)`,
		actor, c.action, c.org, c.subject, before, after)
	if err != nil {
		return fmt.Errorf("write audit log: %w", err)
	}
	return nil
}

// Audit is audit for changes that are no row of ours: what somebody had done. It must be called in
// the transaction that does it.
func (s *Store) Audit(ctx context.Context, action string, org fleet.OrgID, subject string, what any) error {
	return s.audit(ctx, change{action: action, org: org, subject: subject, after: what})
}

func auditText(v any) string {
	if v == nil {
		return ""
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of plain values, which always marshal
	}
	return string(b)
}

// AuditQuery selects entries to list.
type AuditQuery struct {
	Org    fleet.OrgID // "" = of every organization
	Action string      // "" = every one
	Before int64       // entries with a smaller number; 0 = from the newest
	Limit  int
}

// AuditLog reads entries, newest first.
func (s *Store) AuditLog(ctx context.Context, q AuditQuery) ([]fleet.AuditEntry, error) {
	var out []fleet.AuditEntry
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var e fleet.AuditEntry
		err := row.Scan(&e.N, at{&e.At}, &e.Actor, &e.Action, &e.OrgID, &e.Subject, &e.Before, &e.After)
		out = append(out, e)
		return err
	}, `SELECT n, at, actor, action, org_id, subject, before, after FROM audit_log
		WHERE ($1 = '' OR org_id = $1) AND ($2 = '' OR action = $2) AND (CAST($3 AS BIGINT) = 0 OR n < CAST($3 AS BIGINT)) ORDER BY n DESC LIMIT $4`,
		string(q.Org), q.Action, q.Before, q.Limit)
	if err != nil {
		return nil, fmt.Errorf("read audit log: %w", err)
	}
	return out, nil
}

// What the audit log keeps of each thing: configuration, never what was observed, never a secret.

func auditOrg(o *fleet.Organization) any {
	return map[string]any{
		"label": o.Label, "strategy": o.Strategy, "timeZone": o.TimeZone, "affinityTtlSeconds": int(o.AffinityTTL.Seconds()), "rate": o.Rate,
	}
}

func auditProject(p *fleet.Project) any {
	return map[string]any{
		"name": p.Name, "monthlyQuota": p.MonthlyQuota, "maxBacklog": p.MaxBacklog, "ratePerMinute": p.RateMinute, "rateBurst": p.RateBurst, "requestsPerMinute": p.Requests,
	}
}

func auditSession(v *fleet.Session) any {
	return map[string]any{"label": v.Label, "desired": v.Desired, "paused": v.Paused, "budget": v.Budget, "rate": v.Rate}
}

func auditKey(k *fleet.APIKey) any {
	return map[string]any{
		"admin": k.Admin, "projectId": k.ProjectID, "label": k.Label, "prefix": k.Prefix, "revoked": !k.RevokedAt.IsZero(),
	}
}

func auditEndpoint(e *fleet.Endpoint) any {
	return map[string]any{
		"scope": e.Scope, "url": e.URL, "description": e.Description, "events": e.Events, "disabled": e.Disabled, "maxConcurrency": e.MaxConcurrency,
	}
}

func auditInvite(i *fleet.Invite) any {
	return map[string]any{"maxSessions": i.MaxSessions, "expiresAt": i.ExpiresAt.UTC(), "revoked": !i.RevokedAt.IsZero()}
}
