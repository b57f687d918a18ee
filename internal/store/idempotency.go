package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
)

// ErrIdempotencyLost says that the key is not this holder's any more. It also matches fleet.ErrConflict.
var ErrIdempotencyLost = fmt.Errorf("idempotency key taken over: %w", fleet.ErrConflict)

// IdempotencyState is what a caller finds under a key.
type IdempotencyState string

// What a caller finds.
const (
	IdempotencyMine     IdempotencyState = "mine"     // claimed by this call: do the work, then complete or release
	IdempotencyPending  IdempotencyState = "pending"  // another holder works on the same request
	IdempotencyDone     IdempotencyState = "done"     // Status and Answer tell the first result
	IdempotencyMismatch IdempotencyState = "mismatch" // the key was used for another request
	IdempotencyFree     IdempotencyState = "free"     // nobody holds it, or its holder is late: claim it
)

// Idempotency is a key as it was read.
type Idempotency struct {
	State  IdempotencyState
	Status int    // of a done key
	Answer []byte // of a done key
}

// IdempotencyClaim asks for a key.
type IdempotencyClaim struct {
	Org      fleet.OrgID
	Key      string
	BodyHash []byte
	Holder   string // a nonce of this request
	LockFor  time.Duration
}

// ClaimIdempotency takes a key that is new, or whose holder is late, for this holder. It must not run
// inside a transaction: other requests have to see the claim while the work goes on.
func (s *Store) ClaimIdempotency(ctx context.Context, c IdempotencyClaim) (Idempotency, error) {
	n, err := s.exec(ctx, `INSERT INTO idempotency_keys (org_id, key, body_hash, holder, state, locked_until, created_at)
		VALUES ($1, $2, $3, $4, 'pending', @now@+CAST($5 AS BIGINT), @now@)
		ON CONFLICT (org_id, key) DO UPDATE SET holder=excluded.holder, locked_until=excluded.locked_until
		WHERE idempotency_keys.state='pending' AND idempotency_keys.locked_until<=@now@ AND idempotency_keys.body_hash=excluded.body_hash`,
		c.Org, c.Key, c.BodyHash, c.Holder, c.LockFor.Milliseconds())
	if err != nil {
		return Idempotency{}, fmt.Errorf("claim idempotency key: %w", err)
	}
	if n == 1 {
		return Idempotency{State: IdempotencyMine}, nil
	}
	return s.GetIdempotency(ctx, c)
}

// GetIdempotency says what a claim would find now, without claiming.
func (s *Store) GetIdempotency(ctx context.Context, c IdempotencyClaim) (Idempotency, error) {
	var hash, sealed []byte
	var state string
	var late bool
	found := Idempotency{State: IdempotencyFree}
	err := s.row(ctx, `SELECT body_hash, state, status, answer, locked_until<=@now@ FROM idempotency_keys WHERE org_id=$1 AND key=$2`,
		c.Org, c.Key).Scan(&hash, &state, &found.Status, &sealed, &late)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return found, nil
	case err != nil:
		return Idempotency{}, fmt.Errorf("read idempotency key: %w", unavailable(err))
	case !bytes.Equal(hash, c.BodyHash):
		return Idempotency{State: IdempotencyMismatch}, nil
	case state == "done":
		found.State = IdempotencyDone
		if found.Answer, err = s.ring.Open(idempotencyRow(c.Org, c.Key), sealed); err != nil {
			return Idempotency{}, fmt.Errorf("open stored answer: %w", err)
		}
	case !late:
		found.State = IdempotencyPending
	}
	return found, nil
}

// CompleteIdempotency stores the answer that every later request with the key gets, sealed. In the
// transaction of the work it makes both one: ErrIdempotencyLost must roll the work back, because
// another request has taken over.
func (s *Store) CompleteIdempotency(ctx context.Context, org fleet.OrgID, key, holder string, status int, answer []byte) error {
	n, err := s.exec(ctx, `UPDATE idempotency_keys SET state='done', status=CAST($4 AS BIGINT), answer=$5
		WHERE org_id=$1 AND key=$2 AND holder=$3 AND state='pending'`, org, key, holder, status, s.ring.Seal(idempotencyRow(org, key), answer))
	if err == nil && n == 0 {
		err = ErrIdempotencyLost
	}
	if err != nil {
		return fmt.Errorf("complete idempotency key: %w", err)
	}
	return nil
}

// ReleaseIdempotency forgets a key that this holder claimed and did not complete, so that the request
// may be tried again. After a commit it does nothing, whatever the holder believes.
func (s *Store) ReleaseIdempotency(ctx context.Context, org fleet.OrgID, key, holder string) error {
	_, err := s.exec(ctx, `DELETE FROM idempotency_keys WHERE org_id=$1 AND key=$2 AND holder=$3 AND state='pending'`, org, key, holder)
	if err != nil {
		return fmt.Errorf("release idempotency key: %w", err)
	}
	return nil
}

// PurgeIdempotency deletes up to limit keys made before the given time.
func (s *Store) PurgeIdempotency(ctx context.Context, before time.Time, limit int) (int, error) {
	n, err := s.exec(ctx, `DELETE FROM idempotency_keys WHERE created_at<CAST($1 AS BIGINT) AND (org_id, key) IN (
		SELECT org_id, key FROM idempotency_keys WHERE created_at<CAST($1 AS BIGINT) ORDER BY created_at LIMIT CAST($2 AS BIGINT))`, ms(before), limit)
	if err != nil {
		return 0, fmt.Errorf("purge idempotency keys: %w", err)
	}
	return int(n), nil
}

// idempotencyRow is the row id that an answer is sealed under. An organization's id has no slash.
func idempotencyRow(org fleet.OrgID, key string) string { return string(org) + "/" + key }
