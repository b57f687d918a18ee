package ledger

import "math"

// bucket is a token bucket's level at a moment.
type bucket struct {
	level float64
	at    int64 // ms; 0 = nobody took from it
	rate  Rate
}

// now is the level at a moment. Conversions keep the compiler from joining the product and the sum
// into one rounding, which the script between processes doesn't have.
func (b bucket) now(now int64, r Rate) float64 {
	past := float64(max(0, now-b.at))
	return math.Min(r.Burst, b.level+float64(float64(past*r.PerSecond)/1000))
}

// lacks is how many ms it takes until there is one token, 0 if there is.
func lacks(level float64, r Rate) int64 {
	if level >= 1 {
		return 0
	}
	return int64(math.Ceil(float64((1-level)*1000) / r.PerSecond))
}

// back is the bucket after a token taken at one moment was given back at another. One that has had
// time to fill since then has it already.
func (b bucket) back(taken, now int64) bucket {
	if b.at == 0 || float64(now-taken)*b.rate.PerSecond >= b.rate.Burst*1000 {
		return b
	}
	return bucket{math.Min(b.rate.Burst, b.now(now, b.rate)+1), now, b.rate}
}
