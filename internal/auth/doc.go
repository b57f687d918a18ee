// Package auth mints and checks the secrets that speak for somebody: API keys, and the tokens of
// pairing links.
//
// A key is 256 random bits behind a prefix that says what it is ("wfk_" an organization's, "wfa_" an
// admin's) and before a checksum, so a mistyped key is refused without a look at the database. It is
// shown once, when it is made. Two hashes are stored: an HMAC under LOOKUP_KEY finds the row, an
// argon2id hash proves the key. The HMAC alone already makes a stolen table useless without
// LOOKUP_KEY; argon2id at a small cost keeps it so if both are stolen.
//
// The token of a pairing link ("wfp_") is made and kept the same way. It travels in a URL, so it opens
// nothing but one page, until it expires or is revoked.
//
// Invariants:
//   - a key is never logged, stored or put into an error; its first characters (Prefix) are
//   - malformed, unknown and revoked keys get one and the same ErrUnauthorized
//   - a key counts as valid for at most 10 s after it was last checked against its row, and for at most
//     a second and the time of one look once it was revoked, also when the nudge that tells of it is lost;
//     10 s while the database can't be asked
//
// Lifecycle: New, then Run while the process serves; Run ends with its context. Without Run the
// cache still forgets after 10 s.
package auth
