package wa

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.mau.fi/whatsmeow"
	"go.mau.fi/whatsmeow/types/events"

	"github.com/wafleet/wafleet/internal/fleet"
)

func TestASendErrorIsNothingBeforeTheSessionsAreSavedAndUnknownAfter(t *testing.T) {
	refusedBy := func(code int) error { return fmt.Errorf("%w %d", whatsmeow.ErrServerReturnedError, code) }
	away := errors.New("the database is away")
	ended := &endError{End{Reason: ReasonDisconnected}}
	for _, tt := range []struct {
		name    string
		err     error
		saved   bool
		cause   error
		outcome fleet.Outcome
		reason  string
		code    int
	}{
		{"refused 403", refusedBy(403), true, nil, fleet.OutcomeRefused, SendRecipientRefused, 403},
		{"refused 429", refusedBy(429), true, nil, fleet.OutcomeRefused, SendRateLimited, 429},
		{"refused 463", refusedBy(463), true, nil, fleet.OutcomeRefused, SendReachoutRestricted, 463},
		{"refused 475", refusedBy(475), true, nil, fleet.OutcomeRefused, SendNewChatCap, 475},
		{"refused 479", refusedBy(479), true, nil, fleet.OutcomeRefused, SendStanzaInvalid, 479},
		{"refused by an unknown code", refusedBy(777), true, nil, fleet.OutcomeRefused, SendRefused, 777},
		{"refused while the context ended", refusedBy(463), true, context.Canceled, fleet.OutcomeRefused, SendReachoutRestricted, 463},
		{"refused behind another error", fmt.Errorf("%w: %w", away, refusedBy(403)), true, nil, fleet.OutcomeRefused, SendRecipientRefused, 403},
		{"nobody by that number", errors.New("no LID found for 5511900000001@s.whatsapp.net from server"), false, nil, fleet.OutcomeRefused, SendNotOnWhatsApp, 0},
		{"store failed before", away, false, away, fleet.OutcomeNothing, SendStoreFailed, 0},
		{"store failed after", away, true, away, fleet.OutcomeUnknown, SendStoreFailed, 0},
		{"lease lost before", context.Canceled, false, fleet.ErrLeaseLost, fleet.OutcomeNothing, SendLeaseLost, 0},
		{"lease lost after", context.Canceled, true, fleet.ErrLeaseLost, fleet.OutcomeUnknown, SendLeaseLost, 0},
		{"deadline before", context.DeadlineExceeded, false, context.DeadlineExceeded, fleet.OutcomeNothing, SendTimedOut, 0},
		{"deadline after", context.DeadlineExceeded, true, context.DeadlineExceeded, fleet.OutcomeUnknown, SendTimedOut, 0},
		{"caller gave up after", context.Canceled, true, context.Canceled, fleet.OutcomeUnknown, SendStopped, 0},
		{"generation ended before", context.Canceled, false, ended, fleet.OutcomeNothing, SendStopped, 0},
		{"generation ended after", context.Canceled, true, ended, fleet.OutcomeUnknown, SendStopped, 0},
		{"term ended by the gate", context.Canceled, true, &endError{End{Reason: ReasonTermEnded, Err: fleet.ErrLeaseLost}}, fleet.OutcomeUnknown, SendLeaseLost, 0},
		{"disconnected before", &whatsmeow.DisconnectedError{Action: "info query"}, false, nil, fleet.OutcomeNothing, SendNotConnected, 0},
		{"disconnected after", &whatsmeow.DisconnectedError{Action: "message send"}, true, nil, fleet.OutcomeUnknown, SendNoAck, 0},
		{"not connected before", whatsmeow.ErrNotConnected, false, nil, fleet.OutcomeNothing, SendNotConnected, 0},
		{"not connected after", whatsmeow.ErrNotConnected, true, nil, fleet.OutcomeUnknown, SendNoAck, 0},
		{"no ack in time", whatsmeow.ErrMessageTimedOut, true, nil, fleet.OutcomeUnknown, SendNoAck, 0},
		{"lookup throttled", fmt.Errorf("get user info: %w", whatsmeow.ErrIQRateOverLimit), false, nil, fleet.OutcomeNothing, SendLookupFailed, 429},
		{"lookup unanswered", whatsmeow.ErrIQTimedOut, false, nil, fleet.OutcomeNothing, SendLookupFailed, 0},
		{"anything else before", errors.New("strange"), false, nil, fleet.OutcomeNothing, SendFailed, 0},
		{"anything else after", errors.New("strange"), true, nil, fleet.OutcomeUnknown, SendNoAck, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := classifySend(tt.err, tt.saved, tt.cause)
			if got.Outcome != tt.outcome || got.Reason != tt.reason || got.Code != tt.code {
				t.Errorf("classifySend(%v, %v, %v) = %s %s %d, want %s %s %d",
					tt.err, tt.saved, tt.cause, got.Outcome, got.Reason, got.Code, tt.outcome, tt.reason, tt.code)
			}
			if lost := tt.reason == SendLeaseLost; errors.Is(got, fleet.ErrLeaseLost) != lost {
				t.Errorf("errors.Is(%v, ErrLeaseLost) = %v, want %v", got, !lost, lost)
			}
		})
	}
}

