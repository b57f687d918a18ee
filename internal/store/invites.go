package store

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

const inviteColumns = `id, org_id, max_sessions, used, made_by, lookup_hash, verify_hash, created_at, expires_at, revoked_at, expires_at <= @now@`

func scanInvite(row dbutil.Scannable) (i fleet.Invite, err error) {
	err = row.Scan(&i.ID, &i.OrgID, &i.MaxSessions, &i.Used, &i.MadeBy, &i.LookupHash, &i.VerifyHash,
		at{&i.CreatedAt}, at{&i.ExpiresAt}, at{&i.RevokedAt}, &i.Expired)
	return i, err
}

// InsertInvite stores an invite that lives for ttl from now. fleet.ErrNotFound: no such organization.
// Nothing else is made: sessions come when somebody asks for one.
func (s *Store) InsertInvite(ctx context.Context, i fleet.Invite, ttl time.Duration) (out fleet.Invite, err error) {
	err = s.InTx(ctx, func(ctx context.Context) error {
		out, err = scanInvite(s.row(ctx, `INSERT INTO pairing_invites (id, org_id, max_sessions, made_by, lookup_hash, verify_hash, created_at, expires_at)
			SELECT $1, o.id, $3, $4, $5, $6, @now@, @now@ + CAST($7 AS BIGINT) FROM organizations o WHERE o.id = $2 AND o.deleted_at = 0
			RETURNING `+inviteColumns, i.ID, i.OrgID, i.MaxSessions, i.MadeBy, i.LookupHash, i.VerifyHash, ttl.Milliseconds()))
		if err != nil {
			return notFound(err)
		}
		return s.audit(ctx, change{action: "invite.create", org: out.OrgID, subject: string(out.ID), after: auditInvite(&out)})
	})
	if err != nil {
		return fleet.Invite{}, fmt.Errorf("insert invite for %s: %w", i.OrgID, err)
	}
	return out, nil
}

// InvitesByLookup reads the invites stored under any of the hashes, whatever their state.
func (s *Store) InvitesByLookup(ctx context.Context, hashes [][]byte) ([]fleet.Invite, error) {
	marks := make([]string, len(hashes))
	args := make([]any, len(hashes))
	for i, h := range hashes {
		marks[i], args[i] = "$"+strconv.Itoa(i+1), h
	}
	out, err := s.invites(ctx, `WHERE lookup_hash IN (`+strings.Join(marks, ", ")+`)`, args...)
	if err != nil {
		return nil, fmt.Errorf("look up invite: %w", err)
	}
	return out, nil
}

// InviteQuery selects invites to list.
type InviteQuery struct {
	Org   fleet.OrgID    // "" = of every organization
	After fleet.InviteID // those made later than this one
	Limit int
}

// ListInvites reads invites in the order they were made, whatever their state.
func (s *Store) ListInvites(ctx context.Context, q InviteQuery) ([]fleet.Invite, error) {
	out, err := s.invites(ctx, `WHERE ($1 = '' OR org_id = $1) AND id > $2 ORDER BY id LIMIT $3`, string(q.Org), q.After, q.Limit)
	if err != nil {
		return nil, fmt.Errorf("list invites: %w", err)
	}
	return out, nil
}

func (s *Store) invites(ctx context.Context, where string, args ...any) ([]fleet.Invite, error) {
	var out []fleet.Invite
	err := s.query(ctx, func(row dbutil.Scannable) error {
		i, err := scanInvite(row)
		out = append(out, i)
		return err
	}, `SELECT `+inviteColumns+` FROM pairing_invites `+where, args...)
	return out, err
}

