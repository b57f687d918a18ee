package wastore

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/plant"
	"github.com/wafleet/wafleet/internal/store"
)

// Signal sessions: read and written with every message. Under the lease nobody else writes them, so
// those used last are remembered, and a send reads nothing.

const sessionsMax = 128 // sessions remembered per device

var putSession = fencedQuery(`INSERT INTO whatsmeow_sessions (our_jid, their_id, session)
	SELECT $4::text, $5::text, $6::bytea FROM f WHERE TRUE
	ON CONFLICT (our_jid, their_id) DO UPDATE SET session=excluded.session`)

func (s *deviceStore) PutSession(ctx context.Context, address string, session []byte) error {
	release, err := s.takeTurn(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := s.overlap(ctx, address); err != nil {
		return s.f.fail(ctx, err)
	}
	version := s.sessions.change(address)
	s.move(ctx, address)
	s.f.changing(ctx, &s.sessions)
	if err := s.f.write(ctx, putSession, s.jid, address, session); err != nil {
		return err
	}
	s.f.committed(ctx, func() {
		s.move(ctx, address)
		s.sessions.changed(address, session, version)
	})
	return nil
}

// move raises the version of a session, or of all of them if it names none: when it is about to be changed, and when the
// change is committed. Whoever reads in between has what was there before, and may not store what they make of it.
func (s *deviceStore) move(ctx context.Context, addresses ...string) {
	w := s.f.sendOf(ctx)
	var own []string // read by this send, and by nobody changed since
	for _, a := range addresses {
		if w != nil && !w.moved(a, s.ratchet.version(a)) {
			own = append(own, a)
		}
	}
	s.ratchet.changed(addresses...)
	for _, a := range own {
		w.own(a, s.ratchet.version(a))
	}
}

// PutManySessions stores what one send encrypted with. It runs after the encryption and before the
// frame, so it is the last place to see that the recipient's phone was left out.
func (s *deviceStore) PutManySessions(ctx context.Context, sessions map[string][]byte) error {
	if err := s.f.check(ctx); err != nil {
		return err
	}
	w := s.f.sendOf(ctx)
	if w != nil && w.direct {
		if ok, err := w.covers(ctx, sessions); err != nil {
			return s.f.fail(ctx, err)
		} else if !ok {
			return s.f.fail(ctx, ErrRecipientSkipped)
		}
	}
	if len(sessions) == 0 {
		return nil
	}
	if err := s.putMany(ctx, sessions); err != nil {
		return err
	}
	if w != nil {
		s.f.committed(ctx, func() { w.saved.Store(true) })
	}
	return nil
}

// putMany writes sessions in one statement: with the claim of the frame that they are for, or alone.
func (s *deviceStore) putMany(ctx context.Context, sessions map[string][]byte) error {
	release, err := s.takeTurn(ctx)
	if err != nil {
		return err
	}
	write := &sessionWrite{s: s, values: sessions, release: sync.OnceFunc(release)}
	defer write.leave()
	for a := range sessions {
		if err := s.overlap(ctx, a); err != nil {
			return s.f.fail(ctx, err)
		}
	}
	addresses := slices.Collect(maps.Keys(sessions))
	write.version = s.sessions.change(addresses...)
	s.move(ctx, addresses...)
	s.f.changing(ctx, &s.sessions)
	if w := s.f.sendOf(ctx); w != nil && s.f.txOf(ctx) == nil {
		if claim := w.takeClaim(); claim != nil {
			return s.f.fail(ctx, claim(ctx, write))
		}
	}
	if err := s.f.writeText(ctx, write.text(), write.args()); err != nil {
		return err
	}
	s.f.committed(ctx, func() {
		s.move(ctx, addresses...)
		write.believe()
	})
	return nil
}

// sessionWrite is what one send encrypted with.
type sessionWrite struct {
	s       *deviceStore
	values  map[string][]byte
	version uint64
	release func() // gives the turn back

	mu      sync.Mutex
	writing bool // a commit is under way with it
	left    bool // the send waits for it no longer
}

// write reports whether the sessions are to be written by the commit that asks. Not when the send has left: its frame does
// not leave either, and somebody else may have changed the sessions meanwhile.
func (w *sessionWrite) write() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writing = !w.left
	return w.writing
}

// leave ends the turn: at once, or when the commit that is under way has ended.
func (w *sessionWrite) leave() {
	w.mu.Lock()
	w.left = true
	writing := w.writing
	w.mu.Unlock()
	if !writing {
		w.release()
	}
}

// believe remembers what is committed.
func (w *sessionWrite) believe() { w.s.sessions.allChanged(w.values, w.version) }

