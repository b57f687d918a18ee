package worker

import (
	"fmt"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/wa"
)

func TestDialsAreSpacedOnlyWhileWhatsAppTurnsSessionsAwayInNumbers(t *testing.T) {
	start := time.Now()
	turnedAway := func(n int, r wa.Reason) *brake {
		b := new(brake)
		for i := range n {
			b.saw(fleet.SessionID(fmt.Sprint(i)), r, start)
		}
		return b
	}
	for _, tc := range []struct {
		name   string
		b      *brake
		active int
		after  time.Duration
		want   time.Duration // of the second of two dials
	}{
		{"nobody turned away", turnedAway(0, wa.ReasonLoggedOut), 5, 0, 0},
		{"two sessions logged out", turnedAway(2, wa.ReasonLoggedOut), 5, 0, 0},
		{"three of thirty sessions logged out", turnedAway(3, wa.ReasonUnlinked), 30, 0, brakeGap},
		{"three of thirty-one sessions logged out", turnedAway(3, wa.ReasonLoggedOut), 31, 0, 0},
		{"a whole fleet's version refused", turnedAway(50, wa.ReasonClientOutdated), 50, 0, brakeGap},
		{"a fleet that lost its network", turnedAway(50, wa.ReasonDialFailed), 50, 0, 0},
		{"bans long ago", turnedAway(9, wa.ReasonBanned), 20, brakeSpan, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now := start.Add(tc.after)
			if got := tc.b.pause(tc.active, now); got != 0 {
				t.Errorf("pause() of the first dial = %v, want none", got)
			}
			if got := tc.b.pause(tc.active, now); got != tc.want {
				t.Errorf("pause() of the second dial = %v, want %v", got, tc.want)
			}
			if got := tc.b.pause(tc.active, now.Add(tc.want)); got != 0 {
				t.Errorf("pause() of the second dial, %v later, = %v, want none", tc.want, got)
			}
		})
	}
	b := turnedAway(50, wa.ReasonClientOutdated)
	b.pause(50, start)
	b.loggedIn()
	if got := b.pause(50, start); got != 0 {
		t.Errorf("pause() after a login with this version = %v, want none", got)
	}
}
