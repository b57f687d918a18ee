package testkit

import (
	"bytes"
	"runtime"
)

// BubbleGoroutines counts the goroutines of synctest bubbles, and returns their stacks beside those of all others.
// runtime.NumGoroutine also counts what the runtime itself runs for a moment, a finalizer or a cleanup.
func BubbleGoroutines() (n int, stacks []byte) {
	for size := 1 << 20; ; size *= 2 {
		stacks = make([]byte, size)
		if used := runtime.Stack(stacks, true); used < size {
			stacks = stacks[:used]
			return bytes.Count(stacks, []byte(", synctest bubble ")), stacks
		}
	}
}
