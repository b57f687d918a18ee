package wastore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"go.mau.fi/util/dbutil"
	"go.mau.fi/whatsmeow/types"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/plant"
	"github.com/wafleet/wafleet/internal/store"
)

// FenceOptions say under which right a fence writes.
type FenceOptions struct {
	Term fleet.Term
	// Valid returns nil while the term is trusted on the local clock. It is asked before every
	// read and write and must be cheap.
	Valid func() error
	// Lost ends the term: it must cancel the term's context before it returns, and not wait.
	// It is called at most once, with fleet.ErrLeaseLost.
	Lost func(error)
}

// Fence is the right to write one session's keys, under one term.
type Fence struct {
	c    *Container
	term fleet.Term
	o    FenceOptions
	lost atomic.Bool
	once sync.Once

	mu     sync.Mutex
	stores map[string]*deviceStore // by device JID; one for all generations
}

// Fence returns the fence of a term.
func (c *Container) Fence(o FenceOptions) *Fence {
	if o.Valid == nil {
		o.Valid = func() error { return nil } // the rows alone decide
	}
	if o.Lost == nil {
		o.Lost = func(error) {}
	}
	return &Fence{c: c, term: o.Term, o: o, stores: map[string]*deviceStore{}}
}

// store returns the store object of a device, the same for all generations.
func (f *Fence) store(jid types.JID) *deviceStore {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.stores[jid.String()]
	if s == nil {
		s = newDeviceStore(f, jid)
		f.stores[jid.String()] = s
	}
	return s
}

type (
	boundKey struct{}
	bound    struct {
		f      *Fence
		cancel context.CancelCauseFunc
	}
	txKey struct{}
	// tx is a transaction that this package began.
	tx struct {
		f        *Fence
		fenced   bool  // the lease row is locked
		failed   error // a statement in it failed: it must not commit, whoever swallowed the error
		onCommit []func()
		dirty    []any // caches whose rows it changed: it must read those rows itself
	}
)

// Bind marks the context of a generation: a store error under it that is not inside a send calls
// cancel before it is returned. Contexts made from it are marked too.
func (f *Fence) Bind(ctx context.Context, cancel context.CancelCauseFunc) context.Context {
	return context.WithValue(ctx, boundKey{}, &bound{f, cancel})
}

// errForeignTx: whatsmeow's store was called with the context of a transaction that somebody else
// began.
var errForeignTx = errors.New("whatsmeow's store used inside another transaction")

// check is asked before every read and write.
func (f *Fence) check(ctx context.Context) error {
	if f.lost.Load() || f.o.Valid() != nil && !plant.NoFence {
		return f.lose(ctx)
	}
	if _, open := f.c.db.Execable(ctx).(dbutil.Transaction); open && f.txOf(ctx) == nil {
		return f.fail(ctx, errForeignTx)
	}
	return nil
}

// lose ends the term for good, and all that runs under it.
func (f *Fence) lose(ctx context.Context) error {
	f.once.Do(func() {
		f.lost.Store(true)
		f.o.Lost(fleet.ErrLeaseLost)
		f.c.metrics.errors.WithLabelValues(endedTerm).Inc()
		f.c.log.WarnContext(ctx, "key store refused: the term is over",
			slog.String("session_id", string(f.term.SessionID)), slog.Int64("epoch", f.term.Epoch))
	})
	if w := f.sendOf(ctx); w != nil {
		w.fail(fleet.ErrLeaseLost)
	}
	if b, ok := ctx.Value(boundKey{}).(*bound); ok && b.f == f {
		b.cancel(fleet.ErrLeaseLost)
	}
	return fleet.ErrLeaseLost
}

// fail cancels what the error happened under and returns it. No error and a plain miss pass.
func (f *Fence) fail(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if t := f.txOf(ctx); t != nil && t.failed == nil {
		t.failed = err
	}
	if errors.Is(err, fleet.ErrLeaseLost) || f.lost.Load() { // the loss cancelled what failed
		return f.lose(ctx)
	}
	ended := endedNothing
	if w := f.sendOf(ctx); w != nil {
		ended = endedSend
		w.fail(err)
		if errors.Is(err, ErrWithdrawn) || errors.Is(err, ErrOverlap) {
			return err
		}
	} else if b, ok := ctx.Value(boundKey{}).(*bound); ok && b.f == f {
		ended = endedGeneration
		b.cancel(fmt.Errorf("key store: %w", err))
	}
	f.c.metrics.errors.WithLabelValues(ended).Inc()
	f.c.log.WarnContext(ctx, "key store failed", slog.String("session_id", string(f.term.SessionID)),
		slog.Int64("epoch", f.term.Epoch), slog.String("ended", ended), slog.Any("err", err))
	return err
}

