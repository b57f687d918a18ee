package ledger

import (
	"encoding/binary"
	"math"

	"github.com/wafleet/wafleet/internal/fleet"
)

// Among many candidates a weighted choice tries a few at random before it looks at all of them. A try takes its candidate
// with the probability that its rest of the hour has of the largest hour of all, and one that can't send never. So each is
// taken by what it has left, as if all had been looked at; and after the last try that failed all are, which changes nothing
// about that.
const (
	fewCandidates = 8 // so few are looked at anyway
	tries         = 6
)

// try is one throw: which candidate, and whether to take it; both in [0, 1).
type try struct{ which, take float64 }

// throws are the tries that a request's dice stand for, none if it needs none.
func (r *Request) throws() []try {
	if len(r.Candidates) <= fewCandidates || r.Bound || r.Strategy == fleet.StrategyPriority || r.Strategy == fleet.StrategyRoundRobin {
		return nil
	}
	state := math.Float64bits(r.Rand)
	next := func() float64 { // splitmix64
		state += 0x9e3779b97f4a7c15
		z := state
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return float64((z^z>>31)>>11) / (1 << 53)
	}
	all := make([]try, tries)
	for i := range all {
		all[i] = try{next(), next()}
	}
	return all
}

// packedDice are Rand and the throws as the script takes them.
func (r *Request) packedDice() string {
	b := binary.LittleEndian.AppendUint64(nil, math.Float64bits(r.Rand))
	for _, t := range r.throws() {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(t.which))
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(t.take))
	}
	return string(b)
}