// Settled implements store.Keys. What came of it is known to the cache before it is known to the sender, who may have
// left meanwhile.
func (w *sessionWrite) Settled(committed bool) {
	w.s.ratchet.changed(slices.Collect(maps.Keys(w.values))...)
	if committed {
		w.believe()
	} else {
		w.s.sessions.change() // it may be committed all the same: nobody may believe what was read meanwhile
	}
	w.mu.Lock()
	w.writing = false
	left := w.left
	w.mu.Unlock()
	if left {
		w.release()
	}
}

// writeKeys says how to write what several claimed frames were encrypted with, each under its own term.
func (c *Container) writeKeys(keys []store.Keys) ([]store.Statement, error) {
	writes := make([]*sessionWrite, 0, len(keys))
	for _, k := range keys {
		w, ok := k.(*sessionWrite)
		if !ok {
			return nil, fmt.Errorf("keys of the type %T", k)
		}
		if w.write() {
			writes = append(writes, w)
		}
	}
	if len(writes) == 0 {
		return nil, nil
	}
	if c.postgres {
		return c.putSessionsPostgres(writes)
	}
	var all []store.Statement
	for _, w := range writes {
		t, held := w.s.f.term, false
		all = append(all, store.Statement{
			Text: w.text() + " RETURNING 1", Args: append([]any{t.SessionID, t.Owner, t.Epoch}, w.args()...),
			Row: func(dbutil.Scannable) error { held = true; return nil },
			Done: func() error {
				if !held {
					return errNotHeld
				}
				return nil
			},
		})
	}
	return all, nil
}

// errNotHeld: the transaction that claims a frame holds its lease row, so that its keys must pass the same fence.
var errNotHeld = errors.New("keys of a claimed frame did not pass the fence")

// putSessions is one statement for all: the leases are locked in the order of their sessions, as everywhere, and each
// row needs the lease of its own term. The rows come as JSON because the planner takes every such list for a hundred rows;
// it would look into arrays and plan anew for each.
const putSessions = `WITH u AS MATERIALIZED (SELECT * FROM json_to_recordset(($1::text)::json) AS u(id text, owner text, epoch bigint, jid text, address text, session text)),
	held AS MATERIALIZED (SELECT t.id, t.owner, t.epoch FROM (SELECT DISTINCT id, owner, epoch FROM u ORDER BY id, owner, epoch) AS t
		CROSS JOIN LATERAL (SELECT session_id FROM leases l WHERE l.session_id=t.id AND l.owner=t.owner AND l.epoch=t.epoch FOR SHARE) AS l),
	put AS (INSERT INTO whatsmeow_sessions (our_jid, their_id, session)
		SELECT u.jid, u.address, decode(u.session, 'hex') FROM u JOIN held ON held.id=u.id AND held.owner=u.owner AND held.epoch=u.epoch
		ORDER BY u.jid, u.address ON CONFLICT (our_jid, their_id) DO UPDATE SET session=excluded.session)
	SELECT id, owner, epoch FROM held`

type sessionArg struct {
	ID      fleet.SessionID `json:"id"`
	Owner   string          `json:"owner"`
	Epoch   int64           `json:"epoch"`
	JID     string          `json:"jid"`
	Address string          `json:"address"`
	Session string          `json:"session"` // hex
}

func (c *Container) putSessionsPostgres(writes []*sessionWrite) ([]store.Statement, error) {
	type key struct{ jid, address string }
	rows := map[key]sessionArg{} // a row is written once; what came later counts
	for _, w := range writes {
		t := w.s.f.term
		for address, session := range w.values {
			rows[key{w.s.jid, address}] = sessionArg{t.SessionID, t.Owner, t.Epoch, w.s.jid, address, hex.EncodeToString(session)}
		}
	}
	list, err := json.Marshal(slices.Collect(maps.Values(rows)))
	if err != nil {
		return nil, err
	}
	text := putSessions
	if plant.NoFence {
		text = strings.Replace(text, "l.owner=t.owner AND l.epoch=t.epoch", "TRUE", 1)
	}
	held := map[fleet.Term]bool{}
	return []store.Statement{{
		Text: text, Args: []any{string(list)},
		Row: func(row dbutil.Scannable) error {
			var t fleet.Term
			err := row.Scan(&t.SessionID, &t.Owner, &t.Epoch)
			held[t] = true
			return err
		},
		Done: func() error {
			for _, w := range writes {
				if !held[w.s.f.term] {
					return errNotHeld
				}
			}
			return nil
		},
	}}, nil
}

const putManySessions = ` INSERT INTO whatsmeow_sessions (our_jid, their_id, session)
	SELECT $4::text, u.k, u.v FROM f CROSS JOIN u WHERE TRUE
	ON CONFLICT (our_jid, their_id) DO UPDATE SET session=excluded.session`

// text is the statement of one send alone, whose arguments go on from $4.
func (w *sessionWrite) text() string {
	if w.s.f.c.postgres {
		return `WITH f AS (` + fenceRow + `), u (k, v) AS (SELECT * FROM unnest($5::text[], $6::bytea[]))` + putManySessions
	}
	return `WITH f AS (` + takeFence.sqlite + `), u (k, v) AS (VALUES ` + pairs(5, len(w.values)) + `)` +
		strings.Replace(putManySessions, "::text", "", 1)
}

