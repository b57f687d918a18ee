package worker

import (
	"fmt"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
)

// ofShard makes a worker one of shard index among count.
func ofShard(index, count int, adopt time.Duration) func(*Options) {
	return func(o *Options) { o.Shard, o.Adopt = fleet.Shard{Count: count, Index: index}, adopt }
}

// spread makes sessions until each of two shards has at least n.
func (w *world) spread(n int) (ids []fleet.SessionID) {
	w.t.Helper()
	var held [2]int
	for held[0] < n || held[1] < n {
		s := w.session()
		held[fleet.ShardOf(s.ID, 2)]++
		ids = append(ids, s.ID)
	}
	return ids
}

// owned waits until who says of every session who owns it now.
func (w *world) owned(within time.Duration, ids []fleet.SessionID, who func(id fleet.SessionID) string) {
	w.t.Helper()
	wrong := func() string {
		for _, id := range ids {
			if got, want := w.row(id).OwnerID(), who(id); got != want {
				return fmt.Sprintf("session %s of shard %d is owned by %q, want %q", id, fleet.ShardOf(id, 2), got, want)
			}
		}
		return ""
	}
	for end := time.Now().Add(within); ; w.sleep(100 * time.Millisecond) {
		text := wrong()
		if text == "" {
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("after %s %s", within, text)
		}
	}
}

// drain is what an operator asks of a worker.
func (w *world) drain(worker string, wanted bool) {
	w.t.Helper()
	if err := w.st.DrainWorker(w.t.Context(), worker, wanted); err != nil {
		w.t.Fatal(err)
	}
	_ = w.bus.Publish(w.t.Context(), bus.TopicControl(worker), "")
}

func byShard(names ...string) func(fleet.SessionID) string {
	return func(id fleet.SessionID) string { return names[fleet.ShardOf(id, len(names))] }
}

func TestWorkersClaimTheirShardOnlyAndADrainedOneHandsOverAtOnceAndNoFurther(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ids := w.spread(3)
		w.start("a", ofShard(0, 2, 0))
		w.sleep(time.Minute)
		w.owned(0, ids, byShard("a", ""))
		w.start("b", ofShard(1, 2, 0))
		w.owned(5*time.Second, ids, byShard("a", "b"))

		w.start("b2", ofShard(1, 2, 0))
		w.sleep(time.Minute)
		w.owned(0, ids, byShard("a", "b")) // a newcomer takes nothing from who owns it
		w.drain("b", true)
		w.owned(2*time.Second, ids, byShard("a", "b2"))
		w.sleep(time.Minute)
		w.owned(0, ids, byShard("a", "b2"))
		w.drain("b", false)
		w.sleep(time.Minute)
		w.owned(0, ids, byShard("a", "b2"))
	})
}

func TestAShardWithoutAWorkerIsAdoptedAfterItsTimeAndGivenBackToTheNextOne(t *testing.T) {
	const adopt = time.Minute
	bubble(t, func(t *testing.T, w *world) {
		ids := w.spread(3)
		w.start("a", ofShard(0, 2, adopt))
		b := w.start("b", ofShard(1, 2, adopt))
		w.owned(5*time.Second, ids, byShard("a", "b"))
		b.crash()
		w.sleep(adopt - 15*time.Second) // its last beat was up to 10 s earlier
		w.owned(0, ids, byShard("a", ""))
		w.owned(30*time.Second, ids, byShard("a", "a"))

		w.start("b-again", ofShard(1, 2, adopt))
		w.owned(15*time.Second, ids, byShard("a", "b-again")) // with the next look, not the next expiry
		w.sleep(time.Minute)
		w.owned(0, ids, byShard("a", "b-again"))
	})
}

func TestAShardWhoseOnlyWorkerIsDrainedIsAdoptedAlthoughThatOneLives(t *testing.T) {
	const adopt = time.Minute
	bubble(t, func(t *testing.T, w *world) {
		ids := w.spread(3)
		w.start("a", ofShard(0, 2, adopt))
		w.start("b", ofShard(1, 2, adopt))
		w.owned(5*time.Second, ids, byShard("a", "b"))
		w.drain("b", true)
		w.owned(5*time.Second, ids, byShard("a", ""))
		w.sleep(adopt - 20*time.Second)
		w.owned(0, ids, byShard("a", ""))
		w.owned(40*time.Second, ids, byShard("a", "a"))

		// Its row may be lost while the database is away; what an operator wanted of it is not.
		if err := w.st.RemoveWorker(t.Context(), "b/1"); err != nil {
			t.Fatal(err)
		}
		w.sleep(time.Minute)
		w.owned(0, ids, byShard("a", "a"))
		w.drain("b", false)
		w.owned(30*time.Second, ids, byShard("a", "b"))
	})
}

func TestAShardThatNobodyWasEverForIsAdoptedTooAndNeverWithoutTheSetting(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ids := w.spread(2)
		w.start("a", ofShard(0, 2, 0))
		w.sleep(10 * time.Minute)
		w.owned(0, ids, byShard("a", ""))
		w.start("a2", ofShard(0, 2, time.Minute))
		w.owned(2*time.Minute, ids, byShard("a", "a2"))
	})
}

func TestTwoWorkersThatCountShardsDifferentlyNeverOwnOneSessionTogether(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ids := w.spread(3)
		w.start("old", ofShard(0, 1, 0))
		w.owned(5*time.Second, ids, byShard("old", "old"))
		w.start("new-0", ofShard(0, 2, 0))
		w.start("new-1", ofShard(1, 2, 0))
		w.sleep(time.Minute)
		w.owned(0, ids, byShard("old", "old"))
		w.procs[0].crash()
		w.owned(40*time.Second, ids, byShard("new-0", "new-1"))
		for _, id := range ids {
			list, err := w.st.LeaseHistory(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if len(list) != 2 || list[1].Epoch != list[0].Epoch+1 || list[1].At.Sub(list[0].At) < 30*time.Second {
				t.Errorf("session %s was claimed as %v, want twice, each under its own epoch", id, list)
			}
		}
	})
}
