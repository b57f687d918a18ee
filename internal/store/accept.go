package store

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/group"
)

// acceptLimit bounds the commit of the messages that share it, and one look for several of them.
const acceptLimit = 10 * time.Second

// Acceptance is one message that a caller wants queued, and what becomes of the Idempotency-Key it
// came under. Messages that come at about the same time share one transaction and one sync of the log;
// one whose key was lost is left out of it, and the others go on.
type Acceptance struct {
	// Message says what to queue: see CreateMessage. It is as it was stored after Accept returned nil.
	Message fleet.Message
	TTL     time.Duration
	// TouchChat says that the chat should note this message: see ChatStale.
	TouchChat bool
	// Local is the local time that Message.SendAt was worked out from, if it was.
	Local fleet.LocalTime
	// Trails says that its person was written to from other sessions as well: what waits there for them goes first.
	Trails bool

	// Key and Holder name the idempotency key that this message completes; "" = none.
	Key, Holder string
	// Answer makes what the key keeps from the message as it is stored. It is called in the
	// transaction, more than once if that is tried again; an error takes the message back.
	Answer func(m *fleet.Message) ([]byte, error)

	lost  bool // the key is another holder's
	stale bool // the ledger has been rebuilt since it reserved
}

// ErrReservedBefore says that the ledger was rebuilt since a message's reservation: it counts nowhere.
var ErrReservedBefore = errors.New("reserved before the ledger was rebuilt")

// Accept queues a message and completes its key, both or neither. ErrIdempotencyLost: another request
// has taken the key over; ErrReservedBefore: the message must be reserved for again; and nothing was written. After fleet.ErrUnavailable or the end of ctx it may
// be committed or not.
func (s *Store) Accept(ctx context.Context, a *Acceptance) error {
	err := checkMessage(&a.Message, a.TTL)
	if err == nil {
		err = s.accepts.Do(ctx, a)
	}
	switch {
	case err != nil:
	case a.lost:
		err = ErrIdempotencyLost
	case a.stale:
		err = ErrReservedBefore
	}
	if err != nil {
		return fmt.Errorf("accept message: %w", err)
	}
	return nil
}

// acceptAll queues messages in one transaction. Locks are taken in this order: keys, conversations, the ledger, chats.
func (s *Store) acceptAll(ctx context.Context, all []*Acceptance) error {
	// Whoever locks several rows does so in one order.
	all = slices.SortedStableFunc(slices.Values(all), func(a, b *Acceptance) int {
		return cmp.Or(cmp.Compare(a.Message.OrgID, b.Message.OrgID), strings.Compare(a.Key, b.Key))
	})
	err := s.InTx(ctx, func(ctx context.Context) error {
		if err := s.lockKeys(ctx, all); err != nil {
			return err
		}
		var mine []*fleet.Message
		for _, a := range all {
			if a.stale = false; !a.lost {
				mine = append(mine, &a.Message)
			}
		}
		stored, err := s.createMessages(ctx, mine, wishes(all))
		if err != nil {
			return err
		}
		for _, a := range all {
			a.stale = !a.lost && !stored[a.Message.ID]
		}
		if err := s.keepLocalTimes(ctx, all); err != nil {
			return err
		}
		return s.completeKeys(ctx, all)
	})
	if err != nil && ctx.Err() == nil && !errors.Is(err, fleet.ErrUnavailable) {
		return group.Rejected(err)
	}
	return err
}

// wish is what is wanted for a message beside what its row says.
type wish struct {
	ttl   time.Duration
	touch bool // its chat should note it

	trails bool // something may wait for the same person on another session
}

func wishes(all []*Acceptance) map[fleet.MessageID]wish {
	out := make(map[fleet.MessageID]wish, len(all))
	for _, a := range all {
		a.Message.ID = cmp.Or(a.Message.ID, fleet.NewMessageID())
		out[a.Message.ID] = wish{ttl: a.TTL, touch: a.TouchChat, trails: a.Trails}
	}
	return out
}

type keyArg struct {
	Org    fleet.OrgID `json:"org"`
	Key    string      `json:"name"`
	Holder string      `json:"holder"`
	Answer string      `json:"answer,omitempty"` // sealed, in hex
}

