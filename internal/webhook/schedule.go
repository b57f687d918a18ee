package webhook

import (
	"net/http"
	"strconv"
	"time"
)

// When to give up on a delivery. Whichever comes first makes it a dead letter. What fails together with
// everything else for its endpoint is not one of its tries.
const (
	MaxTries = 16
	MaxAge   = 72 * time.Hour
)

// StepAside is how long the first delivery of a stream may fail while its endpoint takes others
// before the ones behind it stop waiting for it.
const StepAside = 5 * time.Minute

// DisableAfter is how long an endpoint may fail without one success before it is disabled.
const DisableAfter = 5 * 24 * time.Hour

// retryAfterLimit bounds what a receiver may ask for with Retry-After.
const retryAfterLimit = 6 * time.Hour

const (
	breakerThreshold = 5 // failures in a row
	breakerPart      = 30
	breakerLeast     = time.Second
	breakerLimit     = 15 * time.Minute
)

// steps are the pauses after the first, second, … failure; the last one repeats.
var steps = [...]time.Duration{
	5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute,
	30 * time.Minute, time.Hour, 3 * time.Hour, 6 * time.Hour,
}

// failure describes a failed try as far as its pause depends on it.
type failure struct {
	tries      int           // this one included
	retryAfter time.Duration // what the receiver asked for; 0 = nothing
	down       time.Duration // for how long its endpoint is left alone; 0 = it takes others
	// blocking is how long the delivery has held up its stream by failing: 0 at the first failure and
	// for unordered ones.
	blocking time.Duration
	ordered  bool
}

// last reports whether a delivery of this age is given up.
func (f failure) last(age time.Duration) bool {
	return age >= MaxAge || f.down == 0 && f.tries >= MaxTries
}

// pause returns how long to wait before the next try. spread in [0, 1) moves it by at most a fifth
// down or up, so that what failed together is not tried together. A receiver may lengthen the pause
// but not shorten it, or it would use up the tries. A delivery that holds up its stream is tried when
// its time to step aside comes, because only a failed try makes it.
func (f failure) pause(spread float64) time.Duration {
	step := steps[min(max(f.tries, 1), len(steps))-1]
	d := time.Duration(float64(step) * (0.8 + 0.4*spread))
	if f.down > 0 {
		d = f.down
	}
	if f.retryAfter > 0 {
		return max(d, min(f.retryAfter, retryAfterLimit))
	}
	if left := StepAside - f.blocking; f.ordered && left > 0 && d > left {
		d = max(left, time.Second)
	}
	return d
}

// breakerPause returns for how long an endpoint is left alone until one delivery asks whether it is back:
// not at all after the first failures in a row, then a thirtieth of the time that it has been failing. So
// a short outage is over for us soon after it is over, and a long one costs few requests.
func breakerPause(failures int, failing time.Duration) time.Duration {
	if failures < breakerThreshold {
		return 0
	}
	return min(max(failing/breakerPart, breakerLeast), breakerLimit)
}

// retryAfter reads the header of an answer with status 429 or 503: seconds or a date.
func retryAfter(status int, header http.Header, now time.Time) time.Duration {
	if status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable {
		return 0
	}
	value := header.Get("Retry-After")
	if seconds, err := strconv.Atoi(value); err == nil {
		return time.Duration(min(max(seconds, 0), int(retryAfterLimit/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}
