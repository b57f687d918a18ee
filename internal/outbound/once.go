package outbound

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/plant"
	"github.com/wafleet/wafleet/internal/store"
)

const (
	keyLock  = 30 * time.Second // longer than workTime: a holder that is late is dead
	keyWait  = 10 * time.Second // for the answer of another request with the key
	pollLow  = 10 * time.Millisecond
	pollHigh = 250 * time.Millisecond
)

// heldKey is a key that this request claimed.
type heldKey struct {
	store *store.Store
	claim store.IdempotencyClaim
}

// answer is what a key keeps: the message as accepted, or the refusal.
type answer struct {
	Message *fleet.Message `json:"message,omitempty"`
	Code    string         `json:"code,omitempty"`
	Field   string         `json:"field,omitempty"`
	Detail  string         `json:"detail,omitempty"`
}

func (a answer) marshal() ([]byte, error) {
	raw, err := json.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("store answer: %w", err)
	}
	return raw, nil
}

func (k *heldKey) complete(ctx context.Context, status int, a answer) error {
	raw, err := a.marshal()
	if err != nil {
		return err
	}
	return k.store.CompleteIdempotency(ctx, k.claim.Org, k.claim.Key, k.claim.Holder, status, raw)
}

// acceptOnce does the work of one key at most once, and gives everybody who asks the same answer.
func (o *Outbound) acceptOnce(ctx context.Context, r Request) (Accepted, error) {
	if _, err := ParseKey(r.Key); err != nil {
		return Accepted{}, err
	}
	key := &heldKey{store: o.store, claim: store.IdempotencyClaim{
		Org: r.Org, Key: r.Key, BodyHash: r.hash(), Holder: rand.Text(), LockFor: keyLock,
	}}
	if plant.NoOnce {
		return o.acceptUnclaimed(ctx, r, key)
	}
	deadline := time.NewTimer(keyWait)
	defer deadline.Stop()
	for pause := pollLow; ; pause = min(2*pause, pollHigh) {
		found, err := o.find(ctx, key, pause == pollLow)
		if err != nil {
			return Accepted{}, err
		}
		switch found.State {
		case store.IdempotencyMine:
			a, err := o.acceptUnderKey(ctx, r, key)
			if !errors.Is(err, store.ErrIdempotencyLost) {
				return a, err
			}
			// We were late and another request took over; nothing of ours was committed. Its answer is ours.
			key.claim.Holder = rand.Text()
			deadline.Reset(keyWait)
		case store.IdempotencyDone:
			return replay(found)
		case store.IdempotencyMismatch:
			return Accepted{}, &fleet.CodedError{
				Code: "IDEMPOTENCY_MISMATCH", Detail: "this Idempotency-Key was used for another request: use a new key", Err: fleet.ErrConflict,
			}
		case store.IdempotencyPending, store.IdempotencyFree: // wait
		}
		again := time.NewTimer(pause)
		select {
		case <-again.C:
		case <-ctx.Done(): // nobody waits for the answer any more
			again.Stop()
			return Accepted{}, context.Cause(ctx)
		case <-deadline.C:
			again.Stop()
			return Accepted{}, &fleet.CodedError{
				Code: "IDEMPOTENCY_IN_PROGRESS", Detail: "a request with this Idempotency-Key is still being worked on: ask again",
				RetryAfter: time.Second, Err: fleet.ErrConflict,
			}
		}
	}
}

// find claims the key at the first look; later it only reads, and claims when the key is free.
func (o *Outbound) find(ctx context.Context, key *heldKey, first bool) (store.Idempotency, error) {
	// Detached: a claim that was written but not answered would block the key until its lock ends.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), workTime)
	defer cancel()
	if !first {
		found, err := o.store.GetIdempotency(ctx, key.claim)
		if err != nil || found.State != store.IdempotencyFree {
			return found, err
		}
	}
	return o.store.ClaimIdempotency(ctx, key.claim)
}

// acceptUnderKey does the work and sees to the key: an accepted request has completed it, an invalid
// one is kept under it, and after anything else it is free for the next try.
func (o *Outbound) acceptUnderKey(ctx context.Context, r Request, key *heldKey) (Accepted, error) {
	if err := o.at("claimed"); err != nil {
		return Accepted{}, err
	}
	a, err := o.accept(ctx, r, key)
	if err == nil || errors.Is(err, store.ErrIdempotencyLost) {
		return a, err
	}
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	if status, refusal := lasting(err); status != 0 {
		kept := key.complete(rctx, status, refusal)
		switch {
		case kept == nil:
			return a, err
		case errors.Is(kept, store.ErrIdempotencyLost):
			return a, kept
		}
	}
	if released := o.store.ReleaseIdempotency(rctx, r.Org, r.Key, key.claim.Holder); released != nil {
		o.log.WarnContext(ctx, "idempotency key stays locked until its time ends", slog.String("org_id", string(r.Org)), slog.Any("err", released))
	}
	return a, err
}

// lasting is the refusal that an error stands for if that is kept, with its HTTP status, else 0.
func lasting(err error) (status int, a answer) {
	if bad, ok := errors.AsType[*fleet.InvalidError](err); ok {
		return http.StatusUnprocessableEntity, answer{Code: bad.Code, Field: bad.Field, Detail: bad.Detail}
	}
	if no, ok := errors.AsType[*fleet.CodedError](err); ok && no.Code == fleet.CodeOptedOut {
		return http.StatusForbidden, answer{Code: no.Code, Detail: no.Detail}
	}
	return 0, answer{}
}

// acceptUnclaimed is the bug that plant.NoOnce plants: the key is looked up, and written only once the message is made.
func (o *Outbound) acceptUnclaimed(ctx context.Context, r Request, key *heldKey) (Accepted, error) {
	found, err := o.store.GetIdempotency(ctx, key.claim)
	if err != nil {
		return Accepted{}, err
	}
	if found.State == store.IdempotencyDone {
		return replay(found)
	}
	a, err := o.accept(ctx, r, nil)
	if err == nil {
		if _, err = o.store.ClaimIdempotency(ctx, key.claim); err == nil {
			err = key.complete(ctx, http.StatusAccepted, answer{Message: &a.Message})
		}
	}
	return a, err
}

// replay gives the stored answer.
func replay(found store.Idempotency) (Accepted, error) {
	var a answer
	if err := json.Unmarshal(found.Answer, &a); err != nil {
		return Accepted{}, fmt.Errorf("read stored answer: %w", err)
	}
	if a.Message != nil {
		return Accepted{Message: *a.Message, Replayed: true}, nil
	}
	if found.Status == http.StatusForbidden {
		return Accepted{Replayed: true}, &fleet.CodedError{Code: a.Code, Detail: a.Detail, Err: fleet.ErrConflict}
	}
	return Accepted{Replayed: true}, &fleet.InvalidError{Code: a.Code, Field: a.Field, Detail: a.Detail}
}
