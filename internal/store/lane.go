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

// A lane is one session's line of messages, worked by the session's owner one message at a time:
//
//	DueLanes → NextInLane → (build) → Commit: claim → the frame → Commit: outcome, next claim → …
//
// Looking takes no locks, so an idle fleet writes no WAL. Every write carries the owner's term. The
// order is the database's sequence; a message waits only for earlier ones to the same person.

const (
	// repeatDue is true for a message m whose repeat is due.
	repeatDue = `m.status='sending' AND m.outcome='unknown' AND m.repeats<2 AND m.next_repeat_at>0 AND m.next_repeat_at<=@now@
		AND m.unknown_since>@now@-86400000 AND (SELECT 1 FROM payloads p WHERE p.message=m.seq) IS NOT NULL`

	// toRepeat is the payload of a message m whose frame left before.
	toRepeat = `CASE WHEN m.status='sending' THEN (SELECT p.sealed FROM payloads p WHERE p.message=m.seq) END`

	// sendDue is true for a message m whose first frame, or another one after none left, is due. An
	// earlier message to the same person holds a later one back while its frame may be on its way, for
	// the first minute of an unknown outcome unless repeated, and while it waits for anything but its own time, so
	// that nobody reads the second before the first. Not NOT EXISTS: PostgreSQL would make a join of it
	// that reads all of the lane; and in the order of the lane, or it hopes to find one soon by reading the whole table.
	sendDue = sendDueBut + `''` + sendDueFor

	// Between the two goes the id of an earlier message that is looked past.
	sendDueBut = `m.status='queued' AND NOT m.parked AND m.due_at<=@now@ AND m.expires_at>@now@
		AND (SELECT s.desired='running' AND NOT s.paused AND NOT s.detached FROM sessions s WHERE s.id=m.session_id)
		AND (SELECT 1 FROM messages e WHERE e.session_id=m.session_id AND e.status IN ('queued', 'sending')
			AND e.seq<m.seq AND e.contact_key=m.contact_key AND e.id<>`
	sendDueFor = ` AND (
				e.status='sending' AND e.outcome=''
				OR e.status='sending' AND e.outcome='unknown' AND e.repeats=0 AND e.unknown_since>@now@-60000
				OR e.status='queued' AND (e.hops>0 OR NOT e.parked) AND e.send_at<=@now@ AND e.expires_at>@now@) ORDER BY e.seq LIMIT 1) IS NULL
		AND (m.trails=0 OR (SELECT 1 FROM messages e WHERE e.seq=m.trails AND e.session_id<>m.session_id AND (` + holdsElsewhere + `)) IS NULL
			AND (SELECT 1 FROM chats c WHERE c.contact_key=m.contact_key AND c.session_id<>m.session_id AND c.last_out_at>0
				AND (SELECT s.org_id FROM sessions s WHERE s.id=c.session_id)=m.org_id
				AND (SELECT 1 FROM messages e WHERE e.session_id=c.session_id AND e.status IN ('queued', 'sending') AND e.seq<m.seq
					AND e.contact_key=m.contact_key AND (` + holdsElsewhere + `) ORDER BY e.seq LIMIT 1) IS NOT NULL LIMIT 1) IS NULL)`

	// holdsElsewhere is true for a message e on another session that holds back m, which is to the same person and came
	// later. It is asked of the latest that was there when m was accepted, and once that has ended of those before it. There
	// nobody may be who settles it, so each of the reasons has its end: the lock of a claim that nobody took over, the first
	// minute of an unknown outcome or of a retry that nobody makes, and for what waits to be moved two minutes. What is left
	// then is that both numbers are exhausted, and that m holds what e would need.
	holdsElsewhere = `e.status='sending' AND e.outcome='' AND e.locked_until>@now@
			OR e.status='sending' AND e.outcome='unknown' AND e.repeats=0 AND e.unknown_since>@now@-60000
			OR e.status='queued' AND (e.hops>0 OR NOT e.parked) AND NOT e.exempt AND e.send_at<=@now@ AND e.expires_at>@now@
				AND (e.attempts=0 OR e.hops>0 OR e.due_at>@now@-60000) AND m.due_at>@now@-120000`

	// laneDue is true for a message m that its lane may send now. The partial index messages_lane serves
	// it; its own condition is repeated word for word because SQLite recognises it only so. A repeat is
	// due only under the epoch that owns the unknown outcome: after a takeover AdoptUnknown comes first.
	laneDue   = laneDueIf + sendDue + `)`
	laneDueIf = `m.status IN ('queued', 'sending') AND (` + repeatDue + `
			AND m.claim_epoch=(SELECT l.epoch FROM leases l WHERE l.session_id=m.session_id)
		OR `

	// Not EXISTS, which PostgreSQL joins by judging every message of the lane; a long lane costs a second then.
	dueLanes = `SELECT t.id FROM @rows:$1(id text, epoch bigint)@ AS t
		WHERE (SELECT 1 FROM messages m WHERE m.session_id=t.id AND ` + laneDue + ` ORDER BY m.seq LIMIT 1) IS NOT NULL`

	nextInLane = `SELECT ` + messageColumns + `, ` + toRepeat + ` FROM messages m
		WHERE m.session_id=$1 AND ` + laneDue + ` ORDER BY m.seq LIMIT 1`

	// nextOfOthers is nextInLane without some projects, as it will be when the frame that has just left is written. It reads
	// the lane to its end if nobody else is in it, so not at all where the organization has no other project.
	nextOfOthers = `SELECT ` + messageColumns + `, ` + toRepeat + ` FROM messages m
		WHERE (SELECT 1 FROM sessions s JOIN projects p ON p.org_id=s.org_id WHERE s.id=$1 AND p.id NOT IN (SELECT id FROM @ids:$2@ AS served) LIMIT 1) IS NOT NULL
		AND m.session_id=$1 AND m.project_id NOT IN (SELECT id FROM @ids:$2@ AS served) AND ` +
		laneDueIf + sendDueBut + `$3` + sendDueFor + `) ORDER BY m.seq LIMIT 1`

	// lookAhead is nextInLane for many lanes, each as it will be when the message in flight is sent.
	lookAhead = `WITH t AS MATERIALIZED (SELECT (SELECT m.seq FROM messages m WHERE m.session_id=t.lane AND ` +
		laneDueIf + sendDueBut + `t.flight` + sendDueFor + `) ORDER BY m.seq LIMIT 1) AS next FROM @rows:$1(lane text, flight text)@ AS t)
		SELECT ` + messageColumns + `, ` + toRepeat + ` FROM t JOIN messages m ON m.seq=t.next`
)

