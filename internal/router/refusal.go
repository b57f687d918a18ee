package router

import (
	"fmt"
	"strings"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
)

// When to try again where no time is known.
const (
	noneRetry     = 5 * time.Second // about a reconnect
	outdatedRetry = time.Minute     // an outdated client is tried again every few minutes, or replaced by a person
	unwellRetry   = time.Minute     // a number comes back by acks still under way, else after hours
	backlogRetry  = 5 * time.Second
)

func errNoSessions() error {
	return &fleet.CodedError{
		Code: "NO_SESSIONS", Detail: "the organization has no session: create one and pair it", Err: fleet.ErrConflict,
	}
}

// refusal is the answer where the rows speak against every session.
func (f *field) refusal(now time.Time) error {
	if len(f.out) == 0 {
		return errNoSessions()
	}
	if outdated(f.out) {
		return &fleet.CodedError{
			Code: "CLIENT_OUTDATED", Detail: "WhatsApp refuses this version of the gateway; its operator has to upgrade it or set WA_WEB_VERSION",
			RetryAfter: outdatedRetry, Err: fleet.ErrUnavailable,
		}
	}
	after := noneRetry
	if all(f.out, ReasonCold, ReasonCapped, ReasonRefused) && f.reopens.After(now) {
		after = f.reopens.Sub(now)
	}
	return &fleet.CodedError{
		Code: "NONE_ELIGIBLE", Detail: "no session can send now: " + tally(f.out), RetryAfter: after, Err: fleet.ErrUnavailable,
	}
}

// limited is the answer where the ledger refused.
func limited(a ledger.Answer, skipped []Skip, now time.Time, zone string) error {
	limit := func(code, detail string, after time.Duration) error {
		return &fleet.CodedError{Code: code, Detail: detail, RetryAfter: after, Err: fleet.ErrLimited}
	}
	switch a.Verdict {
	case ledger.Rated:
		return limit("API_RATE_LIMITED", "messages are asked for faster than the limit allows", a.Wait)
	case ledger.Overdrawn:
		_, from := fleet.Month(now, zone)
		return limit("QUOTA_EXCEEDED", "the project's messages of this month are used up", from.AddDate(0, 1, 0).Sub(now))
	case ledger.Backlog:
		return limit("BACKLOG_FULL", "too many of the project's messages wait to be sent", max(a.Wait, backlogRetry))
	case ledger.Exhausted:
		return limit("RATE_LIMITED", "every number that could send is exhausted: "+tally(skipped), a.Wait)
	default:
		return &fleet.CodedError{
			Code: "NONE_ELIGIBLE", Detail: "no session can send now: " + tally(skipped), RetryAfter: unwellRetry, Err: fleet.ErrUnavailable,
		}
	}
}

// outdated reports whether our version is all that keeps sending from going on: of the sessions that
// are wanted and linked, none has another trouble that may pass sooner.
func outdated(skipped []Skip) bool {
	found := false
	for _, s := range skipped {
		switch s.Reason {
		case ReasonOutdated:
			found = true
		case ReasonStopped, ReasonPaused, ReasonUnpaired: // a person's business
		default:
			return false
		}
	}
	return found
}

func all(skipped []Skip, reasons ...Reason) bool {
	for _, s := range skipped {
		found := false
		for _, reason := range reasons {
			found = found || s.Reason == reason
		}
		if !found {
			return false
		}
	}
	return true
}

// tally counts reasons without naming sessions: consumers know no numbers but their own.
func tally(skipped []Skip) string {
	var order []Reason
	counts := map[Reason]int{}
	for _, s := range skipped {
		if counts[s.Reason]++; counts[s.Reason] == 1 {
			order = append(order, s.Reason)
		}
	}
	parts := make([]string, len(order))
	for i, reason := range order {
		parts[i] = fmt.Sprintf("%d %s", counts[reason], strings.ReplaceAll(string(reason), "_", " "))
	}
	return strings.Join(parts, ", ")
}
