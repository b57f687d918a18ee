// Package poolimport brings what an older gateway kept in MongoDB into the database: session pools
// become organizations, their API keys and sessions follow.
//
// It reads what mongoexport writes, plans first and writes after: Read and Plan change nothing, so a dry
// run says exactly what Apply will do. What is there already is left alone, so all of it can be done
// again. A document that can't be taken over is a problem of the plan, with its file and line, and never
// stops the others from being looked at.
//
// It reads no WhatsApp login: the old gateway kept those on its workers' disks. Sessions arrive as
// needs_pairing and keep their number and their age.
package poolimport
