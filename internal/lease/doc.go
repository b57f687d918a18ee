// Package lease keeps this process's right to act for its sessions.
//
// It owns claiming, renewing and releasing rows of the leases table, and what this process may
// believe about them between two answers of the database. It must never open a socket, write
// anything else, or decide what a session does.
//
// # A term
//
//	          claim                    beat answered: still there
//	(no row) ───────► trusted ──────────────┐
//	                     ▲                  │ trust: start of that attempt + TTL − margin
//	                     └──────────────────┘
//	                     │
//	   ┌─────────────────┼──────────────────────┬───────────────────┐
//	   ▼                 ▼                      ▼                   ▼
//	lost: an         lost: trust ran        lost: a fenced       released: we gave
//	answered beat    out before a beat      write found the      it away
//	left it out      was answered           row gone
//
// A term is (session, owner, epoch), and the owner has a nonce of this start in it, so a restarted
// process never mistakes its old row for its own. An ended term is never revived, even if its row
// still carries its epoch: something has already been told that it is over.
//
// # The trust window
//
// The database's clock decides who owns a session: a row expires TTL after the statement that wrote
// it. This process only knows when it began the attempt, which was earlier, so it trusts a term
// until attempt + TTL − margin on its monotonic clock, and ends it by itself then. The margin pays
// for clocks that run apart and for what is in flight when the window closes.
//
//	attempt begins      statement runs                     trust ends      row expires
//	├───────────────────┼──────────────────────────────────┤ ◄── margin ──►│
//	└────────────────────────── TTL ───────────────────────────────────────(from here at the latest)
//
// The wall clock may shorten trust and never lengthens it: a machine that was suspended has lost
// time that its monotonic clock does not show.
//
// # Beats
//
// One statement renews all terms. One that fails or times out says nothing, and is tried again at
// once until one is answered; only an answer can say "lost". A process that gets none loses all its
// terms by itself, and every socket closes with them.
//
// # Lifecycle
//
// NewKeeper, then Run once. StopClaiming, Release and ReleaseAll may be called from anywhere while
// Run runs; Run's end ends every term that was not released.
package lease
