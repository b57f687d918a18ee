package fleet_test

import (
	"errors"
	"testing"
	"time"
	_ "time/tzdata" // also where the machine knows no zones

	"github.com/wafleet/wafleet/internal/fleet"
)

func TestLocalTimesAreInstantsAlsoWhereClocksAreChanged(t *testing.T) {
	for _, tc := range []struct{ what, local, zone, want string }{
		{"ordinary", "2026-07-01T09:00", "Europe/Berlin", "2026-07-01T07:00:00Z"},
		{"with seconds", "2026-07-01T09:00:30", "Europe/Berlin", "2026-07-01T07:00:30Z"},
		{"in the gap", "2026-03-29T02:30", "Europe/Berlin", "2026-03-29T01:00:00Z"},
		{"the gap's first minute", "2026-03-29T02:00", "Europe/Berlin", "2026-03-29T01:00:00Z"},
		{"the gap's last second", "2026-03-29T02:59:59", "Europe/Berlin", "2026-03-29T01:00:00Z"},
		{"right after the gap", "2026-03-29T03:00", "Europe/Berlin", "2026-03-29T01:00:00Z"},
		{"right before the gap", "2026-03-29T01:59", "Europe/Berlin", "2026-03-29T00:59:00Z"},
		{"twice", "2026-10-25T02:30", "Europe/Berlin", "2026-10-25T00:30:00Z"},
		{"twice, its first minute", "2026-10-25T02:00", "Europe/Berlin", "2026-10-25T00:00:00Z"},
		{"after it came twice", "2026-10-25T03:00", "Europe/Berlin", "2026-10-25T02:00:00Z"},
		{"a gap west of Greenwich", "2026-03-08T02:15", "America/New_York", "2026-03-08T07:00:00Z"},
		{"twice west of Greenwich", "2026-11-01T01:15", "America/New_York", "2026-11-01T05:15:00Z"},
		{"a gap of half an hour", "2026-10-04T02:10", "Australia/Lord_Howe", "2026-10-03T15:30:00Z"},
		{"a day that was left out", "2011-12-30T12:00", "Pacific/Apia", "2011-12-30T10:00:00Z"},
		{"no summer time", "2026-03-29T02:30", "America/Sao_Paulo", "2026-03-29T05:30:00Z"},
		{"UTC", "2026-03-29T02:30", "UTC", "2026-03-29T02:30:00Z"},
		{"far ahead", "2099-07-01T12:00", "Europe/Berlin", "2099-07-01T10:00:00Z"},
		{"long ago", "1890-01-01T00:00", "UTC", "1890-01-01T00:00:00Z"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			got, err := fleet.LocalTime{Time: tc.local, Zone: tc.zone}.Instant()
			if err != nil || got.Format(time.RFC3339) != tc.want {
				t.Errorf("%s in %s = %s, %v, want %s", tc.local, tc.zone, got.Format(time.RFC3339), err, tc.want)
			}
		})
	}
	for _, tc := range []struct{ local, zone, code string }{
		{"2026-03-29T02:30", "Europe/Atlantis", "TIME_ZONE_INVALID"},
		{"2026-03-29T02:30", "", "TIME_ZONE_INVALID"},
		{"2026-03-29T02:30", "Local", "TIME_ZONE_INVALID"},
		{"2026-03-29T02:30", "../etc/passwd", "TIME_ZONE_INVALID"},
		{"2026-03-29T02:30Z", "Europe/Berlin", "SEND_AT_INVALID"},
		{"2026-03-29 02:30", "Europe/Berlin", "SEND_AT_INVALID"},
		{"2026-02-30T02:30", "Europe/Berlin", "SEND_AT_INVALID"},
		{"2026-03-29T02:30:00.5", "Europe/Berlin", "SEND_AT_INVALID"},
		{"", "Europe/Berlin", "SEND_AT_INVALID"},
	} {
		_, err := fleet.LocalTime{Time: tc.local, Zone: tc.zone}.Instant()
		if bad, ok := errors.AsType[*fleet.InvalidError](err); !ok || bad.Code != tc.code {
			t.Errorf("%q in %q = %v, want %s", tc.local, tc.zone, err, tc.code)
		}
	}
}

// Every ten minutes around each change in three years, in zones with all kinds of them: what an instant's clock shows is
// that instant, or the first of two.
func TestAnInstantsLocalTimeIsThatInstantOrTheFirstThatLooksLikeIt(t *testing.T) {
	for _, zone := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"} {
		where, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		for change := time.Date(2025, 1, 1, 0, 0, 0, 0, where); change.Year() < 2028; {
			_, change = change.ZoneBounds()
			seen := map[string]time.Time{}
			for at := change.Add(-6 * time.Hour); at.Before(change.Add(6 * time.Hour)); at = at.Add(10 * time.Minute) {
				shown := at.Format("2006-01-02T15:04")
				want, again := seen[shown]
				if !again {
					want, seen[shown] = at, at
				}
				if got, err := (fleet.LocalTime{Time: shown, Zone: zone}).Instant(); err != nil || !got.Equal(want) {
					t.Fatalf("%s in %s = %s, %v, want %s", shown, zone, got, err, want)
				}
			}
		}
	}
}
