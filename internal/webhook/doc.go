// Package webhook tells endpoints what happened: it takes deliveries from the outbox that
// store.AppendEvent fills, renders, signs and posts them, and writes down how it went.
//
// # What a receiver may rely on
//
// An event is delivered at least once, with the same webhook-id however often it is tried or
// replayed. Within one stream (a conversation, else a session) deliveries to one endpoint keep the
// order of seq and overlap never; a delivery that failed for StepAside while its endpoint took others
// steps aside so that the ones behind it go on, and is then, as a replay is, marked with the header
// Wafleet-Ordered: false. Any 2xx answer within the deadline is success, and its body is not looked
// at. 410 disables the endpoint. Everything else, redirects included, is tried again on the schedule of
// schedule.go, and after MaxTries or MaxAge becomes a dead letter that can be replayed. Bodies have at
// most MaxBody bytes: the longest text, in the longest form that JSON may give it, and some room.
//
// # What the gateway may rely on
//
// A tenant's URL never reaches anything but public addresses (guard.go): the address that is dialled
// is checked, there is no proxy, no redirect is followed, certificates are verified, and no more than
// MaxAnswer bytes are read. Endpoints of organization scope learn nothing of workers, keys or other
// numbers; secrets are in no log and no body.
//
// # Lifecycle
//
// Run claims until its context ends, then lets tries in flight settle for Grace, gives back what is
// left, and returns when all its goroutines have. A worker that dies leaves locks that run out, after
// which others deliver. Several workers share the work through the rows alone; each also polls, so a
// lost nudge costs Poll.
package webhook