func (f *Fence) txOf(ctx context.Context) *tx {
	if t, ok := ctx.Value(txKey{}).(*tx); ok && t.f == f {
		return t
	}
	return nil
}

// begin runs fn in a transaction that rolls back if any statement in it failed. What fn left in
// onCommit runs after the commit and not otherwise.
func (f *Fence) begin(ctx context.Context, fn func(ctx context.Context, t *tx) error) error {
	t := &tx{f: f}
	err := f.c.db.DoTxn(ctx, nil, func(ctx context.Context) error {
		err := f.guarded(context.WithValue(ctx, txKey{}, t), func(ctx context.Context) error { return fn(ctx, t) })
		if err != nil {
			return err
		}
		return t.failed
	})
	if err != nil {
		return store.TxError(ctx, err)
	}
	for _, done := range t.onCommit {
		done()
	}
	return nil
}

// guarded turns a panic into an error: it would leave the transaction around it, and with it the
// lock on the lease's row, open for ever.
func (f *Fence) guarded(ctx context.Context, fn func(ctx context.Context) error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			f.c.log.ErrorContext(ctx, "panic inside a key store transaction", slog.String("session_id", string(f.term.SessionID)),
				slog.Any("err", r), slog.String("stack", string(debug.Stack())))
			err = fmt.Errorf("panic inside a key store transaction: %v", r)
		}
	}()
	return fn(ctx)
}

// take locks the lease row for this transaction, once.
func (f *Fence) take(ctx context.Context, t *tx) error {
	if t.fenced {
		return nil
	}
	var one int
	err := f.c.db.QueryRow(ctx, f.c.text(takeFence), f.term.SessionID, f.term.Owner, f.term.Epoch).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return f.fail(ctx, fleet.ErrLeaseLost)
	} else if err != nil {
		return f.fail(ctx, fmt.Errorf("take the fence: %w", err))
	}
	t.fenced = true
	return nil
}

var takeFence = newQuery(fenceRow)

// do runs a write of several statements, or one that may touch no row, in a fenced transaction.
func (f *Fence) do(ctx context.Context, fn func(ctx context.Context) error) error {
	if err := f.check(ctx); err != nil {
		return err
	}
	if t := f.txOf(ctx); t != nil {
		if err := f.take(ctx, t); err != nil {
			return err
		}
		return f.fail(ctx, fn(ctx))
	}
	return f.fail(ctx, f.begin(ctx, func(ctx context.Context, t *tx) error {
		if err := f.take(ctx, t); err != nil {
			return err
		}
		return fn(ctx)
	}))
}

// write runs one statement made by fencedQuery, whose arguments go on from $4. It must touch a row
// whenever the fence holds: no row means that the term is over.
func (f *Fence) write(ctx context.Context, q query, args ...any) error {
	return f.writeText(ctx, f.c.text(q), args)
}

func (f *Fence) writeText(ctx context.Context, text string, args []any) error {
	n, err := f.run(ctx, text, args)
	if err == nil && n == 0 {
		return f.fail(ctx, fleet.ErrLeaseLost)
	}
	return err
}

// run is write where no row may also mean that there is nothing to write to.
func (f *Fence) run(ctx context.Context, text string, args []any) (int64, error) {
	if err := f.check(ctx); err != nil {
		return 0, err
	}
	n, err := store.Exec(ctx, f.c.db, text, append([]any{f.term.SessionID, f.term.Owner, f.term.Epoch}, args...)...)
	if err != nil {
		return 0, f.fail(ctx, err)
	}
	if t := f.txOf(ctx); t != nil && n > 0 {
		t.fenced = true
	}
	return n, nil
}

// cached reports whether ctx may read from a cache: not where its own transaction changed the rows.
func (f *Fence) cached(ctx context.Context, cache any) bool {
	t := f.txOf(ctx)
	return t == nil || !slices.Contains(t.dirty, cache)
}

// changing notes that ctx's transaction, if it is in one, changes rows of this cache.
func (f *Fence) changing(ctx context.Context, cache any) {
	if t := f.txOf(ctx); t != nil {
		t.dirty = append(t.dirty, cache)
	}
}

// committed runs fn once the change just made is in the database: now, or after the transaction of
// ctx commits.
func (f *Fence) committed(ctx context.Context, fn func()) {
	if t := f.txOf(ctx); t != nil {
		t.onCommit = append(t.onCommit, fn)
		return
	}
	fn()
}

// read runs a read: no statement of a term that is over, and no error that cancels nothing.
func read[T any](ctx context.Context, f *Fence, fn func(ctx context.Context) (T, error)) (T, error) {
	if err := f.check(ctx); err != nil {
		var none T
		return none, err
	}
	v, err := fn(ctx)
	return v, f.fail(ctx, err)
}
