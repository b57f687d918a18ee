package lease

// Leases lets a test stand between a keeper and its database.
type Leases = leases

// Through makes the keeper talk to the database through a wrapper. Call it before Run.
func (k *Keeper) Through(wrap func(Leases) Leases) { k.leases = wrap(k.leases) }

// Held returns the terms that have not ended.
func (k *Keeper) Held() []*Term { return k.held() }
