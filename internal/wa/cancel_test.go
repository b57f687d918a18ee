package wa_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/testkit"
	"github.com/wafleet/wafleet/internal/wa"
	"github.com/wafleet/wafleet/internal/wasim/memnet"
)

// A pairing may be given up at any moment: while dialling, in the handshake, while codes are asked for, shown or scanned.
func TestPairingsGivenUpAtAnyMomentLeaveNothingBehind(t *testing.T) {
	rounds := 1000
	if testkit.Race {
		rounds = 30
	}
	onFakeTime(t, func(t *testing.T, w *world, m *memnet.Net) {
		t.Helper()
		m.Latency = func(string) time.Duration { return 3 * time.Millisecond }
		random := rand.New(rand.NewPCG(1, 2))
		n := w.number(t, fresh())
		ends := map[wa.Reason]int{}
		shown := 0
		before := 0
		for i := range rounds {
			pair := &wa.PairRequest{Method: fleet.PairQR, Until: time.Now().Add(time.Minute)}
			if i%3 == 0 {
				pair.Method, pair.Phone = fleet.PairCode, n.pn
			}
			g := n.start(func(o *wa.Options) { o.Pair = pair })
			time.Sleep(time.Duration(random.Int64N(int64(50 * time.Millisecond))))
			select {
			case code := <-g.qr:
				shown++
				if i%7 == 0 { // somebody scans at the same moment
					go func() { _ = w.sim.Phone(n.pn).ScanQR(t.Context(), code) }()
				}
			case <-g.code:
				shown++
			default:
			}
			g.cancel(context.Canceled)
			ends[g.run().Reason]++
			if i == 9 { // what a process makes once is there
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				before, _ = testkit.BubbleGoroutines()
			}
		}
		if ends[wa.ReasonStopped] < rounds*9/10 || shown < rounds/10 || shown > rounds*9/10 {
			t.Errorf("%d codes were shown in %d rounds that ended with %v, want all sorts of moments", shown, rounds, ends)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if after, stacks := testkit.BubbleGoroutines(); after > before {
			t.Errorf("%d goroutines after %d pairings that were given up, want the %d of before:\n%s", after, rounds, before, stacks)
		}
	})
}
