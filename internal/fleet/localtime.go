package fleet

import (
	"fmt"
	"time"
)

// LocalTime is a time as the clocks of a place show it.
type LocalTime struct {
	Time string // "2026-03-29T02:30", with or without seconds
	Zone string // an IANA name
}

// Set reports whether there is one.
func (l LocalTime) Set() bool { return l != LocalTime{} }

// Instant is when the clocks show it. Where they are put forward past it, it is the moment at which they are; where they
// show it twice, the first time. Errors are *InvalidError, with code SEND_AT_INVALID or TIME_ZONE_INVALID.
func (l LocalTime) Instant() (time.Time, error) {
	where, err := time.LoadLocation(l.Zone)
	if err != nil || l.Zone == "" || l.Zone == "Local" {
		return time.Time{}, &InvalidError{
			Code: "TIME_ZONE_INVALID", Field: "sendAtLocal.timeZone", Detail: "is not a name of the time zone database, such as America/Sao_Paulo",
		}
	}
	clock, err := time.Parse("2006-01-02T15:04", l.Time)
	if err != nil {
		clock, err = time.Parse("2006-01-02T15:04:05", l.Time)
	}
	if err != nil || clock.Nanosecond() != 0 {
		return time.Time{}, &InvalidError{
			Code: "SEND_AT_INVALID", Field: "sendAtLocal.time", Detail: fmt.Sprintf("%q is not a local time such as 2026-03-29T02:30: give no offset, the time zone says it", l.Time),
		}
	}
	// What the zone is like around that time: before, at and after the changes next to it.
	near := time.Date(clock.Year(), clock.Month(), clock.Day(), clock.Hour(), clock.Minute(), clock.Second(), 0, where)
	start, end := near.ZoneBounds()
	around := []time.Time{near}
	for _, change := range []time.Time{start, end} {
		if !change.IsZero() {
			around = append(around, change.Add(-time.Nanosecond), change)
		}
	}
	var first time.Time
	for _, t := range around {
		_, offset := t.Zone()
		at := clock.Add(-time.Duration(offset) * time.Second)
		if _, is := at.In(where).Zone(); is == offset && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	if !first.IsZero() {
		return first.UTC(), nil
	}
	for _, change := range []time.Time{start, end} {
		if change.IsZero() {
			continue
		}
		_, before := change.Add(-time.Nanosecond).Zone()
		_, after := change.Zone()
		from, to := change.Add(time.Duration(before)*time.Second).UTC(), change.Add(time.Duration(after)*time.Second).UTC()
		if !clock.Before(from) && clock.Before(to) {
			return change.UTC(), nil
		}
	}
	return near.UTC(), nil
}
