package webhook

import (
	"net/http"
	"testing"
	"time"
)

func TestPauses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		f      failure
		spread float64
		want   time.Duration
	}{
		{"the first failure waits seconds", failure{tries: 1}, 0.5, 5 * time.Second},
		{"and at least four fifths of its step", failure{tries: 1}, 0, 4 * time.Second},
		{"the fourth waits minutes", failure{tries: 4}, 0.5, 10 * time.Minute},
		{"late ones wait six hours", failure{tries: 8}, 0.5, 6 * time.Hour},
		{"and no longer", failure{tries: 15}, 0.5, 6 * time.Hour},
		{"the receiver may lengthen it", failure{tries: 1, retryAfter: time.Minute}, 0.5, time.Minute},
		{"but not shorten it", failure{tries: 5, retryAfter: time.Second}, 0.5, 30 * time.Minute},
		{"nor lengthen it without end", failure{tries: 1, retryAfter: 1000 * time.Hour}, 0.5, 6 * time.Hour},
		{"the head of a stream is tried when it may step aside", failure{tries: 4, ordered: true, blocking: 3 * time.Minute}, 0.5, 2 * time.Minute},
		{"an unordered one has nobody behind it", failure{tries: 4, blocking: 3 * time.Minute}, 0.5, 10 * time.Minute},
		{"with its endpoint down a delivery is due when that is asked again", failure{tries: 4, down: 2 * time.Second}, 0.5, 2 * time.Second},
		{"unless the receiver wants it later", failure{tries: 4, down: 2 * time.Second, retryAfter: time.Minute}, 0.5, time.Minute},
		{"a head that could not step aside goes on by its steps", failure{tries: 6, ordered: true, blocking: 30 * time.Minute}, 0.5, time.Hour},
	} {
		if got := tc.f.pause(tc.spread); got != tc.want {
			t.Errorf("%s: pause of %+v = %v, want %v", tc.name, tc.f, got, tc.want)
		}
	}
}

func TestGivingUp(t *testing.T) {
	for _, tc := range []struct {
		f    failure
		age  time.Duration
		want bool
	}{
		{failure{tries: 1}, 0, false},
		{failure{tries: 15}, 71 * time.Hour, false},
		{failure{tries: 16}, 0, true},
		{failure{tries: 2}, 72 * time.Hour, true},
		{failure{tries: 16, down: time.Second}, 71 * time.Hour, false},
		{failure{tries: 2, down: time.Second}, 72 * time.Hour, true},
	} {
		if got := tc.f.last(tc.age); got != tc.want {
			t.Errorf("last(%v) of %+v = %v, want %v", tc.age, tc.f, got, tc.want)
		}
	}
}

func TestTheBreakerOpensAfterFiveFailuresForAPartOfTheOutage(t *testing.T) {
	for _, tc := range []struct {
		failures int
		failing  time.Duration
		want     time.Duration
	}{
		{1, 0, 0},
		{4, time.Hour, 0},
		{5, 0, time.Second},
		{12, 30 * time.Second, time.Second},
		{50, 10 * time.Minute, 20 * time.Second},
		{500, 24 * time.Hour, 15 * time.Minute},
	} {
		if got := breakerPause(tc.failures, tc.failing); got != tc.want {
			t.Errorf("breakerPause(%d, %v) = %v, want %v", tc.failures, tc.failing, got, tc.want)
		}
	}
}

func TestRetryAfterIsReadOnlyWhereItMeansSomething(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for _, tc := range []struct {
		status int
		value  string
		want   time.Duration
	}{
		{429, "30", 30 * time.Second},
		{503, "30", 30 * time.Second},
		{503, now.Add(time.Minute).UTC().Format(http.TimeFormat), time.Minute},
		{503, now.Add(-time.Minute).UTC().Format(http.TimeFormat), 0},
		{500, "30", 0},
		{429, "", 0},
		{429, "-5", 0},
		{429, "soon", 0},
		{429, "99999999999", retryAfterLimit},
	} {
		if got := retryAfter(tc.status, http.Header{"Retry-After": {tc.value}}, now); got != tc.want {
			t.Errorf("retryAfter(%d, %q) = %v, want %v", tc.status, tc.value, got, tc.want)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, seed := range []string{"", "120", "-1", "99999999999999999999", "Wed, 01 Jul 2026 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "1e9", "\x00"} {
		f.Add(seed, 503)
	}
	f.Add("5", 429)
	f.Add("5", 500)
	now := time.Unix(1_780_000_000, 0)
	f.Fuzz(func(t *testing.T, value string, status int) {
		d := retryAfter(status, http.Header{"Retry-After": {value}}, now)
		if d < 0 || d > 0 && status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable {
			t.Fatalf("retryAfter(%d, %q) = %v", status, value, d)
		}
		// What a receiver asks for lengthens the pause within its limit, and never shortens it.
		asked := failure{tries: 1, retryAfter: d}.pause(0.5)
		if alone := (failure{tries: 1}).pause(0.5); asked < alone || asked > retryAfterLimit {
			t.Errorf("Retry-After %q makes the pause %v, without it %v", value, asked, alone)
		}
	})
}
