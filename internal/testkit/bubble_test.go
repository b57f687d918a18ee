package testkit_test

import (
	"testing"
	"testing/synctest"

	"github.com/wafleet/wafleet/internal/testkit"
)

func TestAGoroutineOfABubbleIsCountedAndNoOther(t *testing.T) {
	stop := make(chan struct{})
	defer close(stop)
	go func() { <-stop }()
	synctest.Test(t, func(t *testing.T) {
		before, _ := testkit.BubbleGoroutines()
		rest := make(chan struct{})
		go func() { <-rest }()
		synctest.Wait()
		if n, _ := testkit.BubbleGoroutines(); before < 1 || n != before+1 {
			t.Errorf("BubbleGoroutines() = %d, and %d before one began, want one more", n, before)
		}
		close(rest)
	})
}
