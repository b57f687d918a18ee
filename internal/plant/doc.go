// Package plant holds the bugs that are planted on purpose, to prove that a check can fail.
//
// A check that asserts "never" is worth as much as the bug it would catch. Each constant here names a rule of the
// gateway; where it is true, the code beside the rule breaks it. In an ordinary build all of them are constants with
// the value false, so the compiler leaves nothing of them. Built with the tag "plant", those named in the environment
// variable WAFLEET_PLANT (a list separated by commas) are true for the life of the process:
//
//	WAFLEET_PLANT=no-fence go test -tags plant ./internal/simulate
//
// A binary with plants says so in its version and refuses to speak to the real WhatsApp.
package plant
