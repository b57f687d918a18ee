package fleet_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/wafleet/wafleet/internal/fleet"
)

func TestStatusMovesOnlyForward(t *testing.T) {
	want := map[fleet.Status][]fleet.Status{
		fleet.StatusQueued: {
			fleet.StatusSending, fleet.StatusExpired, fleet.StatusCancelled, fleet.StatusSuppressed, fleet.StatusFailed,
			fleet.StatusDelivered, fleet.StatusRead, fleet.StatusPlayed,
		},
		fleet.StatusSending: {
			fleet.StatusSent, fleet.StatusFailed, fleet.StatusQueued, fleet.StatusUnconfirmed,
			fleet.StatusDelivered, fleet.StatusRead, fleet.StatusPlayed,
		},
		fleet.StatusSent:        {fleet.StatusDelivered, fleet.StatusRead, fleet.StatusPlayed},
		fleet.StatusDelivered:   {fleet.StatusRead, fleet.StatusPlayed},
		fleet.StatusRead:        {fleet.StatusPlayed},
		fleet.StatusUnconfirmed: {fleet.StatusDelivered, fleet.StatusRead, fleet.StatusPlayed}, // a late receipt
	}
	for _, from := range fleet.Statuses() {
		for _, to := range fleet.Statuses() {
			if got := from.CanBecome(to); got != slices.Contains(want[from], to) {
				t.Errorf("%s.CanBecome(%s) = %v", from, to, got)
			}
		}
	}
}

func TestAnyWalkThroughTheStatesEnds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		at, receipts, returns := fleet.StatusQueued, 0, 0
		for range 100 {
			next := rapid.SampledFrom(fleet.Statuses()).Draw(rt, "next")
			if !at.CanBecome(next) {
				continue
			}
			if at.Settled() && next.Rank() <= at.Rank() {
				rt.Fatalf("a settled message went from %s to %s", at, next)
			}
			if next.Rank() >= fleet.StatusDelivered.Rank() {
				receipts++
			}
			if next == fleet.StatusQueued {
				returns++
			}
			at = next
		}
		if receipts > 3 {
			rt.Fatalf("%d receipts moved one message", receipts)
		}
		if returns > 0 && at == "" {
			rt.Fatal("the message left the machine")
		}
	})
}

func TestSettledMeansTheGatewayIsDone(t *testing.T) {
	for _, s := range fleet.Statuses() {
		if got, want := s.Settled(), s != fleet.StatusQueued && s != fleet.StatusSending; got != want {
			t.Errorf("%s.Settled() = %v, want %v", s, got, want)
		}
		if !s.Valid() {
			t.Errorf("%s.Valid() = false", s)
		}
	}
	for _, s := range []fleet.Status{"", "SENT", "unknown"} {
		if s.Valid() || s.Rank() != 0 {
			t.Errorf("Status(%q) is valid", s)
		}
	}
}
