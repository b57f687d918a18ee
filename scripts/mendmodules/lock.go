package main

import "sync"

// durableRWMutex stands in for sync.RWMutex in the mended copies. Waiting for a sync.Mutex does not count as durably
// blocked inside a testing/synctest bubble, so one goroutine that waits for the clock while it holds a mutex, and one
// that waits for the mutex, stop the clock for ever. Waiting on a sync.Cond is durable; the mutex inside is never held
// across anything that waits. The zero value is ready.
//
// Unlike sync.RWMutex a waiting writer does not hold new readers back, so a reader that locks twice does not deadlock
// here although it could there.
type durableRWMutex struct {
	mu      sync.Mutex
	changed *sync.Cond
	writing bool
	readers int
}

func (m *durableRWMutex) enter() {
	m.mu.Lock()
	if m.changed == nil {
		m.changed = sync.NewCond(&m.mu)
	}
}

func (m *durableRWMutex) Lock() {
	m.enter()
	defer m.mu.Unlock()
	for m.writing || m.readers > 0 {
		m.changed.Wait()
	}
	m.writing = true
}

func (m *durableRWMutex) TryLock() bool {
	m.enter()
	defer m.mu.Unlock()
	if m.writing || m.readers > 0 {
		return false
	}
	m.writing = true
	return true
}

func (m *durableRWMutex) Unlock() {
	m.enter()
	defer m.mu.Unlock()
	if !m.writing {
		panic("unlock of an unlocked mutex")
	}
	m.writing = false
	m.changed.Broadcast()
}

func (m *durableRWMutex) RLock() {
	m.enter()
	defer m.mu.Unlock()
	for m.writing {
		m.changed.Wait()
	}
	m.readers++
}

func (m *durableRWMutex) RUnlock() {
	m.enter()
	defer m.mu.Unlock()
	if m.readers == 0 {
		panic("read unlock of an unlocked mutex")
	}
	if m.readers--; m.readers == 0 {
		m.changed.Broadcast()
	}
}

// durableMutex stands in for sync.Mutex.
type durableMutex struct{ rw durableRWMutex }

func (m *durableMutex) Lock()         { m.rw.Lock() }
func (m *durableMutex) TryLock() bool { return m.rw.TryLock() }
func (m *durableMutex) Unlock()       { m.rw.Unlock() }
