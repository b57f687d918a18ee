// Package router picks the session that sends a message, and takes what the message needs of it.
//
//	rows: may the session send at all, and to this person?      ─► candidates, and a reason for each other
//	ledger: who has budget and health left, who is pinned here?  ─► one of them, reserved
//
// The rows of an organization are kept for two seconds at most, and not beyond a change of its
// configuration: the ledger checks the version they were read under in the same step in which it
// reserves. A refusal by rows is always made on fresh ones.
//
// It never sends and stores nothing but what the ledger does. What Route reserved is the caller's: it is
// stored with the message, or given back. The package also makes a lost ledger anew from rows (Rebuild).
package router
