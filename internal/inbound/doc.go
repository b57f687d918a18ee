// Package inbound turns what WhatsApp tells a session into rows: messages that people sent, and
// receipts for messages of ours.
//
// It owns the transaction between a stanza and its acknowledgement. Whoever calls it acknowledges the
// stanza only after it returned nil, so a method does one short transaction, fenced by the session's
// term, and nothing else that waits: no HTTP, no media, no look-up at WhatsApp. What it writes once
// (the unique index decides) it tells once: the message and its event commit together.
//
// Afterwards it nudges those who deliver and those who wait. A nudge may get lost; they also poll.
//
// Lock order: the fence (leases), then the conversation, then the event's stream.
package inbound
