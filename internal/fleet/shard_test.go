package fleet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// agreed is one session of the fixture that producers of every language are held against.
type agreed struct {
	ID     SessionID      `json:"id"`
	Shards map[string]int `json:"shards"` // by count
}

func shardFixture(t *testing.T) (out []agreed) {
	t.Helper()
	raw, err := os.ReadFile("testdata/shards.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	if len(out) == 0 {
		t.Fatal("the fixture is empty")
	}
	return out
}

func TestShardsAreThoseOfTheFixture(t *testing.T) {
	for _, a := range shardFixture(t) {
		for text, want := range a.Shards {
			count, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			if got := ShardOf(a.ID, count); got != want {
				t.Errorf("ShardOf(%s, %d) = %d, want %d", a.ID, count, got, want)
			}
			for i := range count {
				if s := (Shard{Count: count, Index: i}); s.Has(a.ID) != (i == want) {
					t.Errorf("shard %s has %s: %v, want %v", s, a.ID, s.Has(a.ID), i == want)
				}
			}
			if !(Shard{Count: count, Index: AllShards}).Has(a.ID) {
				t.Errorf("all of %d shards do not have %s", count, a.ID)
			}
		}
	}
}

// The one-liners of producers in Python and JavaScript. Each reads "id count" lines and answers one number a line.
var producers = map[string][]string{
	"python3": {"-c", `import sys
for line in sys.stdin:
    channel_id, shard_count = line.split()
    shard_count = int(shard_count)
    print(int(str(channel_id).replace("-", "")[:8], 16) % shard_count)`},
	"node": {"-e", `for (const line of require("fs").readFileSync(0, "utf8").trim().split("\n")) {
  const [channelId, count] = line.split(" ");
  const shardCount = Number(count);
  console.log(parseInt(channelId.replace(/-/g, "").slice(0, 8), 16) % shardCount);
}`},
}

func TestProducersInPythonAndJavaScriptComputeTheSameShard(t *testing.T) {
	var in strings.Builder
	var want []string
	ask := func(id SessionID, count, shard int) {
		fmt.Fprintln(&in, id, count)
		want = append(want, strconv.Itoa(shard))
	}
	for _, a := range shardFixture(t) {
		for _, text := range slices.Sorted(maps.Keys(a.Shards)) {
			count, _ := strconv.Atoi(text)
			ask(a.ID, count, a.Shards[text])
		}
	}
	for n := range 200 {
		id := NewSessionID()
		ask(id, n+1, ShardOf(id, n+1))
	}
	for tool, args := range producers {
		t.Run(tool, func(t *testing.T) {
			path, err := exec.LookPath(tool)
			if err != nil {
				t.Skipf("%s is not on this machine: its producers are compared where it is", tool)
			}
			cmd := exec.CommandContext(t.Context(), path, args...)
			cmd.Stdin = strings.NewReader(in.String())
			var errs bytes.Buffer
			cmd.Stderr = &errs
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%s: %v\n%s", tool, err, errs.String())
			}
			if d := cmp.Diff(want, strings.Fields(string(out))); d != "" {
				t.Errorf("%s computes other shards (-ours +its):\n%s", tool, d)
			}
		})
	}
}

func TestSessionsSpreadOverTheirShards(t *testing.T) {
	const sessions, count = 8000, 8
	var held [count]int
	for range sessions {
		held[ShardOf(NewSessionID(), count)]++
	}
	for i, n := range held {
		if n < sessions/count*3/4 || n > sessions/count*5/4 {
			t.Errorf("shard %d of %d has %d of %d sessions", i, count, n, sessions)
		}
	}
}

func TestCoveringAndOverlappingFollowFromTheSessions(t *testing.T) {
	shards := []Shard{{}, {1, 0}, {2, AllShards}, {2, 0}, {2, 1}, {3, 0}, {3, 2}, {4, 1}, {4, 2}, {6, 5}}
	const keys = 12 // what the counts above divide
	has := func(s Shard, key int) bool { return s.All() || key%s.Count == s.Index }
	for _, a := range shards {
		for _, b := range shards {
			overlaps := false
			for key := range keys {
				overlaps = overlaps || has(a, key) && has(b, key)
			}
			if got := a.Overlaps(b); got != overlaps {
				t.Errorf("%s overlaps %s: %v, want %v", a, b, got, overlaps)
			}
		}
		for _, count := range []int{1, 2, 3, 4, 6, 12} {
			for index := range count {
				covers := true
				for key := range keys {
					covers = covers && (key%count != index || has(a, key))
				}
				if got := a.Covers(index, count); got != covers {
					t.Errorf("%s covers %d of %d: %v, want %v", a, index, count, got, covers)
				}
			}
		}
	}
}

func TestIdsThatAreNoneOfOursHaveAShardToo(t *testing.T) {
	for _, id := range []SessionID{"", "short", "zzzzzzzz-0000-4000-8000-000000000000", "-------"} {
		if got := ShardOf(id, 4); got != 0 {
			t.Errorf("ShardOf(%q, 4) = %d, want 0", id, got)
		}
	}
	if got, want := (Shard{Count: 3, Index: AllShards}).Indexes(), []int{0, 1, 2}; !slices.Equal(got, want) {
		t.Errorf("Indexes = %v, want %v", got, want)
	}
}