// lockKeys finds which of the keys are still their holders', and keeps them so until the commit. The
// key of a later statement is found by its index, whatever the planner takes a JSON list for.
func (s *Store) lockKeys(ctx context.Context, all []*Acceptance) error {
	var args []keyArg
	held := map[keyArg]bool{}
	for _, a := range all {
		if a.Key != "" {
			args = append(args, keyArg{Org: a.Message.OrgID, Key: a.Key, Holder: a.Holder})
		}
	}
	if len(args) > 0 {
		err := s.query(ctx, func(row dbutil.Scannable) error {
			var k keyArg
			var mine bool
			var set string
			err := row.Scan(&k.Org, &k.Key, &k.Holder, &mine, &set)
			held[k] = mine
			return err
		}, `SELECT r.org, r.name, r.holder, coalesce((SELECT TRUE FROM idempotency_keys k
				WHERE k.org_id=r.org AND k.key=r.name AND k.holder=r.holder AND k.state='pending' @update@), FALSE), @keyed@
			FROM @rows:$1(org text, name text, holder text)@ AS r`, rowList(args))
		if err != nil {
			return fmt.Errorf("lock idempotency keys: %w", err)
		}
	}
	for _, a := range all {
		a.lost = a.Key != "" && !held[keyArg{Org: a.Message.OrgID, Key: a.Key, Holder: a.Holder}]
	}
	return nil
}

// completeKeys stores the answers of the messages that were queued.
func (s *Store) completeKeys(ctx context.Context, all []*Acceptance) error {
	var args []keyArg
	for _, a := range all {
		if a.lost || a.stale || a.Answer == nil {
			continue
		}
		answer, err := a.Answer(&a.Message)
		if err != nil {
			return err
		}
		if a.Key != "" {
			sealed := s.ring.Seal(idempotencyRow(a.Message.OrgID, a.Key), answer)
			args = append(args, keyArg{Org: a.Message.OrgID, Key: a.Key, Holder: a.Holder, Answer: hex.EncodeToString(sealed)})
		}
	}
	if len(args) == 0 {
		return nil
	}
	n, err := s.exec(ctx, `UPDATE idempotency_keys AS k SET state='done', status=CAST($2 AS BIGINT), answer=@bytes:r.answer@
		FROM @rows:$1(org text, name text, holder text, answer text)@ AS r
		WHERE k.org_id=r.org AND k.key=r.name AND k.holder=r.holder AND k.state='pending'`, rowList(args), http.StatusAccepted)
	if err == nil && n != int64(len(args)) {
		err = fmt.Errorf("%d of %d keys", n, len(args)) // they are locked
	}
	if err != nil {
		return fmt.Errorf("complete idempotency keys: %w", err)
	}
	return nil
}

func checkMessage(m *fleet.Message, ttl time.Duration) error {
	if m.OrgID == "" || m.SessionID == "" || m.ContactKey == "" || m.ToJID == "" || ttl <= 0 {
		return fmt.Errorf("organization, session, recipient and time to live must be given: %w", fleet.ErrInvalid)
	}
	return nil
}

type queuedArg struct {
	ID           fleet.MessageID      `json:"message"`
	Org          fleet.OrgID          `json:"org"`
	Project      fleet.ProjectID      `json:"project"`
	Session      fleet.SessionID      `json:"session"`
	Conversation fleet.ConversationID `json:"conversation"`
	Contact      string               `json:"contact"`
	To           string               `json:"input"`
	ToJID        string               `json:"jid"`
	Kind         string               `json:"what"`
	ClientRef    string               `json:"ref"`
	Body         string               `json:"text"` // sealed, in hex
	WAID         string               `json:"wa"`
	DueAt        int64                `json:"due"` // ms, 0 = now
	TTL          int64                `json:"ttl"` // ms
	Unresolved   bool                 `json:"ask"`
	Exempt       bool                 `json:"exempt"`
	Reservation  string               `json:"held"`
	Generation   int64                `json:"generation"`
	Opened       bool                 `json:"opened"`
	Parked       bool                 `json:"parked"`
	SendAt       int64                `json:"send"` // ms
	Trails       bool                 `json:"elsewhere"`
}

