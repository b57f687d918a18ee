package fleet

import (
	"fmt"
	"strconv"
	"strings"
)

// AllShards is the index of a process that is for every shard.
const AllShards = -1

// Shard says which sessions a process is for: part Index of Count. Its zero value is all of them.
type Shard struct {
	Count int // 0 and 1: not sharded
	Index int // 0 to Count-1, or AllShards
}

// ShardKey is the number that decides a session's shard: the first eight hex digits of its id. An id that
// does not begin with them is none of ours, and has key 0.
func ShardKey(id SessionID) int64 {
	digits := strings.ReplaceAll(string(id), "-", "")
	if len(digits) < 8 {
		return 0
	}
	key, err := strconv.ParseInt(digits[:8], 16, 64)
	if err != nil {
		return 0
	}
	return key
}

// ShardOf is the shard of a session among count: its key modulo count. Producers in other languages
// compute the same number from the same id; testdata/shards.json holds what all of them must answer.
func ShardOf(id SessionID, count int) int {
	if count <= 1 {
		return 0
	}
	return int(ShardKey(id) % int64(count))
}

// All reports whether the process is for every session.
func (s Shard) All() bool { return s.Count <= 1 || s.Index == AllShards }

// Has reports whether the process is for this session.
func (s Shard) Has(id SessionID) bool { return s.All() || ShardOf(id, s.Count) == s.Index }

// Indexes are the shards that the process is for.
func (s Shard) Indexes() []int {
	if s.Count <= 1 {
		return []int{0}
	}
	if s.Index != AllShards {
		return []int{s.Index}
	}
	out := make([]int, s.Count)
	for i := range out {
		out[i] = i
	}
	return out
}

// Covers reports whether the process is for every session of shard index among count, however many
// shards it counts itself.
func (s Shard) Covers(index, count int) bool {
	count = max(count, 1)
	return s.All() || count%s.Count == 0 && index%s.Count == s.Index
}

// Overlaps reports whether some session may belong to both.
func (s Shard) Overlaps(o Shard) bool {
	if s.All() || o.All() {
		return true
	}
	// Two remainders meet when they agree modulo what the counts share.
	return (s.Index-o.Index)%gcd(s.Count, o.Count) == 0
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// String is "all", or "1 of 2".
func (s Shard) String() string {
	switch {
	case s.Count <= 1:
		return "all"
	case s.Index == AllShards:
		return fmt.Sprintf("all %d", s.Count)
	}
	return fmt.Sprintf("%d of %d", s.Index, s.Count)
}
