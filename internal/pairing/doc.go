// Package pairing serves the page behind a pairing link: a client of the operator adds WhatsApp numbers
// to its organization by itself.
//
//	/pair/{token}                          the organization, the numbers added through this link, "Add a number"
//	/pair/{token}/numbers/{id}             one number being linked: QR with countdown, or the code to type; its end
//	/pair/{token}/numbers/{id}/code        the form for linking by phone number
//	…/events                               the live part of the page above it, as server-sent events
//	/assets/pair/{hash}/{file}             styles and scripts
//
// The token in the path is all that a visitor has. It may be forwarded, so the page shows only what its
// holder owns: the organization's label, and of the numbers that this link added the id, the state and
// the last four digits. It must never show a whole number, a worker, a number added by other means, or
// whether some number is known here before its phone has proven itself.
//
// Nothing is provisioned before somebody presses a button, and only POST changes anything. What a press
// makes is rows and nudges; a worker does the rest, and the page follows the rows: on a nudge, and once
// a second. All of it can be read and used without scripts: then the page loads itself again.
//
// Lifecycle: New, then Run while the process serves. Without Run the page follows once a second.
package pairing
