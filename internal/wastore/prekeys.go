package wastore

import (
	"context"
	"database/sql"
	"strings"

	"go.mau.fi/util/dbutil"
	"go.mau.fi/whatsmeow/store/sqlstore"
	"go.mau.fi/whatsmeow/util/keys"
)

const insertPreKeys = ` INSERT INTO whatsmeow_pre_keys (jid, key_id, key, uploaded)
	SELECT $4::text, u.k, u.v, false FROM f CROSS JOIN u WHERE TRUE`

var (
	lastPreKey     = newQuery(`SELECT MAX(key_id) FROM whatsmeow_pre_keys WHERE jid=$1`)
	unsentPreKeys  = newQuery(`SELECT key_id, key FROM whatsmeow_pre_keys WHERE jid=$1 AND uploaded=false ORDER BY key_id LIMIT $2`)
	putManyPreKeys = `WITH f AS (` + fenceRow + `), u (k, v) AS (SELECT * FROM unnest($5::bigint[], $6::bytea[]))` + insertPreKeys
)

// GetOrGenPreKeys returns count keys that WhatsApp does not have yet and makes those that are missing.
// They are made first and stored in one statement: at pairing it is 812 keys, which are 812 commits
// otherwise, or one transaction that keeps SQLite's only writer while it computes.
func (s *deviceStore) GetOrGenPreKeys(ctx context.Context, count uint32) ([]*keys.PreKey, error) {
	var out []*keys.PreKey
	err := s.onePreKeyWriter(ctx, func(ctx context.Context) error {
		have, err := s.unsentPreKeys(ctx, count)
		if err != nil || len(have) >= int(count) {
			out = have
			return s.f.fail(ctx, err)
		}
		var last sql.NullInt64
		if err := s.f.c.db.QueryRow(ctx, s.f.c.text(lastPreKey), s.jid).Scan(&last); err != nil {
			return s.f.fail(ctx, err)
		}
		fresh := make([]*keys.PreKey, int(count)-len(have))
		for i := range fresh {
			fresh[i] = keys.NewPreKey(uint32(last.Int64) + 1 + uint32(i))
		}
		out = append(have, fresh...)
		text, args := s.manyPreKeys(fresh)
		return s.f.writeText(ctx, text, args)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (s *deviceStore) unsentPreKeys(ctx context.Context, count uint32) ([]*keys.PreKey, error) {
	rows, err := s.f.c.db.Query(ctx, s.f.c.text(unsentPreKeys), s.jid, count)
	return dbutil.NewRowIterWithError(rows, func(row dbutil.Scannable) (*keys.PreKey, error) {
		var id uint32
		var private []byte
		if err := row.Scan(&id, &private); err != nil {
			return nil, err
		}
		if len(private) != 32 {
			return nil, sqlstore.ErrInvalidLength
		}
		return &keys.PreKey{KeyPair: *keys.NewKeyPairFromPrivateKey([32]byte(private)), KeyID: id}, nil
	}, err).AsList()
}

func (s *deviceStore) manyPreKeys(fresh []*keys.PreKey) (text string, args []any) {
	if s.f.c.postgres {
		ids, private := make([]int64, len(fresh)), make([][]byte, len(fresh))
		for i, k := range fresh {
			ids[i], private[i] = int64(k.KeyID), k.Priv[:]
		}
		return putManyPreKeys, []any{s.jid, ids, private}
	}
	args = append(make([]any, 0, 1+2*len(fresh)), s.jid)
	for _, k := range fresh {
		args = append(args, k.KeyID, k.Priv[:])
	}
	return `WITH f AS (` + takeFence.sqlite + `), u (k, v) AS (VALUES ` + pairs(5, len(fresh)) + `)` +
		strings.Replace(insertPreKeys, "::text", "", 1), args
}

func (s *deviceStore) GenOnePreKey(ctx context.Context) (out *keys.PreKey, err error) {
	err = s.onePreKeyWriter(ctx, func(ctx context.Context) error {
		return s.f.do(ctx, func(ctx context.Context) (err error) {
			out, err = s.raw.GenOnePreKey(ctx)
			return err
		})
	})
	return out, err
}

// onePreKeyWriter runs fn while nobody else here makes pre-keys for this device: their ids are counted up.
func (s *deviceStore) onePreKeyWriter(ctx context.Context, fn func(ctx context.Context) error) error {
	if err := s.f.check(ctx); err != nil {
		return err
	}
	select {
	case s.preKeys <- struct{}{}:
	case <-ctx.Done():
		return s.f.fail(ctx, context.Cause(ctx))
	}
	defer func() { <-s.preKeys }()
	return fn(ctx)
}

func (s *deviceStore) GetPreKey(ctx context.Context, id uint32) (*keys.PreKey, error) {
	return read(ctx, s.f, func(ctx context.Context) (*keys.PreKey, error) { return s.raw.GetPreKey(ctx, id) })
}

func (s *deviceStore) RemovePreKey(ctx context.Context, id uint32) error {
	return s.f.do(ctx, func(ctx context.Context) error { return s.raw.RemovePreKey(ctx, id) })
}

func (s *deviceStore) MarkPreKeysAsUploaded(ctx context.Context, upToID uint32) error {
	return s.f.do(ctx, func(ctx context.Context) error { return s.raw.MarkPreKeysAsUploaded(ctx, upToID) })
}

func (s *deviceStore) UploadedPreKeyCount(ctx context.Context) (int, error) {
	return read(ctx, s.f, s.raw.UploadedPreKeyCount)
}
