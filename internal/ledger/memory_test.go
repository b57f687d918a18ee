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

// Among many candidates the choice tries some before it looks at all, and that must not show: twelve numbers that have left
// between a twentieth and all of their hour, one of which can't send.
func TestWeightedTakesAmongManyFollowWhatIsLeftToo(t *testing.T) {
	l, c := NewMemory(Options{}), newClock()
	f := fixture{l, t, c}
	dice := rand.New(rand.NewPCG(8, 15))
	const hour = 100_000
	budgets := make([]Budget, 12)
	var left, got, want [12]float64
	for i := range budgets {
		budgets[i] = Budget{hour, hour, hour, 10}
		left[i] = hour * float64(i+1) / 12
		if i == 0 {
			left[i] = hour / 20
		}
	}
	budgets[5].PerMinute, left[5] = 0, 0
	cs := candidates(budgets...)
	for i := range cs {
		if i != 5 {
			f.settle(Settlement{Session: cs[i].Slug, Frames: hour - int(left[i])})
			left[i] = float64(hour - (hour - int(left[i])))
		}
	}
	for range 10_000 {
		sum := 0.0
		for _, n := range left {
			sum += n
		}
		for i, n := range left {
			want[i] += n / sum
		}
		w := f.reserve(Request{Candidates: cs, Rand: dice.Float64()}).Winner
		got[w]++
		left[w]--
	}
	chi := 0.0
	for i := range got {
		if want[i] > 0 {
			chi += (got[i] - want[i]) * (got[i] - want[i]) / want[i]
		}
	}
	const limit = 23.21 // ten degrees of freedom, 1 %
	if got[5] != 0 || chi > limit {
		t.Errorf("taken %v, expected %.0f: chi-square %.2f, want at most %.2f", got, want, chi, limit)
	}
}
