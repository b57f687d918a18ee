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
	Session fleet.SessionID `json:"session"`
	ID      string          `json:"id"` // message id, or WhatsApp id
}

const (
	leaseRows      = `@rows:$1(id text, owner text, epoch bigint)@`
	messagesByID   = `@rows:$2(session text, id text)@`
	messagesByWAID = `@rows:$3(session text, id text)@`

	lockSteps = `WITH wanted (session, seq) AS MATERIALIZED (
			SELECT m.session_id, m.seq FROM ` + messagesByID + ` AS w JOIN messages m ON m.id=w.id AND m.session_id=w.session
			UNION SELECT m.session_id, m.seq FROM ` + messagesByWAID + ` AS w JOIN messages m ON m.session_id=w.session AND m.wa_id=w.id)
		SELECT l.session_id, t.owner, t.epoch, @now@, ` + frameColumns + `, @keyed@
		FROM ` + leaseRows + ` AS t JOIN leases l ON l.session_id=t.id AND l.owner=t.owner AND l.epoch=t.epoch
		LEFT JOIN wanted ON wanted.session=l.session_id LEFT JOIN messages k ON k.seq=wanted.seq`

	// On PostgreSQL every row is found by its index and locked one after the other: leases first (wanted
	// needs all of them before it knows anything), then messages in lane order.
	lockStepsPostgres = `WITH held AS MATERIALIZED (
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
		SELECT held.session_id, held.owner, held.epoch, @now@, ` + frameColumns + `,
			@keyed@
		FROM held LEFT JOIN k ON k.session_id=held.session_id`

	writeFrames = `UPDATE messages AS m SET status=f.status, outcome=f.outcome, error_code=f.error_code, error_detail=f.error_detail,
			repeats=f.repeats, locked_until=f.locked_until, due_at=f.due_at, unknown_since=f.unknown_since, next_repeat_at=f.next_repeat_at,
			sent_at=f.sent_at, delivered_at=f.delivered_at, read_at=f.read_at, played_at=f.played_at
		FROM @rows:$1(frame bigint, status text, outcome text, error_code text, error_detail text, repeats bigint, locked_until bigint,
			due_at bigint, unknown_since bigint, next_repeat_at bigint, sent_at bigint, delivered_at bigint, read_at bigint, played_at bigint)@ AS f
		WHERE m.seq=f.frame`

	writeAttempts = `UPDATE attempts AS a SET outcome=r.result, code=r.why
		FROM @rows:$2(message text, term bigint, result text, why bigint)@ AS r
		WHERE a.message_id=r.message AND a.epoch=r.term AND a.outcome='' AND a.kind<>'retry'
			AND a.n=(SELECT max(x.n) FROM attempts x WHERE x.message_id=r.message AND x.kind<>'retry')`
)

type attemptArg struct {
	Message fleet.MessageID `json:"message"`
	Epoch   int64           `json:"term"`
	Outcome fleet.Outcome   `json:"result"`
	Code    int             `json:"why"`
}

type claimArg struct {
	Seq     int64  `json:"frame"` // of the message
	Epoch   int64  `json:"term"`
	LockFor int64  `json:"hold"`              // ms
	Payload string `json:"payload,omitempty"` // sealed, in hex
}

const (
	claimRows = `@rows:$1(frame bigint, term bigint, hold bigint, payload text)@`

	claimSend = `UPDATE messages AS m SET status='sending', outcome='', claim_epoch=c.term, attempts=m.attempts+1,
		locked_until=@now@+c.hold, payload=@bytes:c.payload@`

	// The second repeat comes 5 minutes after T0, and never on the heels of a first that was late.
	claimRepeat = `UPDATE messages AS m SET repeats=m.repeats+1, attempts=m.attempts+1, locked_until=@now@+c.hold,
		next_repeat_at=CASE WHEN m.repeats>0 THEN 0 WHEN m.unknown_since+300000>@now@+15000 THEN m.unknown_since+300000 ELSE @now@+15000 END`
)

// claims are the statements that claim what is due of the messages named.
var claims = map[fleet.AttemptKind]claimText{
	fleet.AttemptSend:   newClaimText(fleet.AttemptSend, claimSend, sendDue+notOptedOut),
	fleet.AttemptRepeat: newClaimText(fleet.AttemptRepeat, claimRepeat, repeatDue+` AND m.claim_epoch=c.term`+notOptedOut),
}

// claimText claims messages and counts their frames: one statement on PostgreSQL, two on SQLite.
type claimText struct{ postgres, sqlite, sqliteAttempts string }

// newClaimText writes the statements of one kind. On PostgreSQL each message is found by its key first and
// judged then: the planner would rather read every queued message of all sessions.
func newClaimText(kind fleet.AttemptKind, update, due string) claimText {
	named := ` m.seq=c.frame AND ` + due
	attempts := `INSERT INTO attempts (message_id, n, session_id, epoch, kind, at)
		SELECT a.id, a.attempts, a.session_id, a.claim_epoch, '` + string(kind) + `', @now@ FROM `
	return claimText{
		postgres: `WITH m AS (` + update + ` FROM (SELECT c.* FROM ` + claimRows + ` AS c
				CROSS JOIN LATERAL (SELECT 1 FROM messages m WHERE` + named + ` OFFSET 0) AS may) AS c
				WHERE m.seq=c.frame RETURNING m.id, m.attempts, m.session_id, m.claim_epoch),
			a AS (` + attempts + `m AS a) SELECT id FROM m`,
		sqlite:         update + ` FROM ` + claimRows + ` AS c WHERE` + named + ` RETURNING id`,
		sqliteAttempts: attempts + `messages AS a WHERE a.id IN (SELECT id FROM @ids:$1@ AS claimed)`,
	}
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