// RevokeInvite ends an invite for good, and with it every pairing that it began and that led to
// nothing yet; it returns the sessions that ended. Numbers that are linked stay. Revoking again
// changes nothing; an unknown id is fleet.ErrNotFound.
func (s *Store) RevokeInvite(ctx context.Context, id fleet.InviteID) (out fleet.Invite, ended []fleet.Session, err error) {
	err = s.InTx(ctx, func(ctx context.Context) error {
		before, err := scanInvite(s.row(ctx, `SELECT `+inviteColumns+` FROM pairing_invites WHERE id = $1 AND id <> ''`, id))
		if err != nil {
			return notFound(err)
		}
		if err := s.holdOrg(ctx, before.OrgID); err != nil { // before the invite, as everywhere
			return err
		}
		out, err = scanInvite(s.row(ctx, `UPDATE pairing_invites SET revoked_at = CASE WHEN revoked_at = 0 THEN @now@ ELSE revoked_at END
			WHERE id = $1 RETURNING `+inviteColumns, id))
		if err != nil {
			return notFound(err)
		}
		open, err := column[fleet.SessionID](ctx, s, `SELECT id FROM sessions WHERE invite_id = $1 AND invite_end = '' AND `+neverLinked, id)
		if err != nil {
			return err
		}
		for _, session := range open {
			v, done, err := s.endAttempt(ctx, session, fleet.InviteEndCancelled)
			if err != nil {
				return err
			}
			if done {
				ended = append(ended, v)
			}
		}
		return s.audit(ctx, change{action: "invite.revoke", org: out.OrgID, subject: string(out.ID), before: auditInvite(&before), after: auditInvite(&out)})
	})
	if err != nil {
		return fleet.Invite{}, nil, fmt.Errorf("revoke invite %s: %w", id, err)
	}
	return out, ended, nil
}

// Refusals of an invite.
var (
	errInviteFull = &fleet.CodedError{Code: "INVITE_FULL", Detail: "this link has added as many numbers as it may", Err: fleet.ErrConflict}
	errInviteOver = &fleet.CodedError{Code: "INVITE_OVER", Detail: "this link has expired or was revoked", Err: fleet.ErrConflict}
)

// AddThroughInvite makes the organization's next session, takes one of the invite's slots for it and
// asks for a pairing, all or nothing. The session is made first: whoever loses the race for the last
// slot loses it with the whole transaction (INVITE_FULL), and so does who comes after the end of the
// invite (INVITE_OVER).
func (s *Store) AddThroughInvite(ctx context.Context, id fleet.InviteID, pair fleet.Command) (out fleet.Session, err error) {
	err = s.InTx(ctx, func(ctx context.Context) error {
		var org fleet.OrgID
		if err := s.row(ctx, `SELECT org_id FROM pairing_invites WHERE id = $1`, id).Scan(&org); err != nil {
			return notFound(err)
		}
		out, err = s.CreateSession(ctx, NewSession{Org: org, Invite: id})
		if err != nil {
			return err
		}
		n, err := s.exec(ctx, `UPDATE pairing_invites SET used = used + 1
			WHERE id = $1 AND used < max_sessions AND revoked_at = 0 AND expires_at > @now@`, id)
		if err != nil {
			return err
		}
		if n == 0 {
			return s.inviteRefusal(ctx, id)
		}
		pair.SessionID = out.ID
		_, err = s.InsertCommand(ctx, pair)
		return err
	})
	if err != nil {
		return fleet.Session{}, fmt.Errorf("add a number through invite %s: %w", id, err)
	}
	return out, nil
}

// inviteRefusal says why an invite takes nothing more.
func (s *Store) inviteRefusal(ctx context.Context, id fleet.InviteID) error {
	i, err := scanInvite(s.row(ctx, `SELECT `+inviteColumns+` FROM pairing_invites WHERE id = $1`, id))
	switch {
	case err != nil:
		return notFound(err)
	case i.State() != fleet.InviteLive:
		return errInviteOver
	default:
		return errInviteFull
	}
}

