package fleet

import "time"

// LimitKind is what WhatsApp keeps a number from.
type LimitKind string

// Kinds of limits.
const (
	// LimitStrangers is the reach-out time-lock: the number may not write to people who never wrote to it.
	LimitStrangers LimitKind = "strangers"
	// LimitNewChats is the cap on how many people it may write to first.
	LimitNewChats LimitKind = "new_chats"
)

// NumberLimit is what WhatsApp told of a limit on a number.
type NumberLimit struct {
	Kind   LimitKind
	Active bool      // it holds now; false: it was lifted, or is not reached yet
	Until  time.Time // when it ends; zero = not said
	Detail string    // WhatsApp's word: the kind of enforcement, or how far the cap is
	// Used and Quota of new chats in this cycle; Quota -1 = none, and both 0 where nothing was said.
	Used, Quota int
}
