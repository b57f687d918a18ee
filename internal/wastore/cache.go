package wastore

import (
	"cmp"
	"sync"
)

// cacheMax bounds a cache that says nothing else. A full one starts over: it is filled again by use.
const cacheMax = 4096

// cache remembers rows that only the term's owner writes. It never holds what is not committed:
//
//   - a write takes the key out before it starts (change) and puts the new value in after its
//     commit (changed); one that rolls back puts nothing in;
//   - a value read from the database is put in (fill) only if nothing was changed since the read
//     began, because the read may have seen the row as it was before.
type cache[K comparable, V any] struct {
	max     int // 0 = cacheMax; set before the first use
	mu      sync.Mutex
	version uint64 // goes up with every change, begun or committed
	entries map[K]V
}

func (c *cache[K, V]) get(k K) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.entries[k]
	return v, ok
}

// reading returns the version that a read starts under.
func (c *cache[K, V]) reading() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version
}

func (c *cache[K, V]) fill(k K, v V, version uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if version == c.version {
		c.put(k, v)
	}
}

// change takes keys out before they are written and returns the version of the change.
func (c *cache[K, V]) change(ks ...K) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range ks {
		delete(c.entries, k)
	}
	c.version++
	return c.version
}

// changed puts in what was committed, unless another change came between.
func (c *cache[K, V]) changed(k K, v V, version uint64) { c.allChanged(map[K]V{k: v}, version) }

// allChanged is changed for what one change wrote.
func (c *cache[K, V]) allChanged(values map[K]V, version uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, v := range values {
		if version == c.version {
			c.put(k, v)
		} else {
			delete(c.entries, k)
		}
	}
	c.version++
}

// clear takes everything out: before a change of many rows, and again after its commit.
func (c *cache[K, V]) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries = nil
	c.version++
}

func (c *cache[K, V]) put(k K, v V) {
	if c.entries == nil || len(c.entries) >= cmp.Or(c.max, cacheMax) {
		c.entries = make(map[K]V)
	}
	c.entries[k] = v
}
