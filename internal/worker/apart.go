package worker

// apart runs fn on a goroutine of its own and waits for it. A goroutine's stack grows with the deepest call it made, tens
// of KiB in the database's code, and shrinks by half at a garbage collection; an idle process has few of those. So what
// rests most of the time lets others make its deep calls, or a thousand idle sessions keep three such stacks each.
func apart[T any](fn func() T) T {
	done := make(chan T, 1)
	go func() { done <- fn() }()
	return <-done
}
