// Package ledger holds what runs out: how much each number may still send, and what projects,
// organizations and the fleet may still ask for. It picks the number and takes what the message
// needs in one step, so that two processes can never both have the last of it.
//
// It owns, per session, three sliding windows (never more than the budget in any 60 seconds, hour
// and day) and one for new chats, its health, and who is pinned to it; per project the backlog and
// the monthly quota; and token buckets. All of that can be rebuilt from SQL, and is when it was
// lost. It never says yes while it doesn't know: a ledger that lost its memory is cold, and refuses
// until it has been rebuilt.
//
// # A reservation's life
//
//	Reserve ─► outstanding ─┬─ Settle, Frames 1 ─► counted at the moment of the frame, until it leaves the window
//	                        ├─ Settle, Frames 0 ─► given back: the message ended before any frame
//	                        └─ nothing for Hold ─► counted as if its frame had left then
//
// What is outstanding counts in all windows however long its frame waits, so a lane that was held up
// can't burst. It belongs to no bucket of any window, so giving it back never touches what was
// counted since. What nobody settles (the process died between Reserve and its INSERT) lapses.
//
// # Windows
//
// A window is a list of buckets of a sixtieth of its length. A bucket counts until its last moment is
// older than the window, so a window is up to a sixtieth longer than its name and never shorter.
// Totals are kept beside the lists and may be too high, never too low: they are made exact where that
// could change the decision.
//
// Two implementations: [Memory] within one process, [Redis] between several. They decide alike.
package ledger
