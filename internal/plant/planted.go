//go:build plant

package plant

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
)

// Bugs of this process, as WAFLEET_PLANT names them.
var (
	NewID       = named("new-id")
	NoFence     = named("no-fence")
	NoLastGate  = named("no-last-gate")
	AckFirst    = named("ack-first")
	NoOnce      = named("no-once")
	ForgetEvent = named("forget-event")
	AnyAnswer   = named("any-answer")
	LoseHeld    = named("lose-held")
	OldBucket   = named("old-bucket")
	NoLaneCap   = named("no-lane-cap")
	Overtake    = named("overtake")
	NoRelease   = named("no-release")
	Overlap     = named("overlap")
)

var known []string

func named(name string) bool {
	known = append(known, name)
	return slices.Contains(Names(), name)
}

// gaps are the places where a process can be made to die: between the steps that accept a message under an
// Idempotency-Key.
var gaps = map[string]bool{
	"claimed":   named("crash-claimed"),
	"routed":    named("crash-routed"),
	"inserted":  named("crash-inserted"),
	"committed": named("crash-committed"),
}

// CrashAt kills the process, as by kill -9, in the gap of this name, if "crash-NAME" is planted.
func CrashAt(gap string) {
	if gaps[gap] {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// Names lists the bugs that are planted in this process.
func Names() []string {
	list := os.Getenv("WAFLEET_PLANT")
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

func init() {
	for _, name := range Names() {
		if !slices.Contains(known, name) {
			fmt.Fprintf(os.Stderr, "WAFLEET_PLANT names %q; there are: %s\n", name, strings.Join(known, ", "))
			os.Exit(2)
		}
	}
}
