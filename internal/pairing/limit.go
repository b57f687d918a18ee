package pairing

import (
	"math"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// limiter is a set of token buckets by key. It is a process's own: it keeps one visitor from wearing
// out the machine, and is no promise.
type limiter struct {
	every time.Duration // a token comes back
	burst float64
	size  int // buckets kept at most

	mu      sync.Mutex
	buckets map[string]bucket
}

type bucket struct {
	left float64
	at   time.Time
}

func newLimiter(every time.Duration, burst int) *limiter {
	return &limiter{every: every, burst: float64(burst), size: 10_000, buckets: map[string]bucket{}}
}

// take takes a token of the key, or says after how long there is one.
func (l *limiter) take(key string) (wait time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	b, known := l.buckets[key]
	if !known {
		if len(l.buckets) >= l.size {
			l.sweep(now)
		}
		b = bucket{l.burst, now}
	}
	b.left = min(l.burst, b.left+float64(now.Sub(b.at))/float64(l.every))
	b.at = now
	if b.left < 1 {
		l.buckets[key] = b
		return time.Duration(math.Ceil((1 - b.left) * float64(l.every))), false
	}
	b.left--
	l.buckets[key] = b
	return 0, true
}

// sweep forgets the buckets that are full again, or all of them if that is not enough.
func (l *limiter) sweep(now time.Time) {
	for key, b := range l.buckets {
		if b.left+float64(now.Sub(b.at))/float64(l.every) >= l.burst {
			delete(l.buckets, key)
		}
	}
	if len(l.buckets) >= l.size {
		clear(l.buckets)
	}
}

// visitor is the address that a request comes from; of IPv6 the network, which one visitor has all of.
func visitor(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	if a = a.Unmap(); a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.String()
		}
	}
	return a.String()
}
