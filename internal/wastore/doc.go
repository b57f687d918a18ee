// Package wastore is whatsmeow's SQL store behind the fence: every write carries the term under
// which it is made, in the same statement or transaction, and a write of a term that is over
// changes nothing and returns fleet.ErrLeaseLost after cancelling the term's context.
//
// whatsmeow swallows store errors in several places, so an error alone protects nothing: the
// context must be cancelled before the error is returned. The package also runs whatsmeow's own
// upgrade, so that wa knows no SQL and store knows no whatsmeow.
package wastore
