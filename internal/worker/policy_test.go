package worker

import (
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/wa"
)

func TestEveryEndHasAStateAndARule(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		end      wa.End
		state    fleet.Observed
		park     bool
		loud     bool
		min, max time.Duration
	}{
		{wa.End{Reason: wa.ReasonDisconnected}, fleet.ObservedReconnecting, false, false, 0, time.Second},
		{wa.End{Reason: wa.ReasonDialFailed}, fleet.ObservedReconnecting, false, false, 0, time.Second},
		{wa.End{Reason: wa.ReasonServerError, Code: 503}, fleet.ObservedReconnecting, false, false, 0, time.Second},
		{wa.End{Reason: wa.ReasonSilent}, fleet.ObservedReconnecting, false, false, 0, time.Second},
		{wa.End{Reason: wa.ReasonNotLoggedIn}, fleet.ObservedReconnecting, false, false, 0, time.Second},
		{wa.End{Reason: wa.ReasonHandler}, fleet.ObservedReconnecting, false, false, 0, time.Second},
		{wa.End{Reason: wa.ReasonStreamError}, fleet.ObservedReconnecting, false, false, 0, time.Second},
		{wa.End{Reason: wa.ReasonConnectFailure, Code: 418}, fleet.ObservedReconnecting, false, false, 0, time.Second},
		{wa.End{Reason: wa.ReasonStore}, fleet.ObservedUnavailable, false, false, 0, time.Second},
		{wa.End{Reason: wa.ReasonPaired}, fleet.ObservedConnecting, false, false, 0, 0},
		{wa.End{Reason: wa.ReasonReplaced}, fleet.ObservedConflict, false, true, 24 * time.Second, 36 * time.Second},
		{wa.End{Reason: wa.ReasonLoggedOut, Code: 401}, fleet.ObservedLoggedOut, true, true, 0, 0},
		{wa.End{Reason: wa.ReasonUnlinked}, fleet.ObservedLoggedOut, true, true, 0, 0},
		{wa.End{Reason: wa.ReasonLocked, Code: 403}, fleet.ObservedLocked, true, true, 0, 0},
		{wa.End{Reason: wa.ReasonBanned, Code: 406}, fleet.ObservedBanned, true, true, 0, 0},
		{wa.End{Reason: wa.ReasonTempBanned, Code: 101, Expire: time.Hour}, fleet.ObservedTempBanned, false, true, time.Hour, time.Hour + time.Minute},
		{wa.End{Reason: wa.ReasonTempBanned, Code: 101}, fleet.ObservedTempBanned, false, true, time.Hour, time.Hour + time.Minute},
		{wa.End{Reason: wa.ReasonClientOutdated, Code: 405}, fleet.ObservedClientOutdated, false, true, 4 * time.Minute, 6 * time.Minute},
	} {
		t.Run(string(tc.end.Reason), func(t *testing.T) {
			var h history
			got := h.after(tc.end, false, now)
			if got.state != tc.state || got.park != tc.park || got.loud != tc.loud || got.delay < tc.min || got.delay > tc.max {
				t.Errorf("after(%v) = %+v, want state %s park %v loud %v delay %v..%v", tc.end.Reason, got, tc.state, tc.park, tc.loud, tc.min, tc.max)
			}
		})
	}
}

func TestBackoffGrowsToACapAndNeverEnds(t *testing.T) {
	var h history
	var last time.Duration
	for i := range 50 {
		v := h.after(wa.End{Reason: wa.ReasonDialFailed}, false, time.Now())
		if v.park {
			t.Fatalf("try %d: a network error parked the session", i)
		}
		if v.delay > time.Minute {
			t.Fatalf("try %d: delay %v, want at most a minute", i, v.delay)
		}
		last = v.delay
	}
	if last < 30*time.Second {
		t.Errorf("after 50 failures the delay is %v, want near the cap", last)
	}
}

func TestReplacedBacksOffThenParks(t *testing.T) {
	var h history
	now := time.Now()
	var waits []time.Duration
	for i := 1; ; i++ {
		v := h.after(wa.End{Reason: wa.ReasonReplaced}, false, now)
		if v.state != fleet.ObservedConflict {
			t.Fatalf("state = %s, want conflict", v.state)
		}
		if v.park {
			if i != conflictLimit {
				t.Errorf("parked after %d, want %d", i, conflictLimit)
			}
			break
		}
		waits = append(waits, v.delay)
		now = now.Add(v.delay + 200*time.Millisecond)
	}
	for i := 1; i < len(waits); i++ {
		if waits[i] <= waits[i-1] {
			t.Errorf("waits %v don't grow", waits)
		}
	}
	if waits[0] < 24*time.Second {
		t.Errorf("first wait %v, want about 30 s", waits[0])
	}
}

func TestABriefOpenDoesNotResetTheReplacedCount(t *testing.T) {
	var h history
	now := time.Now()
	h.after(wa.End{Reason: wa.ReasonReplaced}, false, now)
	h.after(wa.End{Reason: wa.ReasonDisconnected}, false, now)
	if len(h.replaced) != 1 {
		t.Errorf("a brief open between kicks reset the count")
	}
	h.after(wa.End{Reason: wa.ReasonDisconnected}, true, now)
	if len(h.replaced) != 0 || h.attempts != 1 {
		t.Errorf("a stable open left %+v", h)
	}
}
