package fleet

import (
	"context"
	"errors"
	"time"
)

// Sentinels: a caller branches on these with errors.Is.
var (
	// ErrNotFound: no such row in the caller's scope. Another organization's row is not found either.
	ErrNotFound = errors.New("not found")
	// ErrConflict: the row exists already, or is not in a state that allows this.
	ErrConflict = errors.New("conflict")
	// ErrInvalid: the input can't be accepted as it is. Usually wrapped by *InvalidError.
	ErrInvalid = errors.New("invalid")
	// ErrUnavailable: a part that is needed (database, bus) doesn't answer now; trying again later may work.
	ErrUnavailable = errors.New("temporarily unavailable")
	// ErrLimited: a budget, rate, quota or backlog is used up; after a while there is some of it again.
	ErrLimited = errors.New("limit reached")
	// ErrNumberInUse: another live session has this WhatsApp number.
	ErrNumberInUse = errors.New("number already in use by another session")
)

type leaseLostError struct{}

func (leaseLostError) Error() string { return "lease lost" }

// Is makes ErrLeaseLost count as a cancellation too: whatsmeow stays silent on a cancelled
// context and neither acks nor asks for a retry, which is what a stale owner must do.
func (leaseLostError) Is(target error) bool { return target == context.Canceled }

// ErrLeaseLost says that this process no longer owns the session. It also matches context.Canceled.
var ErrLeaseLost error = leaseLostError{}

// InvalidError says which input is wrong, why, and under which stable code the API reports it.
type InvalidError struct {
	Code   string // stable, upper snake case: "INVALID_RECIPIENT"
	Field  string // JSON path of the input: "to", "text"
	Detail string // one sentence that says what to do
}

func (e *InvalidError) Error() string { return e.Field + ": " + e.Detail }

// Is matches ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// CodedError carries a refusal that is neither bad input nor a missing row: a stable code, what to
// do about it, and when trying again makes sense (0 = never by waiting alone).
type CodedError struct {
	Code       string
	Detail     string
	RetryAfter time.Duration
	Err        error // the sentinel it belongs to: ErrConflict, ErrUnavailable
}

func (e *CodedError) Error() string { return e.Code + ": " + e.Detail }

// Unwrap gives the sentinel.
func (e *CodedError) Unwrap() error { return e.Err }
