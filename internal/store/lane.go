package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/plant"
)

// A lane is one session's line of messages, worked by the session's owner one message at a time:
//
//	DueLanes → NextInLane → (build) → ClaimMessage → the frame → RecordOutcome
//
// Looking takes no locks, so an idle fleet writes no WAL. Every write carries the owner's term. The
// order is the database's sequence; a message waits only for earlier ones to the same person.

// laneDue is true for a message m that its lane may send now. The partial index messages_lane serves
// it; its own condition is repeated word for word because SQLite recognises it only so.
//
// A repeat is due only under the epoch that owns the unknown outcome: after a takeover AdoptUnknown
// comes first. An earlier message to the same person holds a later one back while its frame may be
// on its way, for the first minute of an unknown outcome unless repeated, and while it waits to be
// tried again, so that nobody reads the second before the first.
const laneDue = `m.status IN ('queued', 'sending') AND (
	m.status='sending' AND m.outcome='unknown' AND m.payload IS NOT NULL AND m.repeats<2 AND m.next_repeat_at>0 AND m.next_repeat_at<=@now@
		AND m.unknown_since>@now@-86400000
		AND m.claim_epoch=(SELECT l.epoch FROM leases l WHERE l.session_id=m.session_id)
	OR m.status='queued' AND m.due_at<=@now@ AND m.expires_at>@now@
		AND EXISTS (SELECT 1 FROM sessions s WHERE s.id=m.session_id AND s.desired='running' AND NOT s.paused)
		AND NOT EXISTS (SELECT 1 FROM messages e WHERE e.session_id=m.session_id AND e.status IN ('queued', 'sending')
			AND e.seq<m.seq AND e.contact_key=m.contact_key AND (
				e.status='sending' AND e.outcome=''
				OR e.status='sending' AND e.outcome='unknown' AND e.repeats=0 AND e.unknown_since>@now@-60000
				OR e.status='queued' AND e.attempts>0 AND e.expires_at>@now@)))`

const (
	dueLanes   = `SELECT t.id FROM @terms:$1@ AS t WHERE EXISTS (SELECT 1 FROM messages m WHERE m.session_id=t.id AND ` + laneDue + `)`
	nextInLane = `SELECT ` + messageColumns + `, m.payload FROM messages m
		WHERE m.session_id=$1 AND ` + laneDue + ` ORDER BY m.seq LIMIT 1`
)

// DueLanes says which of these sessions have a message that may be sent now. It takes no locks.
func (s *Store) DueLanes(ctx context.Context, terms []fleet.Term) ([]fleet.SessionID, error) {
	if len(terms) == 0 {
		return nil, nil
	}
	due, err := column[fleet.SessionID](ctx, s, dueLanes, termList(terms))
	if err != nil {
		return nil, fmt.Errorf("look for due messages: %w", err)
	}
	return due, nil
}

// LaneItem is the next thing a lane has to send.
type LaneItem struct {
	fleet.Message
	Payload []byte // the marshalled message of the first send; nil before it
	Repeat  bool   // the outcome is unknown: send Payload again under the same id
}

// NextInLane returns the message that a session's lane should send now, or nil. It takes no locks:
// ClaimMessage decides.
func (s *Store) NextInLane(ctx context.Context, session fleet.SessionID) (*LaneItem, error) {
	var sealed []byte
	m, err := s.scanMessage(s.row(ctx, nextInLane, session), &sealed)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil //nolint:nilnil // nothing to send is an answer, not an error
	} else if err != nil {
		return nil, fmt.Errorf("next message of session %s: %w", session, unavailable(err))
	}
	item := &LaneItem{Message: m, Repeat: m.Status == fleet.StatusSending}
	if item.Payload, err = s.ring.Open(payloadRow(m.ID), sealed); err != nil {
		return nil, fmt.Errorf("open payload of message %s: %w", m.ID, err)
	}
	return item, nil
}

// Claim asks for the right to put one frame of a message on the wire.
type Claim struct {
	ID      fleet.MessageID
	Payload []byte            // marshalled message, stored before the frame; ignored for a repeat; nil: no frame will leave
	Kind    fleet.AttemptKind // AttemptSend or AttemptRepeat
	LockFor time.Duration     // longer than the send's own deadline
}

