package store

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

const keyColumns = `id, org_id, project_id, admin, label, prefix, lookup_hash, verify_hash, created_at, revoked_at`

func scanKey(row dbutil.Scannable) (fleet.APIKey, error) {
	var k fleet.APIKey
	var org, project sql.NullString
	err := row.Scan(&k.ID, &org, &project, &k.Admin, &k.Label, &k.Prefix, &k.LookupHash, &k.VerifyHash, at{&k.CreatedAt}, at{&k.RevokedAt})
	k.OrgID, k.ProjectID = fleet.OrgID(org.String), fleet.ProjectID(project.String)
	return k, err
}

// InsertKey writes what is stored of a key. An admin key has neither organization nor project; any
// other has both, and the project is the organization's own: fleet.ErrNotFound otherwise.
func (s *Store) InsertKey(ctx context.Context, k fleet.APIKey) (fleet.APIKey, error) {
	if k.Admin != (k.OrgID == "") || k.Admin != (k.ProjectID == "") {
		return k, fmt.Errorf("insert key: %w: a key is either an admin's or an organization's", fleet.ErrInvalid)
	}
	const insert = `INSERT INTO api_keys (id, org_id, project_id, admin, label, prefix, lookup_hash, verify_hash, created_at) `
	var out fleet.APIKey
	err := s.InTx(ctx, func(ctx context.Context) (err error) {
		var row *sql.Row
		if k.Admin {
			row = s.row(ctx, insert+`VALUES ($1, NULL, NULL, TRUE, $2, $3, $4, $5, @now@) RETURNING `+keyColumns,
				k.ID, k.Label, k.Prefix, k.LookupHash, k.VerifyHash)
		} else {
			row = s.row(ctx, insert+`SELECT $1, p.org_id, p.id, FALSE, $4, $5, $6, $7, @now@ FROM projects p
				WHERE p.org_id = $2 AND p.id = $3 AND p.deleted_at = 0 @share@ RETURNING `+keyColumns,
				k.ID, k.OrgID, k.ProjectID, k.Label, k.Prefix, k.LookupHash, k.VerifyHash)
		}
		if out, err = scanKey(row); err != nil {
			return notFound(err)
		}
		return s.audit(ctx, change{action: "key.create", org: out.OrgID, subject: string(out.ID), after: auditKey(&out)})
	})
	if err != nil {
		return k, fmt.Errorf("insert key: %w", err)
	}
	return out, nil
}

// KeysByLookup reads the keys stored under any of the hashes, revoked ones too.
func (s *Store) KeysByLookup(ctx context.Context, hashes [][]byte) ([]fleet.APIKey, error) {
	if len(hashes) == 0 {
		return nil, nil
	}
	marks := make([]string, len(hashes))
	args := make([]any, len(hashes))
	for i, h := range hashes {
		marks[i], args[i] = "$"+strconv.Itoa(i+1), h
	}
	keys, err := s.keys(ctx, `WHERE lookup_hash IN (`+strings.Join(marks, ", ")+`)`, args...)
	if err != nil {
		return nil, fmt.Errorf("look up key: %w", err)
	}
	return keys, nil
}

// KeyQuery selects keys to list.
type KeyQuery struct {
	Org   fleet.OrgID // "" = of every organization, admin keys too
	After fleet.KeyID // keys made later than this one
	Limit int
}

// ListKeys reads keys in the order they were made, revoked ones too.
func (s *Store) ListKeys(ctx context.Context, q KeyQuery) ([]fleet.APIKey, error) {
	keys, err := s.keys(ctx, `WHERE ($1 = '' OR org_id = $1) AND id > $2 ORDER BY id LIMIT $3`, string(q.Org), q.After, q.Limit)
	if err != nil {
		return nil, fmt.Errorf("list keys: %w", err)
	}
	return keys, nil
}

// GetKey reads one key, or says fleet.ErrNotFound.
func (s *Store) GetKey(ctx context.Context, id fleet.KeyID) (fleet.APIKey, error) {
	k, err := scanKey(s.row(ctx, `SELECT `+keyColumns+` FROM api_keys WHERE id = $1`, id))
	if err != nil {
		return k, fmt.Errorf("get key %s: %w", id, notFound(err))
	}
	return k, nil
}

// LabelKey changes what people call a key, or says fleet.ErrNotFound.
func (s *Store) LabelKey(ctx context.Context, id fleet.KeyID, label string) (fleet.APIKey, error) {
	return s.changeKey(ctx, id, "key.update", `label = $2`, label)
}

// LiveAdminKeys counts the admin keys that are not revoked.
func (s *Store) LiveAdminKeys(ctx context.Context) (int, error) {
	var n int
	if err := s.row(ctx, `SELECT count(*) FROM api_keys WHERE admin AND revoked_at = 0`).Scan(&n); err != nil {
		return 0, fmt.Errorf("count admin keys: %w", unavailable(err))
	}
	return n, nil
}

// RevokeKey ends a key for good. Revoking it again changes nothing; an unknown id is fleet.ErrNotFound.
func (s *Store) RevokeKey(ctx context.Context, id fleet.KeyID) (fleet.APIKey, error) {
	return s.changeKey(ctx, id, "key.revoke", `revoked_at = CASE WHEN revoked_at = 0 THEN @now@ ELSE revoked_at END`)
}

func (s *Store) changeKey(ctx context.Context, id fleet.KeyID, action, set string, args ...any) (k fleet.APIKey, err error) {
	err = s.InTx(ctx, func(ctx context.Context) error {
		before, err := scanKey(s.row(ctx, `SELECT `+keyColumns+` FROM api_keys WHERE id = $1 AND id <> '' @update@`, id))
		if err != nil {
			return notFound(err)
		}
		k, err = scanKey(s.row(ctx, `UPDATE api_keys SET `+set+` WHERE id = $1 RETURNING `+keyColumns, append([]any{id}, args...)...))
		if err != nil {
			return notFound(err)
		}
		if err := s.keysChange(ctx); err != nil {
			return err
		}
		return s.audit(ctx, change{action: action, org: k.OrgID, subject: string(k.ID), before: auditKey(&before), after: auditKey(&k)})
	})
	if err != nil {
		return k, fmt.Errorf("change key %s: %w", id, err)
	}
	return k, nil
}

// KeyChanges counts the changes of keys, and of what goes with them, that are committed. Whoever keeps keys looks at it.
func (s *Store) KeyChanges(ctx context.Context) (n int64, err error) {
	if err := s.row(ctx, `SELECT n FROM changes WHERE what = 'keys'`).Scan(&n); err != nil {
		return 0, fmt.Errorf("look for changed keys: %w", unavailable(err))
	}
	return n, nil
}

// keysChange is part of every transaction after which a kept key may say something else than its rows.
func (s *Store) keysChange(ctx context.Context) error {
	n, err := s.exec(ctx, `UPDATE changes SET n = n + 1 WHERE what = 'keys'`)
	if err := exactlyOne(n, err); err != nil {
		return fmt.Errorf("tell that keys change: %w", err)
	}
	return nil
}

func (s *Store) keys(ctx context.Context, where string, args ...any) ([]fleet.APIKey, error) {
	var out []fleet.APIKey
	err := s.query(ctx, func(row dbutil.Scannable) error {
		k, err := scanKey(row)
		out = append(out, k)
		return err
	}, `SELECT `+keyColumns+` FROM api_keys `+where, args...)
	return out, err
}
