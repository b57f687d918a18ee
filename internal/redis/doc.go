// Package redis connects to Redis: it reads its URLs, dials a server until it is there, and tells
// what passes from what does not. What is said on the connection is the business of its users, the
// bus and the ledger. A Conn lives from Open to Close.
package redis
