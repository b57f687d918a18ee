// Package wastore is whatsmeow's SQL store behind the fence: every write carries the term under
// which it is made, in the same statement or transaction, and a write of a term that is over
// changes nothing and returns fleet.ErrLeaseLost after the term's context was cancelled. It also
// runs whatsmeow's own upgrade, so that wa knows no SQL and store knows no whatsmeow.
//
// # Errors cancel before they return
//
// whatsmeow swallows store errors: on a send it skips the device it could not encrypt for and the
// server acknowledges a message that reaches nobody, on a receive it acknowledges what it could not
// store. It is honest only under a cancelled context. So whatever goes wrong in a read or a write,
// other than a plain miss, first cancels what it happened under, and then is returned:
//
//	the term   when the lease row is not ours (FenceOptions.Lost), for every session store of it
//	the send   inside BeginSend: one message is tried again, the socket lives on
//	the generation   otherwise, inside Bind: the socket ends, WhatsApp delivers again
//
// # Lifecycle
//
// One Container per process; one Fence per term; a fresh Device per generation. All devices of one
// fence share one store object and its caches, so a late write of an old generation can't hide from
// a new one. The caches are valid because only the term's owner writes these rows: nothing of them
// outlives the fence, and what a transaction changed is believed only after its commit.
//
// # Signal sessions
//
// A send reads the sessions it encrypts with, may wait for pre-keys, and stores them with its claim. What changes one of them
// meanwhile makes the claim fail with ErrOverlap, before anything of it is asked for; see ratchet.
//
// # Invariants
//
//   - Every method asks Valid first, reads too.
//   - The fence's row is locked FOR SHARE before any other row, and the same transaction never
//     writes to leases.
//   - No statement runs inside a transaction that somebody else began: whatsmeow waits for the
//     network inside its calls, and a transaction that waits with it starves the pool.
//   - No mutex is held while the database works.
//   - LID mappings are facts about WhatsApp and belong to no session: their writes carry no fence.
package wastore
