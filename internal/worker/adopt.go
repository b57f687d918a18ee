package worker

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
)

// adopt takes over shards that have been without a worker for SHARD_ADOPT_AFTER, and gives their sessions
// back when they have one again. Several workers may adopt one shard: the leases decide who gets what.
func (w *Worker) adopt(ctx context.Context) {
	t := time.NewTicker(w.o.Beat)
	defer t.Stop()
	adopted, unheard := map[int]func(){}, map[int]time.Time{}
	defer func() {
		for _, unsubscribe := range adopted {
			unsubscribe()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		lctx, cancel := context.WithTimeout(ctx, w.o.Beat)
		workers, err := w.o.Store.Workers(lctx)
		cancel()
		if err != nil {
			continue // a database that does not answer says nothing about anybody
		}
		coverage := fleet.Cover(w.o.Shard.Count, workers, w.o.TTL)
		for index := range w.o.Shard.Count {
			age, uncovered := coverage.Uncovered[index]
			if !uncovered {
				delete(unheard, index)
			} else if age < 0 { // nobody was ever there: it counts from when we saw that
				if unheard[index].IsZero() {
					unheard[index] = time.Now()
				}
				age = time.Since(unheard[index])
			}
			_, ours := adopted[index]
			switch {
			case index == w.o.Shard.Index:
			case uncovered && age >= w.o.Adopt && !ours:
				w.take(ctx, index, age, adopted)
			case !uncovered && ours:
				adopted[index]()
				delete(adopted, index)
				w.claimAdopted(adopted)
				w.log.InfoContext(ctx, "a shard has a worker again; its sessions go back to it", slog.Int("shard", index))
			}
		}
		// At each look, because a claim that was under way brings its sessions after its shard was given back.
		w.handOver(func(id fleet.SessionID) bool {
			_, ours := adopted[fleet.ShardOf(id, w.o.Shard.Count)]
			return !ours && !w.o.Shard.Has(id)
		})
	}
}

func (w *Worker) shard(index int) fleet.Shard {
	return fleet.Shard{Count: w.o.Shard.Count, Index: index}
}

func (w *Worker) take(ctx context.Context, index int, age time.Duration, adopted map[int]func()) {
	unsubscribe, err := w.o.Bus.Subscribe(ctx, w.nudged, bus.Queues(w.shard(index))...)
	if err != nil { // its nudges are lost, and its rows are found by looking
		unsubscribe = func() {}
	}
	adopted[index] = unsubscribe
	w.claimAdopted(adopted)
	w.log.WarnContext(ctx, "a shard has no worker; this one takes its sessions until it has one again",
		slog.Int("shard", index), slog.Duration("without_a_worker_for", age))
}

func (w *Worker) claimAdopted(adopted map[int]func()) {
	var shards []fleet.Shard
	for _, index := range slices.Sorted(maps.Keys(adopted)) {
		shards = append(shards, w.shard(index))
	}
	w.keeper.SetShards(shards)
	w.metrics.adopted.Set(float64(len(shards)))
}
