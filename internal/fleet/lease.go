package fleet

// Term is the right to act for one session: this owner, under this epoch. It is a plain value that
// statements carry as their fence; whether it still holds is decided by the leases row, and locally
// by lease.Term.
type Term struct {
	SessionID SessionID
	Owner     string // WORKER_ID plus a boot nonce
	Epoch     int64  // goes up by one with every claim
}