// pairs writes n rows of two parameters each, the first of them numbered from.
func pairs(from, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("($" + strconv.Itoa(from+2*i) + ",$" + strconv.Itoa(from+1+2*i) + ")")
	}
	return b.String()
}

func (w *sessionWrite) args() []any {
	addresses := slices.Sorted(maps.Keys(w.values))
	if w.s.f.c.postgres {
		values := make([][]byte, len(addresses))
		for i, a := range addresses {
			values[i] = w.values[a]
		}
		return []any{w.s.jid, addresses, values}
	}
	args := append(make([]any, 0, 1+2*len(addresses)), w.s.jid)
	for _, a := range addresses {
		args = append(args, a, w.values[a])
	}
	return args
}

func (s *deviceStore) GetSession(ctx context.Context, address string) ([]byte, error) {
	found, err := s.GetManySessions(ctx, []string{address})
	return found[address], err
}

func (s *deviceStore) HasSession(ctx context.Context, address string) (bool, error) {
	found, err := s.manySessions(ctx, []string{address})
	return found[address] != nil, err
}

// GetManySessions reads sessions that may be stored again, changed.
func (s *deviceStore) GetManySessions(ctx context.Context, addresses []string) (map[string][]byte, error) {
	w, inTx := s.f.sendOf(ctx), s.f.txOf(ctx) != nil
	if w == nil && !inTx { // whoever has the turn changes what would be read
		release, err := s.takeTurn(ctx)
		if err != nil {
			return nil, err
		}
		release()
	}
	for _, a := range addresses { // before they are read
		switch {
		case inTx: // it has the turn
		case w != nil:
			w.readAt(a, s.ratchet.version(a))
		default:
			s.ratchet.readAlone(a)
		}
	}
	return s.manySessions(ctx, addresses)
}

// manySessions asks the database only for what is not remembered.
func (s *deviceStore) manySessions(ctx context.Context, addresses []string) (map[string][]byte, error) {
	if err := s.f.check(ctx); err != nil {
		return nil, err
	}
	out := make(map[string][]byte, len(addresses))
	remember := s.f.cached(ctx, &s.sessions)
	var missing []string
	for _, a := range addresses {
		session, ok := []byte(nil), false
		if remember {
			session, ok = s.sessions.get(a)
		}
		if out[a] = session; !ok {
			missing = append(missing, a)
		}
	}
	if len(missing) == 0 {
		return out, nil
	}
	version := s.sessions.reading()
	found, err := s.readSessions(ctx, missing)
	if err != nil {
		return nil, s.f.fail(ctx, err)
	}
	for a, session := range found {
		if out[a] = session; session != nil && remember {
			s.f.committed(ctx, func() { s.sessions.fill(a, session, version) })
		}
	}
	return out, nil
}

func (s *deviceStore) readSessions(ctx context.Context, addresses []string) (map[string][]byte, error) {
	if !s.f.c.postgres {
		return s.raw.GetManySessions(ctx, addresses)
	}
	out := make(map[string][]byte, len(addresses))
	rows, err := s.f.c.db.Query(ctx, `SELECT their_id, session FROM whatsmeow_sessions WHERE our_jid=$1 AND their_id=ANY($2::text[])`, s.jid, addresses)
	err = dbutil.NewRowIterWithError(rows, func(row dbutil.Scannable) (struct{}, error) {
		var a string
		var session []byte
		err := row.Scan(&a, &session)
		out[a] = session
		return struct{}{}, err
	}, err).Iter(func(struct{}) (bool, error) { return true, nil })
	return out, err
}

func (s *deviceStore) DeleteSession(ctx context.Context, address string) error {
	return s.dropSessions(ctx, func(ctx context.Context) error { return s.raw.DeleteSession(ctx, address) }, address)
}

func (s *deviceStore) DeleteAllSessions(ctx context.Context, phone string) error {
	return s.dropSessions(ctx, func(ctx context.Context) error { return s.raw.DeleteAllSessions(ctx, phone) })
}

// dropSessions changes or deletes sessions: those of the addresses, any if it names none.
func (s *deviceStore) dropSessions(ctx context.Context, fn func(ctx context.Context) error, addresses ...string) error {
	release, err := s.takeTurn(ctx)
	if err != nil {
		return err
	}
	defer release()
	s.sessions.clear()
	s.move(ctx, addresses...)
	s.f.changing(ctx, &s.sessions)
	if err := s.f.do(ctx, fn); err != nil {
		return err
	}
	s.f.committed(ctx, func() {
		s.move(ctx, addresses...)
		s.sessions.clear()
	})
	return nil
}
