package ledger

import (
	"math"
	"slices"
)

// The windows of a session. Spans are the lengths of their buckets in seconds; a bucket counts for 61
// of them from its beginning, which is 60 from its end.
const (
	minute = iota
	hour
	day
	newChats
	windows
)

const buckets = 61

var spans = [windows]int64{1, 60, 1440, 1440}

// never is a moment, in seconds, that doesn't come.
const never = math.MaxUint32

// count is what happened in one bucket.
type count struct{ at, n int64 } // index of the bucket (seconds / span), and how many

// window is a sliding sum. Its buckets are in ascending order and none is empty.
type window struct {
	span    int64
	total   int64
	leaves  int64 // second in which the oldest bucket leaves; never if there is none
	buckets []count
}

func (w *window) add(second, n int64) {
	if n <= 0 {
		return
	}
	at := second / w.span
	i := len(w.buckets)
	for i > 0 && w.buckets[i-1].at > at {
		i--
	}
	if i > 0 && w.buckets[i-1].at == at {
		w.buckets[i-1].n += n
	} else {
		w.buckets = slices.Insert(w.buckets, i, count{at, n})
	}
	w.total += n
	w.leaves = w.leave(0)
}

// drop forgets what has left by this second.
func (w *window) drop(second int64) {
	if second < w.leaves {
		return
	}
	i := 0
	for i < len(w.buckets) && w.leave(i) <= second {
		w.total -= w.buckets[i].n
		i++
	}
	w.buckets = slices.Delete(w.buckets, 0, i)
	w.leaves = never
	if len(w.buckets) > 0 {
		w.leaves = w.leave(0)
	}
}

func (w *window) leave(i int) int64 { return (w.buckets[i].at + buckets) * w.span }

// frees is the second in which k of what is counted have left. What has no bucket yet, because its
// frame has not left, is expected to get one soon.
func (w *window) frees(second, k int64) int64 {
	for i, b := range w.buckets {
		if k -= b.n; k <= 0 {
			return w.leave(i)
		}
	}
	return ((second+settleSoon)/w.span + buckets) * w.span
}
