package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

// DefaultCommandTTL is how long a command without a time of its own may wait and run.
const DefaultCommandTTL = 10 * time.Minute

// commandGrace is how long past its time a running command of a live owner may still report.
const commandGrace = time.Hour

// knownCommands are the kinds this binary can do, as an SQL list. Others are neither claimed nor
// thrown away: a newer process may know them.
const knownCommands = `('` + fleet.CommandPair + `','` + fleet.CommandConnect + `','` + fleet.CommandLogout + `','` + fleet.CommandRead + `','` + fleet.CommandCheck + `')`

const commandColumns = `id, n, session_id, class, kind, payload, status, result, error_code, error, attempts, created_at, expires_at, finished_at`

func scanCommand(row dbutil.Scannable) (c fleet.Command, err error) {
	err = row.Scan(&c.ID, &c.N, &c.SessionID, &c.Class, &c.Kind, &c.Payload, &c.Status, &c.Result, &c.ErrorCode, &c.Error,
		&c.Attempts, at{&c.CreatedAt}, at{&c.ExpiresAt}, at{&c.FinishedAt})
	return c, err
}

// InsertCommand stores a pending command and returns it with its id, number and times. An empty ID,
// Class, Payload or ExpiresAt is filled in (control, "{}", DefaultCommandTTL). It does not ask whether
// the session could ever run it: that is EnqueueCommand.
func (s *Store) InsertCommand(ctx context.Context, c fleet.Command) (fleet.Command, error) {
	c.ID = cmp.Or(c.ID, fleet.NewCommandID())
	c.Class = cmp.Or(c.Class, fleet.ClassControl)
	c.Payload = cmp.Or(c.Payload, "{}")
	out, err := scanCommand(s.row(ctx, `INSERT INTO commands (id, session_id, class, kind, payload, status, created_at, expires_at)
		VALUES ($1, $2, $3, $4, $5, 'pending', @now@, CASE WHEN CAST($6 AS BIGINT) = 0 THEN @now@ + $7 ELSE CAST($6 AS BIGINT) END)
		RETURNING `+commandColumns,
		c.ID, c.SessionID, c.Class, c.Kind, c.Payload, ms(c.ExpiresAt), DefaultCommandTTL.Milliseconds()))
	if err != nil {
		return fleet.Command{}, fmt.Errorf("insert command %s for session %s: %w", c.Kind, c.SessionID, unavailable(err))
	}
	return out, nil
}

// EnqueueCommand is InsertCommand for callers at the door: a command for a stopped or deleted session
// is refused at once with SESSION_STOPPED instead of waiting for an owner that never comes. Only
// connect may go to a stopped session, and makes it wanted again in the same transaction. An unknown
// session is fleet.ErrNotFound.
func (s *Store) EnqueueCommand(ctx context.Context, c fleet.Command) (out fleet.Command, err error) {
	err = s.InTx(ctx, func(ctx context.Context) error {
		var desired fleet.Desired
		var org fleet.OrgID
		var slug string
		if err := s.row(ctx, `SELECT desired, org_id, slug FROM sessions WHERE id=$1 @update@`, c.SessionID).Scan(&desired, &org, &slug); err != nil {
			return fmt.Errorf("read session %s: %w", c.SessionID, notFound(err))
		}
		switch {
		case desired == fleet.DesiredRunning:
		case desired == fleet.DesiredStopped && c.Kind == fleet.CommandConnect:
			if _, err := s.exec(ctx, `UPDATE sessions SET desired='running' WHERE id=$1 AND desired='stopped'`, c.SessionID); err != nil {
				return fmt.Errorf("start session %s: %w", c.SessionID, err)
			}
		default:
			return &fleet.CodedError{
				Code:   "SESSION_STOPPED",
				Detail: fmt.Sprintf("the session is %s and would never do this: start it first", desired),
				Err:    fleet.ErrConflict,
			}
		}
		if out, err = s.InsertCommand(ctx, c); err != nil {
			return err
		}
		return s.Audit(ctx, "session."+c.Kind, org, slug, map[string]any{"commandId": out.ID})
	})
	return out, err
}

// GetCommand reads one command.
func (s *Store) GetCommand(ctx context.Context, id fleet.CommandID) (fleet.Command, error) {
	c, err := scanCommand(s.row(ctx, `SELECT `+commandColumns+` FROM commands WHERE id=$1`, id))
	if err != nil {
		return fleet.Command{}, fmt.Errorf("read command %s: %w", id, notFound(err))
	}
	return c, nil
}