const (
	claimSend = `UPDATE messages SET status='sending', outcome='', claim_epoch=$3, attempts=attempts+1,
		locked_until=@now@+CAST($5 AS BIGINT), payload=$6`
	claimSendWhere = `session_id=$1 AND id=$4 AND status='queued' AND due_at<=@now@ AND expires_at>@now@
		AND EXISTS (SELECT 1 FROM sessions s WHERE s.id=$1 AND s.desired='running' AND NOT s.paused)`

	// The second repeat comes 5 minutes after T0, and never on the heels of a first that was late.
	claimRepeat = `UPDATE messages SET repeats=repeats+1, attempts=attempts+1, locked_until=@now@+CAST($5 AS BIGINT),
		next_repeat_at=CASE WHEN repeats>0 THEN 0 WHEN unknown_since+300000>@now@+15000 THEN unknown_since+300000 ELSE @now@+15000 END`
	claimRepeatWhere = `session_id=$1 AND id=$4 AND status='sending' AND outcome='unknown' AND claim_epoch=$3
		AND repeats<2 AND next_repeat_at>0 AND next_repeat_at<=@now@ AND unknown_since>@now@-86400000`

	claimAttempt = `INSERT INTO attempts (message_id, n, session_id, epoch, kind, at) `
)

// ClaimMessage marks a message as sending under the term, stores what will leave and counts the
// frame, all in one statement (one transaction on SQLite) that also proves the lease. Only after it
// returned true may the frame leave. False: the message is not claimable any more. A term that is
// over gets fleet.ErrLeaseLost.
func (s *Store) ClaimMessage(ctx context.Context, term fleet.Term, c Claim) (bool, error) {
	update, where := claimSend, claimSendWhere
	args := []any{term.SessionID, term.Owner, term.Epoch, c.ID, c.LockFor.Milliseconds(), s.ring.Seal(payloadRow(c.ID), c.Payload)}
	switch {
	case c.LockFor <= 0:
		return false, fmt.Errorf("claim message %s: no lock time", c.ID)
	case c.Kind == fleet.AttemptRepeat:
		update, where, args = claimRepeat, claimRepeatWhere, args[:5]
	case c.Kind != fleet.AttemptSend:
		return false, fmt.Errorf("claim message %s: kind %q", c.ID, c.Kind)
	}
	ok, err := s.claimMessage(ctx, term, c.Kind, update, where, args)
	if err != nil {
		return false, fmt.Errorf("claim message %s: %w", c.ID, err)
	}
	return ok, nil
}

func (s *Store) claimMessage(ctx context.Context, term fleet.Term, kind fleet.AttemptKind, update, where string, args []any) (ok bool, err error) {
	if s.Postgres() {
		var fence, claimed int
		lease := `SELECT 1 FROM leases WHERE session_id=$1 AND owner=$2 AND epoch=$3 @share@`
		if plant.NoFence {
			lease = `SELECT 1 WHERE CAST($1 AS TEXT)<>'' AND CAST($2 AS TEXT)<>'' AND CAST($3 AS BIGINT)>0`
		}
		err := s.row(ctx, `WITH f AS (`+lease+`),
			m AS (`+update+` FROM f WHERE `+where+` RETURNING id, attempts),
			a AS (`+claimAttempt+` SELECT id, attempts, $1, $3, '`+string(kind)+`', @now@ FROM m RETURNING 1)
			SELECT (SELECT count(*) FROM f), (SELECT count(*) FROM a)`, args...).Scan(&fence, &claimed)
		switch {
		case err != nil:
			return false, unavailable(err)
		case fence == 0:
			return false, fleet.ErrLeaseLost
		}
		return claimed == 1, nil
	}
	err = s.Fenced(ctx, term, func(ctx context.Context) error {
		ok = false
		var n int
		err := s.row(ctx, update+` WHERE `+where+` RETURNING attempts`, args...).Scan(&n)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		} else if err != nil {
			return unavailable(err)
		}
		ok = true
		_, err = s.exec(ctx, claimAttempt+`VALUES ($1, $2, $3, $4, $5, @now@)`, args[3], n, term.SessionID, term.Epoch, kind)
		return err
	})
	return ok && err == nil, err
}

// Result is what became of one frame.
type Result struct {
	ID        fleet.MessageID
	Outcome   fleet.Outcome // sent, refused, nothing or unknown
	Code      int           // WhatsApp's code of a refusal, 0 if none
	ErrorCode string        // stable code of a refusal
	Detail    string        // for people
	At        time.Time     // when the answer came; zero = now
	RetryIn   time.Duration // nothing: how long until the next try
}

