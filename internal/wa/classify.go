package wa

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.mau.fi/whatsmeow"
	"go.mau.fi/whatsmeow/socket"
	"go.mau.fi/whatsmeow/types/events"

	"github.com/wafleet/wafleet/internal/fleet"
)

// Reason says why a generation ended. The set is closed.
type Reason string

// Reasons.
const (
	ReasonStopped        Reason = "stopped"           // our context ended, or Logout succeeded
	ReasonTermEnded      Reason = "term_ended"        // the lease is gone
	ReasonDisconnected   Reason = "disconnected"      // the connection broke or was closed
	ReasonDialFailed     Reason = "dial_failed"       // no connection came about; Code is the HTTP status, if one came
	ReasonPaired         Reason = "paired"            // pairing is stored; the login is the next generation's work
	ReasonPairExpired    Reason = "pair_expired"      // the codes of this socket ran out, or PairRequest.Until passed
	ReasonPasskey        Reason = fleet.ReasonPasskey // the account's passkey is wanted, which only WhatsApp's own pages can ask for
	ReasonPairFailed     Reason = "pair_failed"       // refused by us (Err), by WhatsApp (Code), or not possible
	ReasonReplaced       Reason = "replaced"          // another connection logged in with the same keys
	ReasonLoggedOut      Reason = "logged_out"        // 401 at login
	ReasonUnlinked       Reason = "unlinked"          // removed on the phone while connected
	ReasonLocked         Reason = "locked"            // 403 at login
	ReasonBanned         Reason = "banned"            // 406 at login
	ReasonTempBanned     Reason = "temp_banned"       // 402 at login; Expire says for how long
	ReasonClientOutdated Reason = "client_outdated"   // 405 at login
	ReasonServerError    Reason = "server_error"      // 500 or 503: WhatsApp has a problem, not we
	ReasonConnectFailure Reason = "connect_failure"   // another code at login
	ReasonStreamError    Reason = "stream_error"      // another code while connected
	ReasonSilent         Reason = "silent"            // nothing was heard for two keepalives although the connection is open
	ReasonNotLoggedIn    Reason = "not_logged_in"     // connected, but the login did not complete in time
	ReasonStore          Reason = "store"             // a store error made this generation unsafe to go on with
	ReasonHandler        Reason = "handler"           // one of our handlers failed or panicked; Err may be a *HandlerError
	ReasonStuck          Reason = "stuck"             // a send did not return although its time was over
)

// Reasons lists all reasons, for tables and metrics.
func Reasons() []Reason {
	return []Reason{
		ReasonStopped, ReasonTermEnded, ReasonDisconnected, ReasonDialFailed, ReasonPaired, ReasonPairExpired,
		ReasonPasskey, ReasonPairFailed, ReasonReplaced, ReasonLoggedOut, ReasonUnlinked, ReasonLocked, ReasonBanned, ReasonTempBanned,
		ReasonClientOutdated, ReasonServerError, ReasonConnectFailure, ReasonStreamError, ReasonSilent,
		ReasonNotLoggedIn, ReasonStore, ReasonHandler, ReasonStuck,
	}
}

// End is why a generation ended.
type End struct {
	Reason Reason
	Code   int           // WhatsApp's or HTTP's code, 0 if none
	Expire time.Duration // how long a temporary ban lasts; 0 = not said
	Err    error         // cause for logs and, for handlers and pairing, for the supervisor; may be nil
}

