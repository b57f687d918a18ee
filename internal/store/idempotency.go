package store

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/group"
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
// inside a transaction: other requests have to see the claim while the work goes on. Claims that come
// at about the same time share one statement, which commits by itself.
func (s *Store) ClaimIdempotency(ctx context.Context, c IdempotencyClaim) (Idempotency, error) {
	k := &keyClaim{IdempotencyClaim: c}
	if err := s.keyClaims.Do(ctx, k); err != nil {
		return Idempotency{}, fmt.Errorf("claim idempotency key: %w", err)
	}
	if k.mine {
		return Idempotency{State: IdempotencyMine}, nil
	}
	return s.GetIdempotency(ctx, c)
}

// keyClaim is a claim and whether it was successful.
type keyClaim struct {
	IdempotencyClaim
	mine bool
}

type keyClaimArg struct {
	Org     fleet.OrgID `json:"org"`
	Key     string      `json:"name"`
	Hash    string      `json:"hash"` // hex
	Holder  string      `json:"holder"`
	LockFor int64       `json:"hold"` // ms
}

func (s *Store) claimKeys(ctx context.Context, claims []*keyClaim) error {
	type name struct {
		org fleet.OrgID
		key string
	}
	first := map[name]*keyClaim{} // of several that want one key; the others find it pending
	args := make([]keyClaimArg, 0, len(claims))
	for _, c := range claims {
		c.mine = false
		if n := (name{c.Org, c.Key}); first[n] == nil {
			first[n] = c
			args = append(args, keyClaimArg{c.Org, c.Key, hex.EncodeToString(c.BodyHash), c.Holder, c.LockFor.Milliseconds()})
		}
	}
	// Whoever locks several rows does so in one order.
	slices.SortFunc(args, func(a, b keyClaimArg) int { return cmp.Or(cmp.Compare(a.Org, b.Org), strings.Compare(a.Key, b.Key)) })
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var n name
		if err := row.Scan(&n.org, &n.key); err != nil {
			return err
		}
		first[n].mine = true
		return nil
	}, `INSERT INTO idempotency_keys (org_id, key, body_hash, holder, state, locked_until, created_at)
		SELECT r.org, r.name, @bytes:r.hash@, r.holder, 'pending', @now@+r.hold, @now@
		FROM @rows:$1(org text, name text, hash text, holder text, hold bigint)@ AS r WHERE TRUE
		ON CONFLICT (org_id, key) DO UPDATE SET holder=excluded.holder, locked_until=excluded.locked_until
		WHERE idempotency_keys.state='pending' AND idempotency_keys.locked_until<=@now@ AND idempotency_keys.body_hash=excluded.body_hash
		RETURNING org_id, key`, rowList(args))
	if err != nil && ctx.Err() == nil && !errors.Is(err, fleet.ErrUnavailable) {
		return group.Rejected(err)
	}
	return err
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
