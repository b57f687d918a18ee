package ledger

import (
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
)

// testChoice holds who is picked, and that a person keeps their number.
func testChoice(run runner) {
	run("priority takes the first in list order that can send", Options{}, func(f fixture) {
		cs := candidates(Budget{1, 10, 10, 10}, Budget{2, 10, 10, 10}, roomy)
		var got []int
		for range 5 {
			got = append(got, f.reserve(Request{Candidates: cs, Strategy: fleet.StrategyPriority}).Winner)
		}
		if diff := cmp.Diff([]int{0, 1, 1, 2, 2}, got); diff != "" {
			f.Errorf("winners (-want +got):\n%s", diff)
		}
	})

	run("round-robin turns among those that can send", Options{}, func(f fixture) {
		cs := candidates(roomy, Budget{1, 10, 10, 10}, roomy)
		var got []int
		for range 7 {
			got = append(got, f.reserve(Request{Candidates: cs, Strategy: fleet.StrategyRoundRobin}).Winner)
		}
		// The third turn is among two, the second of which is the third candidate.
		if diff := cmp.Diff([]int{0, 1, 0, 2, 0, 2, 0}, got); diff != "" {
			f.Errorf("winners (-want +got):\n%s", diff)
		}
	})

	run("what is pinned does not take a turn", Options{}, func(f fixture) {
		cs := candidates(roomy, roomy)
		ask := Request{Candidates: cs, Strategy: fleet.StrategyRoundRobin, Key: "5511900000001"}
		f.take(ask)
		f.take(ask)
		ask.Key = ""
		if got := f.reserve(ask).Winner; got != 1 {
			f.Errorf("winner %d, want the second: one turn was taken", got)
		}
	})

	run("weighted goes by what is left of the hour", Options{}, func(f fixture) {
		cs := candidates(Budget{1000, 50, 1000, 10}, Budget{1000, 450, 1000, 10})
		for _, tt := range []struct {
			rand float64
			want int
		}{{0, 0}, {0.0999, 0}, {0.1, 1}, {0.999, 1}} {
			v, err := f.Look(f.Context(), Request{Org: "org-a", Candidates: cs, Rand: tt.rand})
			if err != nil || v.Winner != tt.want {
				f.Errorf("Look with dice at %v = %d, %v, want %d", tt.rand, v.Winner, err, tt.want)
			}
		}
	})

	run("a person hears from one number while it can send, then from one other", Options{}, func(f fixture) {
		cs := candidates(Budget{2, 100, 100, 10}, roomy, roomy)
		ask := Request{Candidates: cs, Key: "5511900000001", Strategy: fleet.StrategyPriority}
		f.take(ask)
		ask.Strategy, ask.Rand = fleet.StrategyWeighted, 0.999
		a := f.reserve(ask)
		if a.Winner != 0 || !a.Pinned {
			f.Errorf("second send: winner %d pinned %v, want the pinned 0", a.Winner, a.Pinned)
		}
		if a = f.reserve(ask); a.Winner != 2 || a.Pinned {
			f.Errorf("with the pinned one full: winner %d pinned %v, want 2 anew", a.Winner, a.Pinned)
		}
		ask.Rand = 0
		if a = f.reserve(ask); a.Winner != 2 || !a.Pinned {
			f.Errorf("after that: winner %d pinned %v, want it to stay with 2", a.Winner, a.Pinned)
		}
		f.advance(25 * time.Hour)
		if a = f.reserve(ask); a.Winner != 0 || a.Pinned {
			f.Errorf("a day later: winner %d pinned %v, want a new choice", a.Winner, a.Pinned)
		}
	})

	run("a pin is refreshed by sends and ends with its time", Options{}, func(f fixture) {
		cs := candidates(roomy, roomy)
		ask := Request{Candidates: cs, Key: "5511900000001", Strategy: fleet.StrategyPriority, AffinityTTL: time.Hour}
		if got, err := f.Pin(f.Context(), "org-a", ask.Key, cs[1].Slug, time.Hour); err != nil || got != cs[1].Slug {
			f.Fatalf("Pin = %q, %v, want the new pin", got, err)
		}
		f.advance(59 * time.Minute)
		f.take(ask)
		f.advance(59 * time.Minute)
		if got := f.reserve(ask).Winner; got != 1 {
			f.Errorf("winner %d, want the pinned 1: the first send refreshed it", got)
		}
		if got, err := f.Pin(f.Context(), "org-a", ask.Key, cs[0].Slug, time.Hour); err != nil || got != cs[1].Slug {
			f.Errorf("Pin = %q, %v, want the pin that lives", got, err)
		}
		f.advance(time.Hour)
		if got := f.reserve(ask).Winner; got != 0 {
			f.Errorf("winner %d after the pin ended, want 0", got)
		}
	})

	run("two people who are one keep the newer pin", Options{}, func(f fixture) {
		cs := candidates(roomy, roomy)
		pin := func(key string, to int) {
			f.Helper()
			if _, err := f.Pin(f.Context(), "org-a", key, cs[to].Slug, time.Hour); err != nil {
				f.Fatalf("Pin: %v", err)
			}
		}
		pinned := func(key string) int {
			f.Helper()
			v, err := f.Look(f.Context(), Request{Org: "org-a", Candidates: cs, Key: key, Strategy: fleet.StrategyPriority})
			if err != nil {
				f.Fatalf("Look: %v", err)
			}
			if !v.Pinned {
				return -1
			}
			return v.Winner
		}
		merge := func(from, into string) {
			f.Helper()
			if err := f.Merge(f.Context(), "org-a", from, into); err != nil {
				f.Fatalf("Merge: %v", err)
			}
		}
		pin("lid:1", 0)
		f.advance(time.Minute)
		pin("5511900000001", 1)
		merge("lid:1", "5511900000001")
		if got := []int{pinned("lid:1"), pinned("5511900000001")}; !slices.Equal(got, []int{-1, 1}) {
			f.Errorf("pins after merging the older = %v, want [-1 1]", got)
		}
		f.advance(time.Minute)
		pin("lid:2", 0)
		merge("lid:2", "5511900000001")
		if got := pinned("5511900000001"); got != 0 {
			f.Errorf("pin after merging the newer = %d, want 0", got)
		}
		merge("lid:3", "5511900000001")
		merge("5511900000001", "5511900000002")
		if got := pinned("5511900000002"); got != 0 {
			f.Errorf("pin after merging into nobody = %d, want 0", got)
		}
	})

	run("a detached session loses its pins and nobody else's", Options{}, func(f fixture) {
		cs := candidates(roomy, roomy)
		for i, key := range []string{"5511900000001", "5511900000002", "5511900000003"} {
			if _, err := f.Pin(f.Context(), "org-a", key, cs[i%2].Slug, 0); err != nil {
				f.Fatalf("Pin: %v", err)
			}
		}
		if err := f.Unpin(f.Context(), "org-a", cs[0].Slug); err != nil {
			f.Fatalf("Unpin: %v", err)
		}
		for key, want := range map[string]bool{"5511900000001": false, "5511900000002": true, "5511900000003": false} {
			if a := f.reserve(Request{Candidates: cs, Key: key}); a.Pinned != want {
				f.Errorf("pin of %s lives: %v, want %v", key, a.Pinned, want)
			}
		}
	})
}
