package testkit

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Watchdog ends the test process when progress has not changed for limit of real time. It is for synctest bubbles: a
// goroutine that waits for a sync.Mutex stops the fake clock for everybody, without using any CPU and without a message,
// until the test binary's own timeout. The watchdog prints the goroutines of the bubble that do not wait durably, which
// are exactly the culprits, and exits with code 3.
//
// Call it before synctest.Test, with the outer t, so that it lives on real time; bump progress for every frame, event or
// step. stop ends it and returns when it has ended; call it when the bubble has.
func Watchdog(t testing.TB, limit time.Duration, progress *atomic.Int64) (stop func()) {
	t.Helper()
	name := t.Name()
	return watch(limit, progress, func(last int64) {
		fmt.Fprintf(os.Stderr, "%s: the fake clock stands still: no progress beyond %d for %s of real time\n%s",
			name, last, limit, culprits(allStacks()))
		os.Exit(3)
	})
}

func watch(limit time.Duration, progress *atomic.Int64, stalled func(last int64)) (stop func()) {
	done := make(chan struct{})
	var joined sync.WaitGroup
	joined.Go(func() {
		last := progress.Load()
		timer := time.NewTimer(limit)
		defer timer.Stop()
		for {
			select {
			case <-done:
				return
			case <-timer.C:
			}
			now := progress.Load()
			if now == last {
				stalled(last)
				return
			}
			last = now
			timer.Reset(limit)
		}
	})
	return sync.OnceFunc(func() {
		close(done)
		joined.Wait()
	})
}

func allStacks() string {
	for size := 1 << 20; ; size *= 2 {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size {
			return string(buf[:n])
		}
	}
}

// culprits returns the stacks of the goroutines in a bubble that are not durably blocked. A goroutine's first line is
// like "goroutine 9 [sync.Mutex.Lock, synctest bubble 1]:"; the durable ones have "(durable)" in it.
func culprits(stacks string) string {
	var out strings.Builder
	for stack := range strings.SplitSeq(stacks, "\n\n") {
		header, _, _ := strings.Cut(stack, "\n")
		if strings.Contains(header, "synctest bubble") && !strings.Contains(header, "(durable)") {
			out.WriteString(strings.TrimSpace(stack) + "\n\n")
		}
	}
	if out.Len() == 0 {
		return "no goroutine of a bubble waits for anything but the clock: the bubble is idle or progress is not counted\n"
	}
	return out.String()
}
