package simulate

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// step is one thing that goes wrong.
type step struct {
	At    time.Duration // since the storm began
	Actor string        // "session-1", "person-3", "worker-a", "api-b", "webhooks", "scheduler", "receiver", "bus"
	Fault string
	Arg   string // words separated by spaces, as faults_test.go reads them
}

func (s step) String() string {
	return strings.TrimRight(fmt.Sprintf("%-10s %-10s %-14s %s", s.At, s.Actor, s.Fault, s.Arg), " ")
}

// plan is everything that goes wrong in one run. The traffic follows from the seed as well.
type plan struct {
	Seed  uint64
	Steps []step
}

// String is the form that parsePlan reads.
func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d\n", p.Seed)
	for _, s := range p.Steps {
		fmt.Fprintln(&b, s)
	}
	return b.String()
}

// parsePlan reads a plan: a line with the seed, then a step on each line. Lines that begin with # say something to people.
func parsePlan(text string) (plan, error) {
	var p plan
	seeded := false
	for n, line := range strings.Split(text, "\n") {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || strings.HasPrefix(f[0], "#"):
		case f[0] == "seed" && len(f) == 2 && !seeded:
			var err error
			if p.Seed, err = strconv.ParseUint(f[1], 10, 64); err != nil {
				return p, fmt.Errorf("line %d: seed: %w", n+1, err)
			}
			seeded = true
		case len(f) >= 3 && seeded:
			at, err := time.ParseDuration(f[0])
			if err != nil {
				return p, fmt.Errorf("line %d: time: %w", n+1, err)
			}
			s := step{At: at, Actor: f[1], Fault: f[2], Arg: strings.Join(f[3:], " ")}
			if _, ok := faults[s.Fault]; !ok {
				return p, fmt.Errorf("line %d: there is no fault %q", n+1, s.Fault)
			}
			p.Steps = append(p.Steps, s)
		default:
			return p, fmt.Errorf("line %d: %q is neither a seed nor a step", n+1, line)
		}
	}
	if !seeded {
		return p, fmt.Errorf("a plan begins with its seed")
	}
	return p, nil
}

func readPlan(path string) (plan, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return plan{}, err
	}
	p, err := parsePlan(string(raw))
	if err != nil {
		return p, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// The cast of a run.
var (
	sessionNames = []string{"session-1", "session-2", "session-3"}
	personNames  = []string{"person-1", "person-2", "person-3", "person-4", "person-5", "person-6"}
	workerNames  = []string{"worker-a", "worker-b"}
	apiNames     = []string{"api-a", "api-b"}
)

// How dense and how long a storm is.
const (
	stormLength = 3 * time.Minute
	stepEvery   = 5 * time.Second // on average
)

// newPlan makes the plan of a seed. The first steps come when traffic is under way.
func newPlan(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 1))
	p := plan{Seed: seed}
	total := 0
	for _, f := range menu {
		total += f.weight
	}
	for at := 5 * time.Second; ; {
		at += time.Duration(r.Int64N(int64(2 * stepEvery))).Round(time.Millisecond)
		if at >= stormLength {
			break
		}
		pick := r.IntN(total)
		for _, f := range menu {
			if pick -= f.weight; pick >= 0 {
				continue
			}
			s := step{At: at, Actor: f.actors[r.IntN(len(f.actors))], Fault: f.fault}
			if f.arg != nil {
				s.Arg = f.arg(r)
			}
			p.Steps = append(p.Steps, s)
			break
		}
	}
	slices.SortStableFunc(p.Steps, func(a, b step) int { return cmp.Compare(a.At, b.At) })
	return p
}

