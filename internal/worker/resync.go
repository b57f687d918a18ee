package worker

import (
	"sync"
	"time"
)

// resyncRest is how long a collection of app state is left alone after one full sync of it.
const resyncRest = time.Hour

// resyncs limits full syncs of app state per collection, over generations.
type resyncs struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func (r *resyncs) allow(collection string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, ok := r.last[collection]; ok && now.Sub(at) < resyncRest {
		return false
	}
	if r.last == nil {
		r.last = map[string]time.Time{}
	}
	r.last[collection] = now
	return true
}
