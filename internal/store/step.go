package store

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/group"
	"github.com/wafleet/wafleet/internal/plant"
)

// stepLimit bounds the commit of the steps that share it.
const stepLimit = 10 * time.Second

// receiptWait is how long a receipt may wait for the next step of a lane that sends: nobody waits for it, and half the
// transactions of a busy session are saved. Where no lane sends it does not wait, since receipts of one session come one
// after the other.
const receiptWait = 25 * time.Millisecond

// Keys are what a frame was encrypted with: rows of whatsmeow's, which WriteKeysWith's function writes.
type Keys interface {
	// Settled is called after each try to commit them, before anybody else hears of it. Not committed may also mean
	// that nobody knows.
	Settled(committed bool)
}

// WriteKeysWith names who writes the keys of claimed frames. It is called once, before the first step that has some.
// Its statements run in the transaction of the claims, which holds the lease rows of all the terms.
func (s *Store) WriteKeysWith(write func(keys []Keys) ([]Statement, error)) { s.writeKeys = write }

// Step is what one session wants committed at once, under its term and in this order: what became of
// the frame it sent, what WhatsApp told of frames before, the claim of the next one with the keys that
// it was encrypted with. Then it looks ahead to the message after that. Every part may be missing.
//
// Steps of many sessions that come at about the same time share one transaction and one sync of the
// log. One whose term is over changes nothing and hears of it, and the others go on.
type Step struct {
	Term    fleet.Term
	Result  *Result
	Receipt *fleet.Receipt
	Claim   *Claim
	Keys    Keys // of the claimed frame, written in the same transaction; nothing if the claim does not stand
	Look    bool

	// The answers, to be read only after Commit returned nil.
	Claimed bool              // the frame may leave
	Raised  []fleet.MessageID // messages that the receipt changed, in lane order
	Next    *LaneItem         // what the lane should send after the claimed message, as if that one were sent

	over bool // the term is
}

// Commit commits a step, together with whatever others want committed now. When it returns nil the
// step is committed; fleet.ErrLeaseLost means that its term is over and nothing of it was. After any
// other error it may be committed or not. Inside a transaction it joins that.
func (s *Store) Commit(ctx context.Context, step *Step) error {
	if err := step.check(); err != nil {
		return err
	}
	var err error
	if _, open := s.db.Execable(ctx).(dbutil.Transaction); open {
		err = s.commitSteps(ctx, []*Step{step})
	} else {
		wait := time.Duration(0)
		if _, sending := s.flights.Load(step.Term.SessionID); sending && step.Result == nil && step.Claim == nil {
			wait = receiptWait
		}
		err = s.steps.DoWithin(ctx, step, wait)
	}
	if err == nil && step.over {
		return fleet.ErrLeaseLost
	}
	return err
}

// check refuses what no database should be asked.
func (p *Step) check() error {
	if r := p.Result; r != nil && !slices.Contains([]fleet.Outcome{fleet.OutcomeSent, fleet.OutcomeRefused, fleet.OutcomeNothing, fleet.OutcomeUnknown}, r.Outcome) {
		return fmt.Errorf("outcome %q: %w", r.Outcome, fleet.ErrInvalid)
	}
	if r := p.Receipt; r != nil && r.Status.Rank() < fleet.StatusDelivered.Rank() {
		return fmt.Errorf("receipt %q: %w", r.Status, fleet.ErrInvalid)
	}
	if c := p.Claim; c != nil && c.LockFor <= 0 {
		return fmt.Errorf("claim without a lock time: %w", fleet.ErrInvalid)
	}
	if c := p.Claim; c != nil && c.Kind != fleet.AttemptSend && c.Kind != fleet.AttemptRepeat {
		return fmt.Errorf("claim of kind %q: %w", c.Kind, fleet.ErrInvalid)
	}
	return nil
}

// commitSteps commits steps in one transaction.
func (s *Store) commitSteps(ctx context.Context, steps []*Step) error {
	b := &batch{s: s, steps: steps}
	err := errPanicked
	defer func() {
		for _, p := range steps {
			if err == nil && p.Claimed {
				s.flights.Store(p.Term.SessionID, struct{}{})
			} else if p.Result != nil {
				s.flights.Delete(p.Term.SessionID)
			}
			if p.Keys != nil {
				p.Keys.Settled(err == nil && p.Claimed)
			}
		}
	}()
	refused := false
	if _, open := s.db.Execable(ctx).(dbutil.Transaction); s.pipes && !open {
		err = s.inPipe(ctx, func(ctx context.Context, p *pipe) error {
			send := func(st []Statement) error {
				p.queue(st...)
				return nil
			}
			return b.run(send, func() error { return p.flush(ctx) })
		})
		refused = err != nil && ctx.Err() == nil && !errors.Is(err, fleet.ErrUnavailable)
	} else {
		err = s.InTx(ctx, func(ctx context.Context) error {
			send := func(st []Statement) error { return s.runAll(ctx, st) }
			err := b.run(send, func() error { return nil })
			refused = err != nil && ctx.Err() == nil && !errors.Is(err, fleet.ErrUnavailable)
			return err
		})
	}
	if refused {
		return group.Rejected(err)
	}
	return err
}

