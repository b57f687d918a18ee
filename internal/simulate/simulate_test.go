package simulate

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/cryptotest"
	"time"

	"github.com/wafleet/wafleet/internal/testkit"
)

var (
	firstSeed = flag.Uint64("from", 1, "first seed of TestSeeds")
	seedCount = flag.Int("seeds", 0, "seeds of TestSeeds; 0 means 20, or 2 with the race detector")
	planFile  = flag.String("plan", "", "file with a plan for TestKeptPlans to run in place of the kept ones")
	repeats   = flag.Int("repeat", 1, "how often TestKeptPlans runs the plan of -plan")
	shrinkTo  = flag.Bool("shrink", true, "shrink the plan of a seed that fails")
	stopAt1   = flag.Bool("first", false, "stop TestSeeds at the first violation")
	showLog   = flag.Bool("log", false, "print what the processes log")
)

// stuckAfter is how long, in real time, fake time may stand still.
const stuckAfter = time.Minute

// simulated runs one plan under the watchdog, with randomness that follows from its seed.
func simulated(t *testing.T, p plan) outcome {
	t.Helper()
	var progress atomic.Int64
	stop := testkit.Watchdog(t, stuckAfter, &progress)
	defer stop()
	cryptotest.SetGlobalRandom(t, p.Seed)
	return run(t, p, &progress)
}

func TestSeeds(t *testing.T) {
	n := *seedCount
	if n == 0 {
		n = 20
		if raceDetector {
			n = 2
		}
	}
	bad, messages, inbound := 0, 0, 0
	fired, seen := map[string]int{}, map[string]int{}
	for seed := *firstSeed; seed < *firstSeed+uint64(n); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			p := newPlan(seed)
			out := simulated(t, p)
			for k, v := range out.fired {
				fired[k] += v
			}
			for k, v := range out.seen {
				seen[k] += v
			}
			messages, inbound = messages+out.messages, inbound+out.inbound
			if len(out.problems) > 0 {
				bad++
				report(t, p, out)
			}
		})
		if bad > 0 && *stopAt1 {
			return
		}
	}
	t.Logf("%d seeds from %d: %d with violations; %d messages out, %d in; faults %v", n, *firstSeed, bad, messages, inbound, fired)
	if n < 20 {
		return
	}
	for _, kind := range slices.Concat(workerStatements, apiStatements, webhookStatements) {
		if kind != "any" && seen[kind] == 0 {
			t.Errorf("no process ever ran a statement of the kind %q: correct the list of statements that plans choose from", kind)
		}
	}
	for _, m := range menu {
		if fired[m.fault] == 0 {
			t.Errorf("the fault %q never took place in %d seeds", m.fault, n)
		}
	}
	t.Logf("statements: %v", seen)
}

// report prints what is wrong, the plan, and how to run it again; then it looks for a smaller one.
func report(t *testing.T, p plan, out outcome) {
	t.Helper()
	for _, problem := range out.problems {
		t.Errorf("seed %d: violation: %s", p.Seed, problem)
	}
	t.Logf("again: make simulate SEEDS=1 FROM=%d", p.Seed)
	if *shrinkTo {
		p = shrink(t, p)
	}
	path := filepath.Join(os.TempDir(), fmt.Sprintf("wafleet-plan-%d.txt", p.Seed))
	if err := os.WriteFile(path, []byte(p.String()), 0o600); err != nil {
		t.Errorf("plan not written: %v", err)
	}
	t.Logf("the plan is in %s:\n%s", path, p)
}

// shrinkRuns bounds how often a failing plan is tried with fewer steps.
const shrinkRuns = 40

// shrink leaves out steps while what is left still fails, larger parts first.
func shrink(t *testing.T, p plan) plan {
	t.Helper()
	runs := 0
	for part := max(len(p.Steps)/2, 1); part >= 1 && len(p.Steps) > 0; part /= 2 {
		for at := 0; at < len(p.Steps); {
			if runs++; runs > shrinkRuns {
				return p
			}
			less := plan{Seed: p.Seed, Steps: slices.Concat(p.Steps[:at], p.Steps[min(at+part, len(p.Steps)):])}
			if len(simulated(t, less).problems) > 0 {
				p = less
			} else {
				at += part
			}
		}
	}
	return p
}

// TestKeptPlans runs the plans that once found something, or the one of -plan.
func TestKeptPlans(t *testing.T) {
	paths, err := filepath.Glob("testdata/plans/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	if *planFile != "" {
		paths = slices.Repeat([]string{*planFile}, *repeats)
	}
	if raceDetector && *planFile == "" {
		paths = paths[:min(len(paths), 1)]
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			p, err := readPlan(path)
			if err != nil {
				t.Fatal(err)
			}
			out := simulated(t, p)
			for _, problem := range out.problems {
				t.Errorf("violation: %s", problem)
			}
			t.Logf("%d messages out, %d in; faults %v", out.messages, out.inbound, out.fired)
		})
	}
}

func TestAPlanIsTheSameAfterPrintingAndReading(t *testing.T) {
	for seed := range uint64(50) {
		p := newPlan(seed)
		got, err := parsePlan(p.String())
		if err != nil {
			t.Fatalf("parsePlan(newPlan(%d).String()) = %v", seed, err)
		}
		if got.String() != p.String() || len(got.Steps) != len(p.Steps) {
			t.Errorf("parsePlan(%s) = %s, want the same", p, got)
		}
		if again := newPlan(seed); again.String() != p.String() {
			t.Errorf("newPlan(%d) is not the same twice", seed)
		}
	}
}

func TestEveryFaultIsOnTheMenu(t *testing.T) {
	planned := map[string]bool{}
	for _, m := range menu {
		planned[m.fault] = true
		if faults[m.fault] == nil {
			t.Errorf("the menu has %q, which is no fault", m.fault)
		}
	}
	for name := range faults {
		if !planned[name] {
			t.Errorf("the fault %q is never planned", name)
		}
	}
}
