// Package httpapi is the public HTTP surface: JSON in, JSON out, and the OpenAPI document that says so.
//
// A request passes these doors, outermost first:
//
//	request id, recovery, access log, metrics     middleware.go
//	text of path and query, no key in the URL     door.go
//	who is it: API key → principal                authenticate.go
//	body: size, type, JSON, UTF-8, NUL            body.go
//	route → huma: unknown fields, types, ranges   api.go
//	handler → store, auth, outbound               the other files
//
// Every refusal, from whichever door, is an RFC 9457 problem with a stable code (problem.go, one
// table). Nothing is written before the last door. What an error says inside never reaches a client;
// it goes into the log line of that request, under the request id that the client was given.
//
// The package decides nothing about sending: it must not talk to WhatsApp, hold sessions or build
// SQL. Another organization's rows don't exist here: their ids are answered with 404. GET changes
// nothing. Keys and secrets are shown once, in the answer that makes them, and never logged.
package httpapi