// errPanicked is the error of a commit that did not return one.
var errPanicked = errors.New("the commit panicked")

// batch is the transaction of some steps. What the rows become is worked out here and not in SQL:
// they are locked, read, changed in the order of the steps, and written, each with one statement for
// all of them.
//
// Locks are taken in the order of the whole store: leases by session, messages by seq (those to be
// claimed too), streams by id.
type batch struct {
	s      *Store
	steps  []*Step
	now    int64 // the database's, unix ms
	held   map[fleet.Term]bool
	frames map[fleet.MessageID]*frame
	byWAID map[waKey]*frame
	events []fleet.Event

	results  []resultArg
	attempts []attemptArg
	payloads []payloadArg
}

type waKey struct {
	session fleet.SessionID
	waID    string
}

// run sends the statements. Those that are flushed have been answered; the others may still be on their way.
func (b *batch) run(send func([]Statement) error, flush func() error) error {
	b.held, b.frames, b.byWAID = map[fleet.Term]bool{}, map[fleet.MessageID]*frame{}, map[waKey]*frame{}
	b.events, b.results, b.attempts, b.payloads = nil, nil, nil, nil
	for _, p := range b.steps { // a step that is tried again starts afresh
		p.Claimed, p.Raised, p.Next, p.over = false, nil, nil, false
	}
	if err := errors.Join(send(b.lock()), flush()); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	for _, p := range b.steps {
		if p.over = !b.held[p.Term]; p.over {
			continue
		}
		if p.Result != nil {
			b.settle(p)
		}
		if p.Receipt != nil {
			b.raise(p)
		}
	}
	for _, p := range b.steps {
		if !p.over && p.Claim != nil {
			b.claim(p)
		}
	}
	if err := send(b.write()); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	keys, err := b.keys()
	if err == nil {
		err = send(keys)
	}
	if err != nil {
		return fmt.Errorf("write keys: %w", err)
	}
	if err := send(b.look()); err != nil {
		return fmt.Errorf("look ahead: %w", err)
	}
	return nil
}

// settle applies a step's result to its message.
func (b *batch) settle(p *Step) {
	b.results = append(b.results, resultArg{p.Result.ID, p.Term.Epoch, p.Result.Outcome, p.Result.Code})
	f := b.frames[p.Result.ID]
	if f == nil || f.Session != p.Term.SessionID {
		return
	}
	if f.settle(p.Term.Epoch, p.Result, b.now) {
		b.tell(f, p.Result.At)
	}
}

// raise applies a step's receipt to the messages that it names.
func (b *batch) raise(p *Step) {
	var raised []*frame
	for _, waID := range p.Receipt.WAIDs {
		f := b.byWAID[waKey{p.Term.SessionID, waID}]
		if f == nil || !f.Status.CanBecome(p.Receipt.Status) {
			continue
		}
		// A receipt that overtook the ack proves the ack too: "sent" is told before what follows it.
		if f.SentAt == 0 {
			f.arrived(fleet.StatusSent, p.Receipt.At, b.now)
			b.tell(f, p.Receipt.At)
		}
		f.arrived(p.Receipt.Status, p.Receipt.At, b.now)
		b.tell(f, p.Receipt.At)
		raised = append(raised, f)
	}
	slices.SortFunc(raised, func(x, y *frame) int { return cmp.Compare(x.Seq, y.Seq) })
	for _, f := range raised {
		p.Raised = append(p.Raised, f.ID)
	}
}

// claim marks the message that a step claims as sending, if it may be sent after what the step's result made of
// the frame before.
func (b *batch) claim(p *Step) {
	f := b.frames[p.Claim.ID]
	if f == nil || f.Session != p.Term.SessionID || !f.claimable || f.changed { // changed: by a receipt, or claimed by another step
		return
	}
	if p.Result != nil && p.Claim.Kind == fleet.AttemptSend {
		if e := b.frames[p.Result.ID]; e != nil && e.contact == f.contact && !e.Status.Settled() {
			return
		}
	}
	f.claim(p.Term.Epoch, p.Claim, b.now)
	if p.Claim.Kind == fleet.AttemptSend {
		b.payloads = append(b.payloads, payloadArg{f.Seq, hex.EncodeToString(b.s.ring.Seal(payloadRow(f.ID), p.Claim.Payload))})
	}
	b.attempts = append(b.attempts, attemptArg{f.ID, f.Attempts, f.Session, p.Term.Epoch, p.Claim.Kind})
	p.Claimed = true
}

func (b *batch) tell(f *frame, when time.Time) {
	if plant.ForgetEvent && f.Status == fleet.StatusDelivered {
		return
	}
	if when.IsZero() {
		when = time.UnixMilli(b.now)
	}
	b.events = append(b.events, statusEvent(fleet.Message{
		ID: f.ID, OrgID: f.org, SessionID: f.Session, ConversationID: f.conversation,
		Status: f.Status, Outcome: f.Outcome, ErrorCode: f.ErrorCode, ErrorDetail: f.ErrorDetail,
	}, when))
}

