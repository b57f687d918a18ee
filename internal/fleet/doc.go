// Package fleet is the vocabulary of wafleet: the words of the domain, their
// identifiers, and the pure rules that hold between them.
//
// It imports only the standard library, does no I/O and keeps no state, so
// every other package may use it and it can be understood alone. One word
// stands for one thing here, in SQL, in the API, in logs and in metrics:
//
//	organization  the tenant an API key speaks for
//	project       a slice of an organization with its own limits
//	session       one WhatsApp number linked as a companion device
//	worker        a process that owns sessions by lease and holds their sockets
//	lease, term   the row that says who owns a session; the right under it
//	generation    one socket's life under a term
//	message       one outbound send and its whole life
//	command       anything else a session must do
//	event         a thing that happened and that somebody may want to be told
//	endpoint      a webhook URL; delivery: one event owed to one endpoint
//	conversation  what a consumer sees of an organization and one person
package fleet