// PairThroughInvite asks for another pairing of a number that the invite added and that has no login:
// a fresh code, another method, or the same number again after it was unlinked on the phone.
// fleet.ErrNotFound: it is no number of this invite, or gave its slot back. INVITE_OVER as above.
func (s *Store) PairThroughInvite(ctx context.Context, id fleet.InviteID, slug fleet.SessionSlug, pair fleet.Command) (out fleet.Session, err error) {
	err = s.InTx(ctx, func(ctx context.Context) error {
		out, err = s.SessionBySlug(ctx, slug)
		if err != nil {
			return err
		}
		var live, linked bool
		err := s.row(ctx, `SELECT i.revoked_at = 0 AND i.expires_at > @now@, s.device_jid <> '' AND s.revoked_at = 0
			FROM sessions s JOIN pairing_invites i ON i.id = s.invite_id
			WHERE s.id = $1 AND s.invite_id = $2 AND s.invite_end = ''`, out.ID, id).Scan(&live, &linked)
		switch {
		case err != nil:
			return notFound(err)
		case !live:
			return errInviteOver
		case linked:
			return &fleet.CodedError{Code: "ALREADY_PAIRED", Detail: "this number is linked", Err: fleet.ErrConflict}
		}
		pair.SessionID = out.ID
		_, err = s.EnqueueCommand(ctx, pair)
		return err
	})
	if err != nil {
		return fleet.Session{}, fmt.Errorf("pair through invite %s: %w", id, err)
	}
	return out, nil
}

// neverLinked says of a session that no pairing of it was ever completed and none is about to be.
const neverLinked = `paired_at = 0 AND (device_jid = '' OR revoked_at <> 0)`

// inviteOver says of a session s with lease l that its attempt has come to nothing and nobody works
// on it: no code is shown by a live owner, and no pairing command is open.
const inviteOver = `s.invite_id <> '' AND s.invite_end = '' AND s.paired_at = 0 AND (s.device_jid = '' OR s.revoked_at <> 0)
	AND NOT (s.observed = 'pairing' AND s.observed_epoch = l.epoch AND l.owner <> '' AND l.expires_at > @now@ AND s.pairing_ends_at > @now@)
	AND NOT EXISTS (SELECT 1 FROM commands c WHERE c.session_id = s.id AND c.kind = 'pair' AND c.status IN ('pending', 'running') AND c.expires_at > @now@)`

// InviteNumbers reads the numbers that an invite added, in that order, those that came to nothing too.
func (s *Store) InviteNumbers(ctx context.Context, id fleet.InviteID) ([]fleet.InviteNumber, error) {
	return s.inviteNumbers(ctx, `s.invite_id = $1 AND (s.invite_end <> '' OR s.desired <> 'deleted') ORDER BY s.created_at, s.slug LIMIT 500`, id)
}

// InviteNumber reads one of them, or says fleet.ErrNotFound.
func (s *Store) InviteNumber(ctx context.Context, id fleet.InviteID, slug fleet.SessionSlug) (fleet.InviteNumber, error) {
	out, err := s.inviteNumbers(ctx, `s.invite_id = $1 AND s.slug = $2`, id, slug)
	if err == nil && len(out) == 0 {
		err = fmt.Errorf("get number of invite %s: %w", id, fleet.ErrNotFound)
	}
	if err != nil {
		return fleet.InviteNumber{}, err
	}
	return out[0], nil
}

func (s *Store) inviteNumbers(ctx context.Context, where string, id fleet.InviteID, more ...any) ([]fleet.InviteNumber, error) {
	if id == "" {
		return nil, fmt.Errorf("list numbers of an invite: %w", fleet.ErrNotFound)
	}
	var out []fleet.InviteNumber
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var n fleet.InviteNumber
		var err error
		n.Session, err = scanSession(row, &n.End, &n.Over,
			orZero[fleet.CommandID]{&n.Pair.ID}, orZero[fleet.CommandStatus]{&n.Pair.Status}, orZero[string]{&n.Pair.Payload}, orZero[string]{&n.Pair.ErrorCode}, at{&n.Pair.ExpiresAt})
		out = append(out, n)
		return err
	}, `SELECT `+sessionColumns+`, s.invite_end, `+inviteOver+`, p.id, p.status, p.payload, p.error_code, p.expires_at
		FROM sessions s JOIN leases l ON l.session_id = s.id
		LEFT JOIN commands p ON p.n = (SELECT max(c.n) FROM commands c WHERE c.session_id = s.id AND c.kind = 'pair')
		WHERE `+where, append([]any{id}, more...)...)
	if err != nil {
		return nil, fmt.Errorf("list numbers of invite %s: %w", id, err)
	}
	return out, nil
}

