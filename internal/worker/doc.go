// Package worker owns sessions: it claims them by lease, keeps one socket for each, sends what is
// queued, makes durable what arrives, and hands them over.
//
// One supervisor goroutine per owned session owns all of that session's state; everything else
// talks to it through channels. Under it lives at most one generation: one socket and, once logged
// in, one lane that sends message after message.
//
//	Worker ── Keeper (leases, beats)
//	   │        └─ OnClaim ─► supervisor ── generation ── wa.Socket ── WhatsApp
//	   │                          │              ├─ lane: claim, send, record
//	   └─ watch: one look a second│              └─ inbox: commit, then WhatsApp gets its ack
//	      for all owned sessions ─┘
//
// Rules the package lives by:
//   - Nothing is dialled, sent or written under a term that has ended.
//   - One generation at a time; what an older one reports is dropped and counted.
//   - A session that was ever paired never pairs by itself, and a store that can't be read is never
//     taken for a lost login.
//   - A stop settles what is in flight, disconnects, and only then gives the lease away.
package worker
