// Package outbound takes messages in: it is the way from a request to a row that a lane will send.
//
//	key claimed ─► validated ─► routed ─► message inserted + key completed ─► nudge
//	(committed)                           (one transaction)
//
// The row is the truth. Once Accept returned a message it is committed, with its session and its
// WhatsApp id, and some lane will send it; the nudge only makes that soon. Work goes on when the
// client hangs up, and a client that asks again with the same Idempotency-Key gets the first answer:
//
//   - accepted and invalid requests (202, 403, 422) keep their answer under the key;
//   - everything else (no session now, database away) releases the key, so asking again tries again;
//   - a process that dies in between leaves a key that another request takes over after 30 s, and
//     never two messages: the key is completed in the message's own transaction, by its holder only.
//
// The package never sends, never repeats, and never changes a message that a lane may hold.
package outbound
