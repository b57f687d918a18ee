//go:build race

package testkit

// Race is whether the race detector watches, which makes everything about ten times slower.
const Race = true
