package wastore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/wafleet/wafleet/internal/plant"
)

// ErrOverlap says that a Signal session was changed by somebody else since it was read. Storing what was made of it would
// undo that change: a message key would be used twice, or what the other side opened would be forgotten. No frame has left;
// it can be encrypted anew at once.
var ErrOverlap = errors.New("the Signal session was changed meanwhile")

// ratchet keeps those apart who change the Signal sessions of one device. whatsmeow has no lock for that: a send reads its
// recipients' sessions, may wait for pre-keys, and stores them with its claim; a message that comes in is decrypted meanwhile,
// and a retry receipt is answered on a goroutine of its own.
//
// Reading and storing are apart for a send, so it goes by versions: one that finds another version at its claim than it read
// under is refused. The steps that store take turns: a decryption has the turn from before its transaction to after its
// commit, and reads in it; a claim has it while it compares and commits.
//
// The turn is taken before anything of the database is, never inside a transaction, and nobody who has it waits for the
// network: no circle can close.
type ratchet struct {
	turn    chan struct{} // one slot: whose is in it may store
	waiting atomic.Int32

	mu       sync.Mutex
	last     uint64            // counts changes
	floor    uint64            // the version of every address that is not listed
	versions map[string]uint64 // of the addresses that were changed last
	alone    map[string]uint64 // the version under which an address was read last outside of sends and decryptions
}

func newRatchet() ratchet { return ratchet{turn: make(chan struct{}, 1)} }

func (r *ratchet) version(address string) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at(address)
}

func (r *ratchet) at(address string) uint64 {
	if v, ok := r.versions[address]; ok {
		return v
	}
	return r.floor
}

// changed raises the version of addresses; of all if none is named.
func (r *ratchet) changed(addresses ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	if len(addresses) == 0 || len(r.versions)+len(addresses) > sessionsMax {
		r.floor, r.versions = r.last, nil // some who overlap with nobody try once more
	}
	for _, a := range addresses {
		if r.versions == nil {
			r.versions = make(map[string]uint64)
		}
		r.versions[a] = r.last
	}
}

// readAlone notes that somebody who has neither a send nor a transaction reads a session, to store it right after.
func (r *ratchet) readAlone(address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.alone == nil || len(r.alone) >= sessionsMax {
		r.alone = make(map[string]uint64)
	}
	r.alone[address] = r.at(address)
}

// movedAlone reports whether the session was changed since readAlone.
func (r *ratchet) movedAlone(address string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, read := r.alone[address]
	return read && v != r.at(address) && !plant.Overlap
}

// takeTurn waits for the turn to change sessions. Inside a transaction it was taken before that began.
func (s *deviceStore) takeTurn(ctx context.Context) (release func(), err error) {
	if s.f.txOf(ctx) != nil || plant.Overlap {
		return func() {}, nil
	}
	select {
	case s.ratchet.turn <- struct{}{}:
	default:
		s.ratchet.waiting.Add(1)
		defer s.ratchet.waiting.Add(-1)
		select {
		case s.ratchet.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, s.f.fail(ctx, context.Cause(ctx))
		}
	}
	return func() { <-s.ratchet.turn }, nil
}

// read notes under which version a send has a session; the first time counts, since whatsmeow goes on with what it read then.
func (w *SendWatch) readAt(address string, version uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.versions[address]; ok {
		return
	}
	if w.versions == nil {
		w.versions = make(map[string]uint64)
	}
	w.versions[address] = version
}

// moved reports whether a session was changed by somebody else since the send read it.
func (w *SendWatch) moved(address string, now uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	v, read := w.versions[address]
	return read && v != now && !plant.Overlap
}

// own takes a change that the send itself made: it is no overlap.
func (w *SendWatch) own(address string, version uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.versions[address]; ok {
		w.versions[address] = version
	}
}

// overlap refuses to store sessions of which one was changed since whoever stores it read it. The caller has the turn.
func (s *deviceStore) overlap(ctx context.Context, address string) error {
	moved := false
	switch w := s.f.sendOf(ctx); {
	case s.f.txOf(ctx) != nil: // it read in its turn
	case w != nil:
		moved = w.moved(address, s.ratchet.version(address))
	default:
		moved = s.ratchet.movedAlone(address)
	}
	if moved {
		return ErrOverlap
	}
	return nil
}
