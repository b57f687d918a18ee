package wasim

import (
	"cmp"
	"maps"
	"slices"
)

// Maps are ranged in sorted order only: a run on simulated time with a seed must produce the same log again.

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	return slices.Sorted(maps.Keys(m))
}

func sortedKeysFunc[K comparable, V any](m map[K]V, less func(a, b K) int) []K {
	return slices.SortedFunc(maps.Keys(m), less)
}

func compareStrings(a, b string) int { return cmp.Compare(a, b) }
