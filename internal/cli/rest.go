package cli

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// The runtime lets a heap grow to twice what lives before it collects, and keeps most pages of what it collected. That is
// right under load. A process at rest allocates so little that it would stay for minutes at the size of its last burst, and
// then drift to twice what lives, as if a thousand idle sessions needed that memory. So it looks now and then, and gives
// back what it doesn't use.
const (
	restLook  = 10 * time.Second
	restShare = 10      // a tenth of what lives, as garbage and free pages, is worth a collection
	restLeast = 1 << 20 // bytes; less never is
)

// tendHeap runs until ctx ends. Who sets GOGC has decided otherwise, and it leaves the heap alone.
func tendHeap(ctx context.Context) error {
	t := time.NewTicker(restLook)
	defer t.Stop()
	for before := readHeap(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		now := readHeap()
		if now.rests(before) && now.wastes() {
			debug.FreeOSMemory()
			now = readHeap()
		}
		before = now
	}
}

// heap is what the runtime says of its memory, in bytes.
type heap struct {
	percent   uint64 // GOGC
	allocated uint64 // since the process began
	live      uint64 // at the end of the last collection
	objects   uint64 // in use, garbage included
	free      uint64 // used by nobody and not given back
}

func readHeap() heap {
	samples := []metrics.Sample{
		{Name: "/gc/gogc:percent"},
		{Name: "/gc/heap/allocs:bytes"},
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	n := func(i int) uint64 { return samples[i].Value.Uint64() }
	return heap{n(0), n(1), n(2), n(3), n(4)}
}

// rests says that the runtime's own rule would not have collected between two looks.
func (h heap) rests(before heap) bool {
	return h.percent == 100 && h.allocated-before.allocated < h.live
}

// wastes says that a collection is worth it.
func (h heap) wastes() bool { return h.objects+h.free > h.live+max(h.live/restShare, restLeast) }
