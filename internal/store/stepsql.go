package store

import (
	"strings"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/plant"
)

// The statements of a batch of steps. What they are about comes as JSON rows.

type leaseArg struct {
	Session fleet.SessionID `json:"id"`
	Owner   string          `json:"owner"`
	Epoch   int64           `json:"epoch"`
}

type messageArg struct {
	Session fleet.SessionID   `json:"session"`
	ID      string            `json:"id"`             // message id, or WhatsApp id
	Claim   fleet.AttemptKind `json:"kind,omitempty"` // "": its result or a receipt is told
	Past    fleet.MessageID   `json:"past"`           // a claim's: looked past as if it were settled
	Epoch   int64             `json:"epoch"`          // a claim's
}

const (
	leaseRows      = `@rows:$1(id text, owner text, epoch bigint)@`
	messagesByID   = `@rows:$2(session text, id text, kind text, past text, epoch bigint)@`
	messagesByWAID = `@rows:$3(session text, id text)@`

	// claimable is true for a locked message m that step a wants to claim, and may.
	claimable = `(CASE a.kind WHEN '` + string(fleet.AttemptSend) + `' THEN ` + sendDueBut + `a.past` + sendDueFor + notOptedOut + `
		WHEN '` + string(fleet.AttemptRepeat) + `' THEN ` + repeatDue + ` AND m.claim_epoch=a.epoch` + notOptedOut + ` ELSE FALSE END)`

	// SQLite's writer is alone and needs no locks: the terms, then the messages, each by its key.
	heldTerms    = `SELECT l.session_id, t.owner, t.epoch, @now@ FROM ` + leaseRows + ` AS t CROSS JOIN leases l ON l.session_id=t.id AND l.owner=t.owner AND l.epoch=t.epoch`
	framesByID   = `SELECT m.session_id, ` + frameColumns + `, coalesce(` + claimable + `, FALSE) FROM @rows:$1(session text, id text, kind text, past text, epoch bigint)@ AS a CROSS JOIN messages m ON m.id=a.id AND m.session_id=a.session`
	framesByWAID = `SELECT m.session_id, ` + frameColumns + `, FALSE FROM @rows:$1(session text, id text)@ AS a CROSS JOIN messages m ON m.session_id=a.session AND m.wa_id=a.id`

	// On PostgreSQL every row is found by its index and locked one after the other: leases first (wanted
	// needs all of them before it knows anything), then messages in lane order.
	lockSteps = `WITH held AS MATERIALIZED (
			SELECT l.session_id, t.owner, t.epoch FROM (SELECT DISTINCT id, owner, epoch FROM ` + leaseRows + ` AS t ORDER BY id, owner, epoch) AS t
			CROSS JOIN LATERAL (SELECT session_id FROM leases l WHERE l.session_id=t.id AND l.owner=t.owner AND l.epoch=t.epoch FOR SHARE) AS l),
		wanted AS (
			SELECT m.seq FROM held JOIN ` + messagesByID + ` AS w ON w.session=held.session_id
				CROSS JOIN LATERAL (SELECT seq, session_id FROM messages WHERE id=w.id OFFSET 0) AS m
				WHERE m.session_id=w.session
			UNION SELECT m.seq FROM held JOIN ` + messagesByWAID + ` AS w ON w.session=held.session_id
				CROSS JOIN LATERAL (SELECT seq FROM messages WHERE session_id=w.session AND wa_id=w.id OFFSET 0) AS m),
		k AS MATERIALIZED (SELECT m.* FROM (SELECT seq FROM wanted ORDER BY seq) AS w
			CROSS JOIN LATERAL (SELECT * FROM messages WHERE seq=w.seq FOR UPDATE) AS m)
		SELECT held.session_id, held.owner, held.epoch, @now@, ` + frameColumns + `, coalesce(` + claimable + `, FALSE), @keyed@
		FROM held LEFT JOIN k AS m ON m.session_id=held.session_id
		LEFT JOIN LATERAL (SELECT w.kind, w.past, w.epoch FROM ` + messagesByID + ` AS w WHERE w.id=m.id) AS a ON TRUE`

	writeFrames = `UPDATE messages AS m SET status=f.status, outcome=f.outcome, error_code=f.error_code, error_detail=f.error_detail,
			repeats=f.repeats, locked_until=f.locked_until, due_at=f.due_at, unknown_since=f.unknown_since, next_repeat_at=f.next_repeat_at,
			sent_at=f.sent_at, delivered_at=f.delivered_at, read_at=f.read_at, played_at=f.played_at,
			claim_epoch=f.claim_epoch, attempts=f.attempts, reservation=f.reservation, parked=f.parked, hops=f.hops
		FROM @rows:$1(frame bigint, status text, outcome text, error_code text, error_detail text, repeats bigint, locked_until bigint,
			due_at bigint, unknown_since bigint, next_repeat_at bigint, sent_at bigint, delivered_at bigint, read_at bigint, played_at bigint,
			claim_epoch bigint, attempts bigint, reservation text, parked boolean, hops bigint)@ AS f
		WHERE m.seq=f.frame`

	writePayloads = `INSERT INTO payloads (message, sealed)
		SELECT p.frame, @bytes:p.sealed@ FROM @rows:$4(frame bigint, sealed text)@ AS p WHERE TRUE ON CONFLICT (message) DO UPDATE SET sealed=excluded.sealed`

	settleAttempts = `UPDATE attempts AS a SET outcome=r.result, code=r.why
		FROM @rows:$2(message text, term bigint, result text, why bigint)@ AS r
		WHERE a.message_id=r.message AND a.epoch=r.term AND a.outcome='' AND a.kind<>'retry'
			AND a.n=(SELECT max(x.n) FROM attempts x WHERE x.message_id=r.message AND x.kind<>'retry')`

	insertAttempts = `INSERT INTO attempts (message_id, n, session_id, epoch, kind, at)
		SELECT c.message, c.place, c.session, c.term, c.kind, @now@ FROM @rows:$3(message text, place bigint, session text, term bigint, kind text)@ AS c WHERE TRUE`
)

// writeSteps is all of it in one statement, for PostgreSQL.
var writeSteps = `WITH changed AS (` + writeFrames + `), settled AS (` + settleAttempts + `), made AS (` + insertAttempts + `), kept AS (` + writePayloads + `) ` + bumpStreams("$5")

// resultArg completes a frame's row in attempts.
type resultArg struct {
	Message fleet.MessageID `json:"message"`
	Epoch   int64           `json:"term"`
	Outcome fleet.Outcome   `json:"result"`
	Code    int             `json:"why"`
}

// attemptArg is the row of a frame that may leave now.
type attemptArg struct {
	Message fleet.MessageID   `json:"message"`
	N       int64             `json:"place"`
	Session fleet.SessionID   `json:"session"`
	Epoch   int64             `json:"term"`
	Kind    fleet.AttemptKind `json:"kind"`
}

// payloadArg is what a claimed frame says.
type payloadArg struct {
	Seq    int64  `json:"frame"`
	Sealed string `json:"sealed"` // hex
}

type laneArg struct {
	Session fleet.SessionID `json:"lane"`
	Flight  fleet.MessageID `json:"flight"` // its frame is about to leave: looked past as if it were sent
}

// fenced is the statement as it is, unless the fence is the planted bug.
func fenced(q string) string {
	if plant.NoFence {
		return strings.Replace(q, "l.owner=t.owner AND l.epoch=t.epoch", "TRUE", 1)
	}
	return q
}