// menu is what newPlan chooses from.
var menu = []struct {
	fault  string
	weight int
	actors []string
	arg    func(r *rand.Rand) string
}{
	{"drop", 6, sessionNames, nil},
	{"mute", 3, sessionNames, nil},
	{"mute-pings", 2, sessionNames, lasting(20, 60)},
	{"silent", 2, sessionNames, lasting(10, 60)},
	{"latency", 3, sessionNames, func(r *rand.Rand) string { return fmt.Sprintf("%dms %ds", 20+r.IntN(900), 10+r.IntN(40)) }},
	{"lost-ack", 6, sessionNames, counted(3)},
	{"close-before-ack", 6, sessionNames, counted(2)},
	{"repeat", 5, sessionNames, nil},
	{"replaced", 3, sessionNames, nil},
	{"refuse-dials", 3, sessionNames, lasting(5, 40)},
	{"refuse-login", 2, sessionNames, lasting(5, 40)},
	{"refuse", 5, sessionNames, func(r *rand.Rand) string {
		return fmt.Sprintf("%d %d", []int{403, 463, 479, 429}[r.IntN(4)], 1+r.IntN(2))
	}},
	{"refuse-keys", 4, sessionNames, func(r *rand.Rand) string {
		return fmt.Sprintf("%d %ds", []int{503, 429, 406, -1}[r.IntN(4)], 5+r.IntN(30))
	}},
	{"ask-retry", 5, personNames, nil},
	{"slow-keys", 3, sessionNames, func(r *rand.Rand) string { return fmt.Sprintf("%dms %ds", 200+r.IntN(6000), 10+r.IntN(40)) }},
	{"forget", 4, personNames, func(r *rand.Rand) string { return fmt.Sprint(r.IntN(len(sessionNames))) }},

	{"reset", 4, workerNames, nil},
	{"black-hole", 3, workerNames, lasting(5, 60)},
	{"freeze", 4, workerNames, lasting(5, 90)},
	{"freeze-at", 9, workerNames, stopped(workerStatements)},
	{"no-store", 4, workerNames, lasting(5, 60)},
	{"slow-store", 3, workerNames, slowed},
	{"store-error", 14, workerNames, trapped(workerStatements)},
	{"crash", 9, workerNames, fatal(workerStatements)},
	{"restart", 4, workerNames, lasting(0, 20)},

	{"freeze", 2, apiNames, lasting(3, 30)},
	{"freeze-at", 3, apiNames, stopped(apiStatements)},
	{"no-store", 2, apiNames, lasting(3, 30)},
	{"slow-store", 4, apiNames, slowed},
	{"store-error", 6, apiNames, trapped(apiStatements)},
	{"crash", 7, apiNames, fatal(apiStatements)},
	{"restart", 2, apiNames, lasting(0, 10)},
	{"lose-answers", 5, apiNames, counted(4)},

	{"freeze", 1, []string{"webhooks"}, lasting(5, 90)},
	{"freeze-at", 2, []string{"webhooks"}, stopped(webhookStatements)},
	{"no-store", 1, []string{"webhooks"}, lasting(3, 40)},
	{"store-error", 5, []string{"webhooks"}, trapped(webhookStatements)},
	{"crash", 4, []string{"webhooks"}, fatal(webhookStatements)},
	{"receiver-slow", 3, []string{"receiver"}, func(r *rand.Rand) string { return fmt.Sprintf("%ds %ds", 1+r.IntN(20), 5+r.IntN(40)) }},
	{"receiver-fails", 3, []string{"receiver"}, lasting(3, 60)},
	{"receiver-down", 3, []string{"receiver"}, lasting(3, 60)},
	{"lose-answers", 3, []string{"receiver"}, counted(4)},

	{"store-error", 2, []string{"scheduler"}, trapped([]string{"update:messages", "update:schedules", "any"})},
	{"crash", 1, []string{"scheduler"}, fatal([]string{"update:messages", "update:schedules", "any"})},
	{"no-nudges", 3, []string{"bus"}, lasting(5, 60)},
}

// Statements that traps are set on, by process. Traps count from the moment they are set.
var (
	workerStatements = []string{
		"update:messages", "insert:attempts", "update:attempts", "insert:events", "insert:deliveries", "insert:streams",
		"insert:inbound_messages", "insert:contacts", "select:leases", "update:leases", "select:messages", "select:sessions", "update:sessions",
		"insert:whatsmeow_sessions", "insert:whatsmeow_identity_keys", "delete:whatsmeow_pre_keys", "select:whatsmeow_sessions",
		"select:whatsmeow_pre_keys", "insert:whatsmeow_event_buffer", "update:whatsmeow_event_buffer", "insert:whatsmeow_lid_map",
		"select:whatsmeow_event_buffer", "any",
	}
	apiStatements = []string{
		"insert:idempotency_keys", "update:idempotency_keys", "delete:idempotency_keys", "select:idempotency_keys", "insert:messages",
		"insert:contacts", "select:sessions", "select:api_keys", "any",
	}
	webhookStatements = []string{"update:deliveries", "select:endpoints", "update:endpoints", "select:events", "select:messages", "any"}
)

func lasting(from, to int) func(*rand.Rand) string {
	return func(r *rand.Rand) string { return fmt.Sprintf("%ds", from+r.IntN(to-from+1)) }
}

func counted(most int) func(*rand.Rand) string {
	return func(r *rand.Rand) string { return strconv.Itoa(1 + r.IntN(most)) }
}

func slowed(r *rand.Rand) string { return fmt.Sprintf("%dms %ds", 1+r.IntN(120), 5+r.IntN(25)) }

func trapped(kinds []string) func(*rand.Rand) string {
	return func(r *rand.Rand) string {
		return fmt.Sprintf("%s %s %d", [2]string{"before", "after"}[r.IntN(2)], kinds[r.IntN(len(kinds))], 1+r.IntN(4))
	}
}

func stopped(kinds []string) func(*rand.Rand) string {
	where := trapped(kinds)
	return func(r *rand.Rand) string { return where(r) + fmt.Sprintf(" %ds", 5+r.IntN(85)) }
}

func fatal(kinds []string) func(*rand.Rand) string {
	where := trapped(kinds)
	return func(r *rand.Rand) string { return where(r) + fmt.Sprintf(" %ds", 1+r.IntN(45)) }
}
