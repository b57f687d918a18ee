package lease_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// TestTwoKeepersNeverHoldOneSessionValidAtTheSameInstant freezes, refuses, kills and releases at
// random and looks at every change of time.
func TestTwoKeepersNeverHoldOneSessionValidAtTheSameInstant(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			bubble(t, 3, func(t *testing.T, s *store.Store, ids []fleet.SessionID) {
				r := rand.New(rand.NewPCG(seed, 7))
				boot := 0
				launch := func(i int) *process {
					boot++
					return start(t, s, fmt.Sprintf("w%d/%d", i, boot))
				}
				procs := []*process{launch(0), launch(1), launch(2)}
				dead := []*process{}
				var thaws []func()
				looks, held := 0, 0
				look := func() {
					owners := map[fleet.SessionID][]fleet.Term{}
					for _, p := range slices.Concat(procs, dead) {
						for _, term := range p.valid() {
							owners[term.SessionID] = append(owners[term.SessionID], term)
						}
					}
					looks++
					for id, list := range owners {
						held++
						if len(list) > 1 {
							t.Fatalf("session %s is held by %v at once", id, list)
						}
					}
				}
				for range 50 {
					i := r.IntN(len(procs))
					switch p := procs[i]; r.IntN(6) {
					case 0:
						thaws = append(thaws, p.gate.freeze(r.IntN(2) == 0))
					case 1, 2:
						if len(thaws) > 0 {
							thaws[0]()
							thaws = thaws[1:]
						}
					case 3:
						refuse := error(nil)
						if r.IntN(2) == 0 {
							refuse = errors.New("refused")
						}
						p.gate.set(func(g *gate) { g.refuse = refuse })
					case 4:
						p.kill()
						dead, procs[i] = append(dead, p), launch(i)
					case 5:
						ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
						p.ReleaseAll(ctx)
						cancel()
						p.kill()
						dead, procs[i] = append(dead, p), launch(i)
					}
					for range 1 + r.IntN(40) {
						time.Sleep(time.Duration(r.Int64N(int64(700 * time.Millisecond))))
						look()
						synctest.Wait() // and once everything due at this instant has happened
						look()
					}
				}
				for _, thaw := range thaws {
					thaw()
				}
				for _, p := range procs {
					p.kill()
				}
				if held < looks/2 {
					t.Errorf("%d of %d looks saw a session held: the run proves little", held, looks)
				}
				for _, id := range ids { // epochs go up by one
					list, err := s.LeaseHistory(t.Context(), id)
					if err != nil {
						t.Fatal(err)
					}
					for i, c := range list {
						if c.Epoch != int64(i)+1 {
							t.Errorf("lease_log of %s: line %d has epoch %d", id, i, c.Epoch)
						}
					}
				}
			})
		})
	}
}