// CancelThroughInvite ends an attempt that led to nothing yet and gives its slot back. A number that
// got linked meanwhile stays: then nothing happens.
func (s *Store) CancelThroughInvite(ctx context.Context, id fleet.InviteID, slug fleet.SessionSlug) (out fleet.Session, err error) {
	err = s.InTx(ctx, func(ctx context.Context) error {
		n, err := s.InviteNumber(ctx, id, slug)
		if err != nil || n.End != "" {
			out = n.Session
			return err
		}
		end := fleet.InviteEndCancelled
		if n.Over {
			end = n.Why()
		}
		out, _, err = s.endAttempt(ctx, n.ID, end)
		return err
	})
	if err != nil {
		return fleet.Session{}, fmt.Errorf("cancel through invite %s: %w", id, err)
	}
	return out, nil
}

// ReleaseInviteSlots gives back up to limit slots of attempts that came to nothing, and ends their
// sessions, which it returns. With an id it looks at that invite only.
func (s *Store) ReleaseInviteSlots(ctx context.Context, id fleet.InviteID, limit int) ([]fleet.Session, error) {
	over, err := column[fleet.SessionID](ctx, s, `SELECT s.id FROM sessions s JOIN leases l ON l.session_id = s.id
		WHERE (CAST($1 AS TEXT) = '' OR s.invite_id = CAST($1 AS TEXT)) AND `+inviteOver+` ORDER BY s.id LIMIT $2`, id, limit)
	if err != nil {
		return nil, fmt.Errorf("look for attempts that are over: %w", err)
	}
	var ended []fleet.Session
	for _, session := range over {
		err := s.InTx(ctx, func(ctx context.Context) error {
			// Read again under the transaction: somebody may have begun anew meanwhile.
			n, err := s.inviteNumbers(ctx, `s.invite_id <> $1 AND s.id = $2`, "-", session)
			if err != nil || len(n) == 0 || !n[0].Over {
				return err
			}
			v, done, err := s.endAttempt(ctx, session, n[0].Why())
			if done {
				ended = append(ended, v)
			}
			return err
		})
		if err != nil {
			return ended, fmt.Errorf("give back the slot of session %s: %w", session, err)
		}
	}
	return ended, nil
}

// endAttempt deletes a session that never got linked and gives its slot back. False: it was linked
// meanwhile, or is ended already.
func (s *Store) endAttempt(ctx context.Context, id fleet.SessionID, end fleet.InviteEnd) (out fleet.Session, done bool, err error) {
	var org fleet.OrgID
	var invite fleet.InviteID
	if err := s.row(ctx, `SELECT org_id, invite_id FROM sessions WHERE id = $1`, id).Scan(&org, &invite); err != nil {
		return out, false, notFound(err)
	}
	if err := s.holdOrg(ctx, org); err != nil {
		return out, false, err
	}
	n, err := s.exec(ctx, `UPDATE sessions SET invite_end = $2, desired = 'deleted' WHERE id = $1 AND invite_id <> '' AND invite_end = '' AND `+neverLinked, id, string(end))
	if err != nil || n == 0 {
		return out, false, err
	}
	if _, err := s.exec(ctx, `UPDATE pairing_invites SET used = used - 1 WHERE id = $1`, invite); err != nil {
		return out, false, err
	}
	if err := s.passHead(ctx, org, id); err != nil {
		return out, false, err
	}
	if err := s.addPurge(ctx, PurgeSession, string(id), org); err != nil {
		return out, false, err
	}
	out, err = s.SessionByID(ctx, id)
	if err != nil {
		return out, false, err
	}
	return out, true, s.audit(ctx, change{action: "session.delete", org: org, subject: string(out.Slug), before: auditSession(&out)})
}
