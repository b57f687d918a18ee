package ledger

import (
	"math/rand/v2"
	"testing"
)

func TestMemoryKeepsTheRulesOfALedger(t *testing.T) {
	testLedger(t, func(_ *testing.T, o Options) Ledger { return NewMemory(o) })
}

// A fixed die chooses 10,000 times; Redis chooses like memory. The expectation of each choice is what is left of the hour; the
// sum over all, by Pearson, must not be improbable.
func TestWeightedTakesFollowWhatIsLeft(t *testing.T) {
	l, c := NewMemory(Options{}), newClock()
	f := fixture{l, t, c}
	dice := rand.New(rand.NewPCG(4, 2))
	cs := candidates(Budget{100_000, 6000, 100_000, 10}, Budget{100_000, 9000, 100_000, 10}, Budget{100_000, 15_000, 100_000, 10})
	var got, want [3]float64
	left := [3]float64{6000, 9000, 15_000}
	for range 10_000 {
		sum := left[0] + left[1] + left[2]
		for i := range left {
			p := left[i] / sum
			want[i] += p
		}
		w := f.reserve(Request{Candidates: cs, Rand: dice.Float64()}).Winner
		got[w]++
		left[w]--
	}
	chi := 0.0
	for i := range got {
		chi += (got[i] - want[i]) * (got[i] - want[i]) / want[i]
	}
	const limit = 9.21 // two degrees of freedom, 1 %
	if chi > limit {
		f.Errorf("taken %v, expected %.0f: chi-square %.2f, want at most %.2f", got, want, chi, limit)
	}
	f.Logf("taken %v, expected %.1f, chi-square %.2f", got, want, chi)
}