// DueLanes says which of these sessions have a message that may be sent now. It takes no locks.
func (s *Store) DueLanes(ctx context.Context, held Held) ([]fleet.SessionID, error) {
	if held.n == 0 {
		return nil, nil
	}
	due, err := column[fleet.SessionID](ctx, s, dueLanes, held.rows)
	if err != nil {
		return nil, fmt.Errorf("look for due messages: %w", err)
	}
	return due, nil
}

// FrameAges says how long ago the session's frames of the last span left, the oldest first.
func (s *Store) FrameAges(ctx context.Context, session fleet.SessionID, span time.Duration) ([]time.Duration, error) {
	ages, err := column[int64](ctx, s, `SELECT @now@-at FROM attempts WHERE session_id=$1 AND at>@now@-CAST($2 AS BIGINT) AND outcome<>'nothing' ORDER BY at`,
		session, span.Milliseconds())
	if err != nil {
		return nil, fmt.Errorf("read frames of session %s: %w", session, err)
	}
	out := make([]time.Duration, len(ages))
	for i, ms := range ages {
		out[i] = time.Duration(ms) * time.Millisecond
	}
	return out, nil
}

// LaneItem is the next thing a lane has to send.
type LaneItem struct {
	fleet.Message
	Payload []byte // the marshalled message of the first send, to be repeated; nil otherwise
	Repeat  bool   // the outcome is unknown: send Payload again under the same id
}

// NextInLane returns the message that a session's lane should send now, or nil. It takes no locks:
// ClaimMessage decides.
func (s *Store) NextInLane(ctx context.Context, session fleet.SessionID) (*LaneItem, error) {
	return s.inLane(ctx, nextInLane, session)
}

// NextOfOthers is NextInLane that passes some projects over, and does not wait for one message: its frame has
// left, which is not written yet; "" = none.
func (s *Store) NextOfOthers(ctx context.Context, session fleet.SessionID, served []fleet.ProjectID, sent fleet.MessageID) (*LaneItem, error) {
	return s.inLane(ctx, nextOfOthers, session, idList(served), sent)
}

func (s *Store) inLane(ctx context.Context, query string, session fleet.SessionID, args ...any) (*LaneItem, error) {
	item, err := s.scanLaneItem(s.row(ctx, query, append([]any{session}, args...)...))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil //nolint:nilnil // nothing to send is an answer, not an error
	} else if err != nil {
		return nil, fmt.Errorf("next message of session %s: %w", session, unavailable(err))
	}
	return item, nil
}

// scanLaneItem reads messageColumns and the payload.
func (s *Store) scanLaneItem(row dbutil.Scannable) (*LaneItem, error) {
	var sealed []byte
	m, err := s.scanMessage(row, &sealed)
	if err != nil {
		return nil, err
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

// ClaimMessage marks a message as sending under the term, stores what will leave and counts the
// frame, in one transaction that also proves the lease. Only after it returned true may the frame
// leave. False: the message is not claimable any more, or not before an earlier one to the same
// person. A term that is over gets fleet.ErrLeaseLost.
func (s *Store) ClaimMessage(ctx context.Context, term fleet.Term, c Claim) (bool, error) {
	step := &Step{Term: term, Claim: &c}
	if err := s.Commit(ctx, step); err != nil {
		return false, fmt.Errorf("claim message %s: %w", c.ID, err)
	}
	return step.Claimed, nil
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
	Hop       bool          // refused: another number of the organization may be tried, if none was before
}

// RecordOutcome writes what became of the frame that this term claimed, and the event, in one fenced
// transaction. A receipt may have raised the message already: then only the attempt is completed.
func (s *Store) RecordOutcome(ctx context.Context, term fleet.Term, r Result) error {
	if err := s.Commit(ctx, &Step{Term: term, Result: &r}); err != nil {
		return fmt.Errorf("record outcome of message %s: %w", r.ID, err)
	}
	return nil
}
