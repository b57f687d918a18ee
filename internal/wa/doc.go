// Package wa puts whatsmeow behind wafleet's own verbs. It owns one thing: a [Socket], which is one generation, one
// socket's life under a term. It connects once, pairs or logs in, sends, receives, and ends with a typed [End] that says
// why. It never dials a second time; whoever supervises it decides what comes next and makes a fresh Socket with a fresh
// device.
//
//	Run ──► dial ──► log in ──► Ready ──► (OfflineDone) ──► … ──► End
//	          └────► pair ────► Paired ──────────────────────────► End(paired)
//
// It must never: know SQL or a store (the device is handed in, already fenced), write a frame after the term ended,
// acknowledge a message whose handler did not succeed, call a whatsmeow getter from a hot path, hold a mutex across
// anything that waits, or write message contents and whole phone numbers to a log.
//
// whatsmeow swallows errors in several places. What makes it honest here:
//
//   - One context per generation. Whatever breaks the promise of a generation (a store error on receive, a handler that
//     fails or panics, a lost lease) cancels that context before whatsmeow sees the error, and under a cancelled context
//     whatsmeow neither acknowledges nor asks for a retry: WhatsApp delivers again to the next generation.
//   - Each send has a context of its own inside it, which the fenced store cancels on any error of this send. Whether
//     the sessions were saved decides between "surely nothing left" and "unknown".
//   - Every connection is wrapped: a write checks the term first and closes the connection once the term ended, and
//     each byte read is noted, which is what liveness is judged by.
//   - All reconnecting of whatsmeow is off. Each way in which it can get stuck has a timer in Run's loop.
//
// Lifecycle: Run starts what it needs and joins it before it returns: handlers, sends, the loop. After Run returned no
// handler is called and nothing can be written. Handlers run on whatsmeow's goroutines, in order for messages and
// receipts, and must be short: one transaction.
package wa