func TestTheEndOfAGenerationIsTheFirstReason(t *testing.T) {
	away := errors.New("the database is away")
	live := context.Background()
	stopped, stop := context.WithCancel(live)
	stop()
	said := &End{Reason: ReasonLoggedOut, Code: 401}
	for _, tt := range []struct {
		name    string
		parent  context.Context //nolint:containedctx // the input under test
		cause   error
		pending *End
		want    Reason
	}{
		{"we said so", live, &endError{End{Reason: ReasonReplaced}}, nil, ReasonReplaced},
		{"we said so, and then were stopped", stopped, &endError{End{Reason: ReasonReplaced}}, nil, ReasonReplaced},
		{"lease lost", stopped, fleet.ErrLeaseLost, nil, ReasonTermEnded},
		{"lease lost in the store", live, fmt.Errorf("key store: %w", fleet.ErrLeaseLost), said, ReasonTermEnded},
		{"stopped", stopped, context.Canceled, nil, ReasonStopped},
		{"the store", live, away, nil, ReasonStore},
		{"the store, because the number is another session's", live, fmt.Errorf("key store: %w", fleet.ErrNumberInUse), nil, ReasonPairFailed},
		{"the store, while WhatsApp's word was being carried out", live, away, said, ReasonLoggedOut},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(live)
			cancel(tt.cause)
			if got := verdict(tt.parent, ctx, tt.pending); got.Reason != tt.want {
				t.Errorf("verdict = %v, want %s", got, tt.want)
			}
		})
	}
}

func TestLogoutsAreToldApartByCode(t *testing.T) {
	for _, tt := range []struct {
		event *events.LoggedOut
		want  End
	}{
		{&events.LoggedOut{OnConnect: true, Reason: 401}, End{Reason: ReasonLoggedOut, Code: 401}},
		{&events.LoggedOut{OnConnect: true, Reason: 403}, End{Reason: ReasonLocked, Code: 403}},
		{&events.LoggedOut{OnConnect: true, Reason: 406}, End{Reason: ReasonBanned, Code: 406}},
		{&events.LoggedOut{Reason: 401}, End{Reason: ReasonUnlinked, Code: 401}},
	} {
		if got := loggedOut(tt.event); got != tt.want {
			t.Errorf("loggedOut(%+v) = %v, want %v", tt.event, got, tt.want)
		}
	}
}

func TestReasonsListsEachReasonOnce(t *testing.T) {
	seen := map[Reason]bool{}
	for _, r := range Reasons() {
		if seen[r] {
			t.Errorf("Reasons() has %s twice", r)
		}
		seen[r] = true
	}
	if len(seen) != 23 {
		t.Errorf("Reasons() has %d reasons, want 23", len(seen))
	}
}

func TestAWebVersionMustBeThreeNumbers(t *testing.T) {
	for _, bad := range []string{"", "2", "2.3000", "a.b.c", "2.3000.x", "0.0.0", "2.3000.1.1"} {
		if err := SetWebVersion(bad); err == nil {
			t.Errorf("SetWebVersion(%q) = nil, want an error", bad)
		}
	}
}

// Errors of sends end in logs, where no number is written out.
func TestASendErrorNamesNobody(t *testing.T) {
	err := classifySend(errors.New("failed to get user info for 5511900000001@s.whatsapp.net to fill LID cache"), false, context.DeadlineExceeded)
	want := "send: nothing: TIMED_OUT: context deadline exceeded: failed to get user info for …0001@s.whatsapp.net to fill LID cache"
	if got := err.Error(); got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
}
