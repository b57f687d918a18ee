package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// AuditEntry is one change that an operator made.
type AuditEntry struct {
	At      *time.Time     `json:"at"`
	Actor   string         `json:"actor" doc:"Who: the id of an admin key or of a pairing link, or the command that did it." example:"key_01k8z3v5hq2m6t9x4c7b0n1d8e"`
	Action  string         `json:"action" doc:"What was done." example:"session.update"`
	OrgID   fleet.OrgID    `json:"orgId,omitempty" doc:"Missing: it concerns no organization."`
	Subject string         `json:"subject" doc:"Id of what was changed." example:"org-a-01"`
	Before  map[string]any `json:"before,omitempty" doc:"Its configuration before, without secrets. Missing: it did not exist."`
	After   any            `json:"after,omitempty" doc:"The same after. Missing: it does not exist any more."`
}

func auditView(e fleet.AuditEntry) AuditEntry {
	v := AuditEntry{At: when(e.At), Actor: e.Actor, Action: e.Action, OrgID: e.OrgID, Subject: e.Subject}
	if e.Before != "" {
		_ = json.Unmarshal([]byte(e.Before), &v.Before) // it is our own
	}
	if e.After != "" {
		_ = json.Unmarshal([]byte(e.After), &v.After)
	}
	return v
}

func registerAudit(api huma.API, d *deps) {
	huma.Register(api, huma.Operation{
		OperationID: "list-audit-log", Method: http.MethodGet, Path: "/api/admin/audit", Tags: []string{"Audit log"},
		Summary: "List what operators changed", Security: adminSecurity,
		Description: "Every change that an admin key, a pairing link or a command of the binary made, newest first. An entry is written in the transaction of its change.",
	}, func(ctx context.Context, in *struct {
		Paging
		OrgID  fleet.OrgID `query:"orgId" doc:"Only what concerns one organization."`
		Action string      `query:"action" maxLength:"64" doc:"Only this action, such as session.update."`
	},
	) (*reply[Page[AuditEntry]], error) {
		q := store.AuditQuery{Org: in.OrgID, Action: in.Action, Limit: in.Limit + 1}
		if in.Cursor != "" {
			n, err := strconv.ParseInt(in.Cursor, 10, 64)
			if err != nil || n < 1 {
				return nil, invalid("CURSOR_INVALID", "cursor", "is not a nextCursor of this list")
			}
			q.Before = n
		}
		rows, err := d.store.AuditLog(ctx, q)
		if err != nil {
			return nil, err
		}
		return &reply[Page[AuditEntry]]{pageOf(rows, in.Limit, auditView, func(e fleet.AuditEntry) string { return strconv.FormatInt(e.N, 10) })}, nil
	})
}
