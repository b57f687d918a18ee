package wa

// LimitInflight makes a socket read no further with so many stanzas unhandled.
func (o *Options) LimitInflight(n int) { o.maxInflight = n }

// Inflight is how many stanzas were read and not handled.
func (s *Socket) Inflight() int { return s.inflight.count() }