// String is for logs.
func (e End) String() string {
	var b strings.Builder
	b.WriteString(string(e.Reason))
	if e.Code != 0 {
		fmt.Fprintf(&b, " (%d)", e.Code)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

// endError carries an End as the cause of a cancelled generation.
type endError struct{ End }

func (e *endError) Error() string { return "generation ended: " + e.String() }
func (e *endError) Unwrap() error { return e.Err }

// HandlerError is the End.Err of ReasonHandler: which handler failed, for which message, and whether it panicked.
// Panics and deterministic errors come again with the same message; whoever supervises counts them.
type HandlerError struct {
	Handler string         // "message", "receipt", "ready" …
	Inbound *fleet.Inbound // the message, nil for other handlers
	Panic   bool
	Err     error
}

func (e *HandlerError) Error() string {
	return fmt.Sprintf("%s handler: %v", e.Handler, e.Err)
}

// Unwrap gives the handler's own error.
func (e *HandlerError) Unwrap() error { return e.Err }

// verdict says why a generation's context ended. pending is what WhatsApp said about it, if it said something.
func verdict(parent, generation context.Context, pending *End) End {
	cause := context.Cause(generation)
	var ended *endError
	switch {
	case errors.As(cause, &ended):
		return ended.End
	case errors.Is(cause, fleet.ErrLeaseLost):
		return End{Reason: ReasonTermEnded, Err: cause}
	case parent.Err() != nil:
		return End{Reason: ReasonStopped, Err: cause}
	case errors.Is(cause, fleet.ErrNumberInUse): // the store's own check, when the device was to be saved
		return End{Reason: ReasonPairFailed, Err: cause}
	case pending != nil: // the store failed while whatsmeow tidied up after it
		return *pending
	default:
		return End{Reason: ReasonStore, Err: cause}
	}
}

func dialFailed(err error) End {
	e := End{Reason: ReasonDialFailed, Err: err}
	if status, ok := errors.AsType[socket.ErrWithStatusCode](err); ok {
		e.Code = status.StatusCode
	}
	return e
}

func loggedOut(e *events.LoggedOut) End {
	if !e.OnConnect {
		return End{Reason: ReasonUnlinked, Code: int(events.ConnectFailureLoggedOut)}
	}
	out := End{Reason: ReasonLoggedOut, Code: int(e.Reason)}
	switch e.Reason { //nolint:exhaustive // whatsmeow calls only these three a logout
	case events.ConnectFailureMainDeviceGone:
		out.Reason = ReasonLocked
	case events.ConnectFailureUnknownLogout:
		out.Reason = ReasonBanned
	}
	return out
}

func connectFailure(reason events.ConnectFailureReason, message string) End {
	e := End{Reason: ReasonConnectFailure, Code: int(reason)}
	if message != "" {
		e.Err = errors.New(mask(message))
	}
	return e
}

func streamError(code string) End {
	n, err := strconv.Atoi(code)
	if err != nil {
		return End{Reason: ReasonStreamError, Err: fmt.Errorf("stream error %q", code)}
	}
	return End{Reason: ReasonStreamError, Code: n}
}

// Stable reasons of a SendError.
const (
	SendNotOnWhatsApp      = "NOT_ON_WHATSAPP"
	SendRecipientRefused   = "RECIPIENT_REFUSED"   // 403
	SendReachoutRestricted = "REACHOUT_RESTRICTED" // 463
	SendNewChatCap         = "NEW_CHAT_CAP"        // 475
	SendStanzaInvalid      = "STANZA_INVALID"      // 479
	SendRateLimited        = "RATE_LIMITED"        // 429
	SendRefused            = "REFUSED"             // any other code
	SendInvalid            = "INVALID"             // the recipient or the payload can't be used
	SendNotConnected       = "NOT_CONNECTED"
	SendLeaseLost          = "LEASE_LOST"
	SendStopped            = "STOPPED"        // the generation ended, or the caller gave up
	SendTimedOut           = "TIMED_OUT"      // the caller's deadline
	SendStoreFailed        = "STORE_FAILED"   // the store failed, or the recipient's keys could not be had
	SendLookupFailed       = "LOOKUP_FAILED"  // WhatsApp did not answer what must be known before sending; Code may be set
	SendNoAck              = "NO_ACK"         // the frame left, its verdict did not come
	SendNobodyReached      = "NOBODY_REACHED" // acknowledged, but the recipient's phone was not among the devices
	SendFailed             = "FAILED"         // anything else before a frame
)

// SendError says what is known of a send that did not succeed.
type SendError struct {
	Outcome fleet.Outcome // OutcomeNothing, OutcomeRefused or OutcomeUnknown
	Code    int           // WhatsApp's code, 0 if none
	Reason  string        // stable, one of the Send constants
	Err     error
}

// Error is for logs: of whatsmeow's text, which may name the recipient, long numbers are cut.
func (e *SendError) Error() string {
	cause := e.Cause()
	if e.Code != 0 {
		return fmt.Sprintf("send: %s: %s (%d): %s", e.Outcome, e.Reason, e.Code, cause)
	}
	return fmt.Sprintf("send: %s: %s: %s", e.Outcome, e.Reason, cause)
}

// Cause says why, for people, with numbers cut short.
func (e *SendError) Cause() string { return mask(fmt.Sprint(e.Err)) }

// Unwrap gives the cause: errors.Is(err, fleet.ErrLeaseLost) tells a lost lease.
func (e *SendError) Unwrap() error { return e.Err }

func nothing(reason string, err error) *SendError {
	return &SendError{Outcome: fleet.OutcomeNothing, Reason: reason, Err: err}
}

func refused(code int, reason string, err error) *SendError {
	return &SendError{Outcome: fleet.OutcomeRefused, Code: code, Reason: reason, Err: err}
}

var refusals = map[int]string{
	403: SendRecipientRefused, 429: SendRateLimited, 463: SendReachoutRestricted,
	475: SendNewChatCap, 479: SendStanzaInvalid,
}

// classifySend turns an error of whatsmeow's SendMessage into an outcome. saved tells whether the sessions of this send
// were stored with the recipient's phone among them, which happens after everything is encrypted and before the frame:
// until then surely nothing left. cause is why the send's context ended, nil if it did not.
func classifySend(err error, saved bool, cause error) *SendError {
	if errors.Is(err, whatsmeow.ErrServerReturnedError) {
		code := trailingNumber(err.Error())
		reason, ok := refusals[code]
		if !ok {
			reason = SendRefused
		}
		return refused(code, reason, err)
	}
	// whatsmeow has no sentinel for it: WhatsApp answered the query, and knows no such user.
	if strings.HasPrefix(err.Error(), "no LID found for ") {
		return refused(0, SendNotOnWhatsApp, errors.New("the recipient is not on WhatsApp"))
	}
	out := &SendError{Outcome: fleet.OutcomeUnknown, Err: err}
	if !saved {
		out.Outcome = fleet.OutcomeNothing
	}
	var disconnected *whatsmeow.DisconnectedError
	var ended *endError
	var iq *whatsmeow.IQError
	switch {
	case cause != nil:
		out.Err = fmt.Errorf("%w: %w", cause, err)
		switch {
		case errors.Is(cause, fleet.ErrLeaseLost):
			out.Reason = SendLeaseLost
		case errors.Is(cause, context.DeadlineExceeded):
			out.Reason = SendTimedOut
		case errors.As(cause, &ended), errors.Is(cause, context.Canceled):
			out.Reason = SendStopped
		default:
			out.Reason = SendStoreFailed
		}
	case saved:
		out.Reason = SendNoAck
	case errors.Is(err, whatsmeow.ErrNotConnected), errors.As(err, &disconnected):
		out.Reason = SendNotConnected
	case errors.As(err, &iq):
		out.Reason, out.Code = SendLookupFailed, iq.Code
	case errors.Is(err, whatsmeow.ErrIQTimedOut):
		out.Reason = SendLookupFailed
	default:
		out.Reason = SendFailed
	}
	return out
}

// trailingNumber reads the code that whatsmeow appends to ErrServerReturnedError, which has no field for it.
func trailingNumber(s string) int {
	i := strings.LastIndexByte(s, ' ')
	n, err := strconv.Atoi(s[i+1:])
	if err != nil {
		return 0
	}
	return n
}