// lock proves the terms, and locks and reads the messages that the steps are about.
func (b *batch) lock() []Statement {
	var terms []leaseArg
	var ids, waIDs []messageArg
	for _, p := range b.steps {
		terms = append(terms, leaseArg{p.Term.SessionID, p.Term.Owner, p.Term.Epoch})
		past := fleet.MessageID("")
		if p.Result != nil {
			past = p.Result.ID
			ids = append(ids, messageArg{Session: p.Term.SessionID, ID: string(p.Result.ID)})
		}
		if p.Claim != nil {
			ids = append(ids, messageArg{p.Term.SessionID, string(p.Claim.ID), p.Claim.Kind, past, p.Term.Epoch})
		}
		if p.Receipt != nil {
			for _, waID := range p.Receipt.WAIDs {
				waIDs = append(waIDs, messageArg{Session: p.Term.SessionID, ID: waID})
			}
		}
	}
	if !b.s.Postgres() {
		all := []Statement{{Text: fenced(heldTerms), Args: []any{rowList(terms)}, Row: func(row dbutil.Scannable) error {
			var term fleet.Term
			err := row.Scan(&term.SessionID, &term.Owner, &term.Epoch, &b.now)
			b.held[term] = true
			return err
		}}}
		frames := func(row dbutil.Scannable) error {
			f := new(frame)
			err := row.Scan(append(append([]any{&f.Session}, f.fields()...), &f.claimable)...)
			b.found(f)
			return err
		}
		for text, list := range map[string][]messageArg{framesByID: ids, framesByWAID: waIDs} {
			if len(list) > 0 {
				all = append(all, Statement{Text: text, Args: []any{rowList(list)}, Row: frames})
			}
		}
		return all
	}
	return []Statement{{Text: fenced(lockSteps), Args: []any{rowList(terms), rowList(ids), rowList(waIDs)}, Row: func(row dbutil.Scannable) error {
		var term fleet.Term
		var indexed any
		f := new(frame)
		if err := row.Scan(append(append([]any{&term.SessionID, &term.Owner, &term.Epoch, &b.now}, f.fields()...), &f.claimable, &indexed)...); err != nil {
			return err
		}
		b.held[term] = true
		f.Session = term.SessionID
		b.found(f)
		return nil
	}}}
}

// found notes a message that was read; one that several steps are about may be read twice.
func (b *batch) found(f *frame) {
	if had := b.frames[f.ID]; had != nil {
		had.claimable = had.claimable || f.claimable
	} else if f.Seq != 0 {
		b.frames[f.ID], b.byWAID[waKey{f.Session, f.waID}] = f, f
	}
}

// write writes what the messages became, their frames' outcomes, the frames that may leave, and the events.
func (b *batch) write() []Statement {
	var changed []*frame
	for _, f := range b.frames {
		if f.changed {
			changed = append(changed, f)
		}
	}
	if len(changed) == 0 && len(b.results) == 0 {
		return nil
	}
	slices.SortFunc(changed, func(x, y *frame) int { return cmp.Compare(x.Seq, y.Seq) })
	slices.SortFunc(b.results, func(x, y resultArg) int { return cmp.Compare(x.Message, y.Message) })
	lists := []list{rowList(changed), rowList(b.results), rowList(b.attempts), rowList(b.payloads), streamList(b.events)}
	args := make([]any, len(lists))
	for i, l := range lists {
		args[i] = l
	}
	var all []Statement
	if b.s.Postgres() {
		all = append(all, Statement{Text: writeSteps, Args: args})
	} else {
		for i, q := range []string{writeFrames, settleAttempts, insertAttempts, writePayloads, bumpStreams("$5")} {
			if lists[i].len() > 0 {
				all = append(all, Statement{Text: q, Args: args[:i+1]})
			}
		}
	}
	if len(b.events) > 0 {
		all = append(all, b.s.insertEvents(b.events)...)
	}
	return all
}

// keys writes what the claimed frames were encrypted with.
func (b *batch) keys() ([]Statement, error) {
	var keys []Keys
	for _, p := range b.steps {
		if p.Claimed && p.Keys != nil {
			keys = append(keys, p.Keys)
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	return b.s.writeKeys(keys)
}

// look reads the next message of every lane that wants to know it.
func (b *batch) look() []Statement {
	var lanes []laneArg
	steps := map[fleet.SessionID][]*Step{}
	for _, p := range b.steps {
		if p.over || !p.Look {
			continue
		}
		lane := laneArg{Session: p.Term.SessionID}
		if p.Claimed {
			lane.Flight = p.Claim.ID
		}
		if steps[lane.Session] == nil {
			lanes = append(lanes, lane)
		}
		steps[lane.Session] = append(steps[lane.Session], p)
	}
	if len(lanes) == 0 {
		return nil
	}
	return []Statement{{Text: lookAhead, Args: []any{rowList(lanes)}, Row: func(row dbutil.Scannable) error {
		item, err := b.s.scanLaneItem(row)
		if err != nil {
			return err
		}
		for _, p := range steps[item.SessionID] {
			p.Next = item
		}
		return nil
	}}}
}
