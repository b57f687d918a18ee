package fleet

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// WorkerInfo is one worker process as it registered itself.
type WorkerInfo struct {
	ID          string // WORKER_ID
	Owner       string // WORKER_ID plus boot nonce
	Version     string
	Shard       Shard
	Sessions    int
	MaxSessions int
	Draining    bool // it claims nothing: it stops, or an operator has emptied it
	Drain       bool // an operator wants it empty
	StartedAt   time.Time
	BeatAt      time.Time
	BeatAge     time.Duration // since its last beat, by the database's clock
	Alive       bool          // its last beat is at most 35 s old, by the database's clock
}

// Free is how many more sessions it may own; 0 while it claims nothing.
func (w *WorkerInfo) Free() int {
	if w.Draining || w.Drain {
		return 0
	}
	return max(w.MaxSessions-w.Sessions, 0)
}

// Coverage is how the registered workers cover the shards of a fleet, as one process sees it.
type Coverage struct {
	Shards int // as this process counts them
	// Uncovered are the shards without a live worker that is for them and claims, and how long ago the last one
	// was heard of; a negative time means that no such worker is known.
	Uncovered map[int]time.Duration
	// Mismatched are the WORKER_IDs of live workers that count the shards differently.
	Mismatched []string
	// Shortfall is how many sessions would find no owner if the worker went whose loss costs most, Worst.
	Shortfall int
	Worst     string
}

// Cover looks at workers as a process that counts so many shards. Who has not been heard of for ttl is
// taken for dead: its leases have run out.
func Cover(shards int, workers []WorkerInfo, ttl time.Duration) Coverage {
	c := Coverage{Shards: max(shards, 1), Uncovered: map[int]time.Duration{}}
	var live []WorkerInfo
	for _, w := range workers {
		if w.BeatAge > ttl {
			continue
		}
		live = append(live, w)
		if max(w.Shard.Count, 1) != c.Shards && !slices.Contains(c.Mismatched, w.ID) {
			c.Mismatched = append(c.Mismatched, w.ID)
		}
	}
	for index := range c.Shards {
		if !slices.ContainsFunc(live, func(w WorkerInfo) bool { return !w.Draining && !w.Drain && w.Shard.Covers(index, c.Shards) }) {
			c.Uncovered[index] = lastHeard(workers, index, c.Shards)
		}
	}
	for i := range live {
		free := 0
		for j := range live {
			if i != j && live[i].Shard.Overlaps(live[j].Shard) {
				free += live[j].Free()
			}
		}
		if short := live[i].Sessions - free; short > c.Shortfall {
			c.Shortfall, c.Worst = short, live[i].ID
		}
	}
	return c
}

func lastHeard(workers []WorkerInfo, index, count int) time.Duration {
	last := time.Duration(-1)
	for _, w := range workers {
		if w.Draining || w.Drain { // it lives, and does nothing for the shard
			continue
		}
		if w.Shard.Covers(index, count) && (last < 0 || w.BeatAge < last) {
			last = w.BeatAge
		}
	}
	return last
}

// Problems says what is wrong, for people; "" when nothing is. What it names costs nothing that was
// accepted: those sessions are without an owner until somebody is there for them.
func (c Coverage) Problems() string {
	var out []string
	if len(c.Mismatched) > 0 {
		out = append(out, fmt.Sprintf("SHARD_COUNT is %d here and another on %s: set it to one number everywhere", c.Shards, strings.Join(c.Mismatched, ", ")))
	}
	if len(c.Uncovered) > 0 {
		var list []string
		for i := range c.Shards {
			if _, ok := c.Uncovered[i]; ok {
				list = append(list, strconv.Itoa(i))
			}
		}
		out = append(out, fmt.Sprintf("no live worker is for shard %s of %d: its sessions are down", strings.Join(list, ", "), c.Shards))
	}
	return strings.Join(out, "; ")
}