// createMessages inserts queued messages in their order and fills in what it chose. It says which of
// them it stored: all but those that were reserved for before the ledger was rebuilt last.
func (s *Store) createMessages(ctx context.Context, messages []*fleet.Message, wanted map[fleet.MessageID]wish) (stored map[fleet.MessageID]bool, err error) {
	stored = make(map[fleet.MessageID]bool, len(messages))
	if len(messages) == 0 {
		return stored, nil
	}
	if err := s.conversations(ctx, messages); err != nil {
		return nil, err
	}
	args := make([]queuedArg, len(messages))
	byID := make(map[fleet.MessageID]*fleet.Message, len(messages))
	for i, m := range messages {
		m.WAID, m.Status = cmp.Or(m.WAID, fleet.NewWAID()), fleet.StatusQueued
		byID[m.ID] = m
		args[i] = queuedArg{
			m.ID, m.OrgID, m.ProjectID, m.SessionID, m.ConversationID, m.ContactKey, m.To, m.ToJID, m.Kind, m.ClientRef,
			hex.EncodeToString(s.ring.Seal(string(m.ID), []byte(m.Text))), m.WAID, ms(m.DueAt), wanted[m.ID].ttl.Milliseconds(), m.Unresolved, m.Exempt,
			m.Reservation, m.Generation, m.Opened, m.Parked, ms(m.SendAt), wanted[m.ID].trails,
		}
	}
	fill := func(row dbutil.Scannable) error {
		var id fleet.MessageID
		var seq int64
		var due, expires, created time.Time
		if err := row.Scan(&id, &seq, at{&due}, at{&expires}, at{&created}); err != nil {
			return err
		}
		m := byID[id]
		m.Seq, m.DueAt, m.ExpiresAt, m.CreatedAt = seq, due, expires, created
		stored[id] = true
		return nil
	}
	part := len(args)
	if !s.Postgres() {
		part = valuesMost
	}
	for rows := range slices.Chunk(args, part) {
		if err := s.query(ctx, fill, insertMessages, rowList(rows)); err != nil {
			return nil, err
		}
	}
	return stored, s.writeOut(ctx, messages, stored, wanted)
}

// lastElsewhere finds the latest message that has not ended to a person on a session of an organization other than these
// two. Each session is looked at that ever wrote to them, from the end of its lane.
func lastElsewhere(contact, org, but, nor, further string) string {
	return `SELECT max((SELECT e.seq FROM messages e WHERE e.session_id=c.session_id AND e.status IN ('queued', 'sending') AND e.contact_key=c.contact_key` + further + ` ORDER BY e.seq DESC LIMIT 1))
		FROM chats c WHERE c.contact_key=` + contact + ` AND c.session_id<>` + but + ` AND c.session_id<>` + nor + ` AND c.last_out_at>0
			AND (SELECT s.org_id FROM sessions s WHERE s.id=c.session_id)=` + org
}

var insertMessages = `INSERT INTO messages (id, org_id, project_id, session_id, conversation_id, contact_key, to_input, to_jid,
			kind, client_ref, body, wa_id, status, due_at, expires_at, created_at, unresolved, exempt,
			reservation, ledger_generation, opened, parked, send_at, trails)
		SELECT r.message, r.org, r.project, r.session, r.conversation, r.contact, r.input, r.jid,
			r.what, r.ref, @bytes:r.text@, r.wa, 'queued',
			CASE WHEN r.due=0 THEN @now@ ELSE r.due END, CASE WHEN r.due=0 THEN @now@ ELSE r.due END + r.ttl, @now@, r.ask, r.exempt,
			r.held, r.generation, r.opened, r.parked, r.send,
			CASE WHEN r.elsewhere THEN coalesce((` + lastElsewhere("r.contact", "r.org", "r.session", "r.session", "") + `), 0) ELSE 0 END
		FROM (SELECT generation FROM ledger WHERE name='ledger' @share@) AS l
		JOIN @rows:$1(message text, org text, project text, session text, conversation text, contact text, input text, jid text,
			what text, ref text, text text, wa text, due bigint, ttl bigint, ask boolean, exempt boolean,
			held text, generation bigint, opened boolean, parked boolean, send bigint, elsewhere boolean)@ AS r ON r.generation=0 OR r.generation=l.generation
		RETURNING id, seq, due_at, expires_at, created_at`
