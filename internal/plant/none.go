//go:build !plant

package plant

// Bugs of an ordinary build: none.
const (
	NewID       = false // a repeat of an unknown send goes out under a new WhatsApp id
	NoFence     = false // key-store writes and everything else that is fenced, claims of messages among it, don't check the lease
	NoLastGate  = false // dials and socket writes don't check the term, and no clock ends it
	AckFirst    = false // WhatsApp gets its ack of an inbound message before the transaction committed
	NoOnce      = false // an Idempotency-Key is looked up, but not claimed before the message is made
	ForgetEvent = false // a status is written without its event
	AnyAnswer   = false // a webhook counts as delivered whatever its receiver answered
	LoseHeld    = false // a ledger that is made anew leaves out what is reserved and has not left
	OldBucket   = false // a frame is counted when it was reserved and not when it left
	NoLaneCap   = false // lanes don't count frames themselves
	Overtake    = false // messages don't wait for earlier ones to the same person on other numbers
	NoRelease   = false // a worker that stops keeps its leases until they run out
	Overlap     = false // Signal sessions are stored whatever became of them since they were read
)

// CrashAt kills the process, as by kill -9, in the gap of this name, if "crash-NAME" is planted.
func CrashAt(string) {}

// Names lists the bugs that are planted in this process.
func Names() []string { return nil }