// RecordOutcome writes what became of the frame that this term claimed, and the event, in one fenced
// transaction:
//
//	sent     the message is sent
//	refused  it failed with ErrorCode; but if an earlier frame's outcome is unknown it stays unknown
//	         and is not repeated again, because that frame may have arrived
//	nothing  surely no frame left: queued again under the same WhatsApp id (a repeat: unknown as
//	         before), next try after RetryIn; no event
//	unknown  it stays sending; T0 is now unless an earlier frame set it
//
// A receipt may have raised the message already: then only the attempt is completed.
func (s *Store) RecordOutcome(ctx context.Context, term fleet.Term, r Result) error {
	var set, where string
	args := []any{r.ID, term.SessionID, term.Epoch}
	told := false
	switch r.Outcome {
	case fleet.OutcomeSent:
		set = `status='sent', outcome='sent', error_code='', error_detail='', unknown_since=0, next_repeat_at=0, locked_until=0,
			sent_at=CASE WHEN CAST($4 AS BIGINT)=0 THEN @now@ ELSE CAST($4 AS BIGINT) END`
		args, told = append(args, ms(r.At)), true
	case fleet.OutcomeRefused:
		set, where = `status='failed', outcome='refused', error_code=$4, error_detail=$5, locked_until=0`, ` AND unknown_since=0`
		args, told = append(args, r.ErrorCode, r.Detail), true
	case fleet.OutcomeNothing:
		set, where = `status='queued', outcome='', locked_until=0, due_at=@now@+CAST($4 AS BIGINT)`, ` AND unknown_since=0`
		args = append(args, r.RetryIn.Milliseconds())
	case fleet.OutcomeUnknown:
		set = `outcome='unknown', locked_until=0, error_detail=$4,
			next_repeat_at=CASE WHEN unknown_since=0 THEN @now@+15000 ELSE next_repeat_at END,
			unknown_since=CASE WHEN unknown_since=0 THEN @now@ ELSE unknown_since END`
		args = append(args, r.Detail)
	default:
		return fmt.Errorf("record outcome of message %s: outcome %q: %w", r.ID, r.Outcome, fleet.ErrInvalid)
	}
	const mine = ` WHERE id=$1 AND session_id=$2 AND claim_epoch=$3 AND status='sending'`
	err := s.Fenced(ctx, term, func(ctx context.Context) error {
		_, err := s.exec(ctx, `UPDATE attempts SET outcome=$3, code=CAST($4 AS BIGINT) WHERE message_id=$1 AND epoch=$2 AND outcome=''
			AND kind<>'retry' AND n=(SELECT max(n) FROM attempts WHERE message_id=$1 AND kind<>'retry')`, r.ID, term.Epoch, r.Outcome, r.Code)
		if err != nil {
			return err
		}
		if told {
			changed, err := s.changeMessages(ctx, r.At, `UPDATE messages SET `+set+mine+where+` RETURNING `+changedColumns, args...)
			if err != nil || len(changed) > 0 {
				return err
			}
		} else if n, err := s.exec(ctx, `UPDATE messages SET `+set+mine+where, args...); err != nil || n > 0 {
			return err
		}
		return s.recordBesideUnknown(ctx, term, r)
	})
	if err != nil {
		return fmt.Errorf("record outcome of message %s: %w", r.ID, err)
	}
	return nil
}

// recordBesideUnknown handles the results that do not change the message's state: of a repeat, and
// of a frame whose receipt was faster than its ack.
func (s *Store) recordBesideUnknown(ctx context.Context, term fleet.Term, r Result) error {
	const unsettled = ` WHERE id=$1 AND session_id=$2 AND claim_epoch=$3 AND status='sending' AND unknown_since>0`
	var err error
	switch r.Outcome {
	case fleet.OutcomeRefused:
		_, err = s.exec(ctx, `UPDATE messages SET error_code=$4, error_detail=$5, next_repeat_at=0, locked_until=0`+unsettled,
			r.ID, term.SessionID, term.Epoch, r.ErrorCode, r.Detail)
	case fleet.OutcomeNothing:
		_, err = s.exec(ctx, `UPDATE messages SET repeats=repeats-1, next_repeat_at=@now@+CAST($4 AS BIGINT), locked_until=0`+unsettled+` AND repeats>0`,
			r.ID, term.SessionID, term.Epoch, r.RetryIn.Milliseconds())
	case fleet.OutcomeSent, fleet.OutcomeUnknown, fleet.OutcomeNone: // nothing to add
	}
	return err
}
