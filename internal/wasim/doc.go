// Package wasim is a WhatsApp server and phones on the wire, so that the unmodified whatsmeow client (and any
// other client of the multi-device protocol) can pair, send and receive without WhatsApp.
//
// It owns the far side of the connection: the Noise handshake with an own certificate chain, pairing, keys,
// relay, the offline queue, one simulated phone (primary device) per number, faults, and the log of what went
// over the wire. It imports no other package of this module, and nothing of it may be reachable in a process
// that talks to WhatsApp: whoever sets the trust anchor of a client can play WhatsApp to it.
//
// # What it assumes
//
// Nothing here was compared with WhatsApp itself. A green run shows that a client and the simulator agree on
// the protocol as it was read from client sources. One assumption matters more than the others: the server
// never deduplicates, the receiving device does, by sender and message id. Phones mark what they recognised
// as Received.Duplicate.
//
// # The log is the oracle
//
// Every message stanza in both directions, receipts, acks, logins, closes and failures become an [Entry] with
// time, connection and, where the dial carried them in headers, worker, session, epoch and generation. Harnesses
// note lease changes in the same log with [Server.NoteLease] and can then see a frame of a stale owner. Stanzas
// of a connection that was replaced are logged as kind "ignored" and not handled.
//
// # Faults
//
// [Server.SetFault] sets what goes wrong for a session, a recipient, both or everyone, while things run. Of
// several scopes that match, the narrowest one that sets the field in question decides.
//
// # Enforcement
//
// [Server.SetEnforcement] limits a number as WhatsApp does: strangers are refused with 463 under a reach-out time-lock and
// with 475 beyond a cap on new chats, both told to the linked devices; people give trusted-contact tokens that must be shown;
// a throttled number is refused, or acknowledged and heard by nobody. Over HTTP it is PUT /sim/phones/{number}/enforcement.
//
// # Lifecycle and locks
//
// [New], then [Server.Serve] on any listener (TCP, or memnet inside a testing/synctest bubble), then
// [Server.Close], which ends every connection and joins every goroutine. All state is in memory and behind one
// mutex; nothing waits while holding it: outgoing stanzas go to unbounded queues with a writer per connection,
// and phones work in goroutines that live while there is work. So simulated time never stops because of this
// package. Lock order: a phone's signal lock, the server's, then those of connection, faults, log and store.
//
// Groups, history as a media blob and media come later; the media paths answer 404.
package wasim
