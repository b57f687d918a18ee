//go:build plant

package plant

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Bugs of this process, as WAFLEET_PLANT names them.
var (
	NewID       = named("new-id")
	NoFence     = named("no-fence")
	NoLastGate  = named("no-last-gate")
	AckFirst    = named("ack-first")
	NoOnce      = named("no-once")
	ForgetEvent = named("forget-event")
)

var known []string

func named(name string) bool {
	known = append(known, name)
	return slices.Contains(Names(), name)
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