// DueCommands looks, without a lock, for sessions that ClaimCommands would find something for.
func (s *Store) DueCommands(ctx context.Context, held Held) ([]fleet.SessionID, error) {
	if held.n == 0 {
		return nil, nil
	}
	due, err := column[fleet.SessionID](ctx, s, `SELECT DISTINCT c.session_id FROM @rows:$1(id text, epoch bigint)@ t JOIN commands c ON c.session_id = t.id
		WHERE c.status IN ('pending', 'running') AND (c.status = 'pending' OR c.claim_epoch < t.epoch)
		AND c.expires_at > @now@ AND c.kind IN `+knownCommands, held.rows)
	if err != nil {
		return nil, fmt.Errorf("look for commands: %w", err)
	}
	return due, nil
}

// ClaimCommands takes up to limit commands of one class for the session of the term, oldest first,
// and marks them running. What an earlier term left running is taken again, one attempt further; what
// this term runs already is not. fleet.ErrLeaseLost when the term is over.
func (s *Store) ClaimCommands(ctx context.Context, term fleet.Term, class fleet.CommandClass, limit int) ([]fleet.Command, error) {
	var claimed []fleet.Command
	err := s.Fenced(ctx, term, func(ctx context.Context) error {
		return s.query(ctx, func(row dbutil.Scannable) error {
			c, err := scanCommand(row)
			claimed = append(claimed, c)
			return err
		}, `WITH due AS MATERIALIZED (
				SELECT id AS due_id FROM commands
				WHERE session_id=$1 AND class=$2 AND status IN ('pending', 'running')
				AND (status = 'pending' OR claim_epoch < $3) AND expires_at > @now@ AND kind IN `+knownCommands+`
				ORDER BY n LIMIT $4 @skip@)
			UPDATE commands SET status='running', attempts=attempts+1, claim_epoch=$3 FROM due WHERE id = due_id
			RETURNING `+commandColumns, term.SessionID, class, term.Epoch, limit)
	})
	if err != nil {
		return nil, fmt.Errorf("claim commands of session %s: %w", term.SessionID, err)
	}
	slices.SortFunc(claimed, func(a, b fleet.Command) int { return cmp.Compare(a.N, b.N) })
	return claimed, nil
}

// FinishCommand ends a command that this term claimed: status is done or failed, result is JSON or
// empty, code and detail say why it failed. fleet.ErrConflict when the command is not running under
// this term any more.
func (s *Store) FinishCommand(ctx context.Context, term fleet.Term, id fleet.CommandID, status fleet.CommandStatus, result, code, detail string) error {
	if status != fleet.CommandDone && status != fleet.CommandFailed {
		return fmt.Errorf("finish command %s: %q is not an end", id, status)
	}
	err := s.Fenced(ctx, term, func(ctx context.Context) error {
		n, err := s.exec(ctx, `UPDATE commands SET status=$4, result=$5, error_code=$6, error=$7, finished_at=@now@
			WHERE id=$1 AND session_id=$2 AND claim_epoch=$3 AND status='running'`,
			id, term.SessionID, term.Epoch, status, result, code, detail)
		if err == nil && n == 0 {
			return fleet.ErrConflict
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("finish command %s: %w", id, err)
	}
	return nil
}

// ExpireCommands ends up to limit commands whose time has passed: pending ones, running ones that no
// live owner can finish, and running ones an hour past their time. It returns how many.
func (s *Store) ExpireCommands(ctx context.Context, limit int) (int, error) {
	n, err := s.exec(ctx, `WITH over AS MATERIALIZED (
			SELECT id AS over_id FROM commands c
			WHERE status IN ('pending', 'running') AND expires_at <= @now@
			AND (status = 'pending' OR expires_at <= @now@ - $2 OR NOT EXISTS (
				SELECT 1 FROM leases l WHERE l.session_id = c.session_id AND l.epoch = c.claim_epoch AND l.expires_at > @now@))
			ORDER BY n LIMIT $1 @skip@)
		UPDATE commands SET status='expired', error_code='EXPIRED', error='nobody did it in time', finished_at=@now@
		FROM over WHERE id = over_id`, limit, commandGrace.Milliseconds())
	if err != nil {
		return 0, fmt.Errorf("expire commands: %w", err)
	}
	return int(n), nil
}

// UnknownCommands counts open commands of kinds that this binary does not know.
func (s *Store) UnknownCommands(ctx context.Context) (int, error) {
	var n int
	err := s.row(ctx, `SELECT count(*) FROM commands WHERE status IN ('pending', 'running') AND kind NOT IN `+knownCommands).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count unknown commands: %w", unavailable(err))
	}
	return n, nil
}

// PurgeCommands deletes up to limit ended commands made before a time and returns how many.
func (s *Store) PurgeCommands(ctx context.Context, before time.Time, limit int) (int, error) {
	n, err := s.exec(ctx, `DELETE FROM commands WHERE id IN (
		SELECT id FROM commands WHERE created_at < $1 AND status NOT IN ('pending', 'running') ORDER BY created_at LIMIT $2)`, ms(before), limit)
	if err != nil {
		return 0, fmt.Errorf("purge commands: %w", err)
	}
	return int(n), nil
}
