// Command sessions measures what an idle connected session costs: resident memory and goroutines of the gateway with 100
// and 1,000 sessions, beside bare whatsmeow with the same sessions, the same keys and the same settings of the Go
// runtime, and beside a client of another make with 20.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
	"github.com/wafleet/wafleet/trials/sides"
)

// The goals.
const (
	memoryGoal    = 1.3
	goroutineGoal = 7.0
)

func main() { cluster.Main("bench-sessions", run) }

// options are read from the environment, as make gives them.
type options struct {
	sessions []int
	rest     time.Duration // from the last login to the measuring
}

func readOptions() (o options, err error) {
	o = options{sessions: []int{100, 1000}, rest: time.Minute}
	if text := os.Getenv("SESSIONS"); text != "" {
		o.sessions = nil
		for word := range strings.FieldsSeq(text) {
			n, err := strconv.Atoi(word)
			if err != nil || n < 1 || len(o.sessions) > 0 && n <= o.sessions[len(o.sessions)-1] {
				return o, fmt.Errorf("SESSIONS=%q: want numbers that grow", text)
			}
			o.sessions = append(o.sessions, n)
		}
	}
	if text := os.Getenv("REST"); text != "" {
		if o.rest, err = time.ParseDuration(text); err != nil {
			return o, fmt.Errorf("REST: %w", err)
		}
	}
	return o, nil
}

func run(ctx context.Context) error {
	o, err := readOptions()
	if err != nil {
		return err
	}
	dir, remove, err := cluster.Folder("sessions")
	if err != nil {
		return err
	}
	defer remove()
	b, err := sides.Open(ctx, dir, fmt.Sprintf("WORKER_MAX_SESSIONS=%d", o.sessions[len(o.sessions)-1]))
	if err != nil {
		return err
	}
	defer b.Close()
	fmt.Printf("  %-16s %8s %10s %10s %10s %10s %14s %10s\n", "process", "sessions", "RSS MiB", "anonymous", "heap", "stacks", "KiB/session", "goroutines")
	base := map[string]sides.Vitals{}
	var memory, goroutines []string
	short := false
	for _, n := range append([]int{0}, o.sessions...) {
		if n > 0 {
			if err := b.Pair(ctx, n); err != nil {
				return err
			}
		}
		per := map[string]float64{}
		for _, side := range []struct {
			name  string
			start func(context.Context) (*sides.Side, error)
		}{{"bare whatsmeow", b.StartBare}, {"wafleet up", b.StartGateway}} {
			v, err := measure(ctx, b, side.start, o.rest)
			if err != nil {
				return fmt.Errorf("%s with %d sessions: %w", side.name, n, err)
			}
			if n == 0 {
				base[side.name] = v
				row(side.name, n, v, 0, 0)
				continue
			}
			per[side.name] = float64(v.RSS-base[side.name].RSS) / float64(n)
			each := float64(v.Goroutines-base[side.name].Goroutines) / float64(n)
			row(side.name, n, v, per[side.name], each)
			if side.name == "wafleet up" {
				goroutines = append(goroutines, fmt.Sprintf("%.1f", each))
				short = short || each > goroutineGoal+0.05 // what the process itself has comes and goes
			}
		}
		if n > 0 {
			ratio := per["wafleet up"] / per["bare whatsmeow"]
			memory = append(memory, fmt.Sprintf("%d sessions %.0f KiB each, %.2f×", n, per["wafleet up"]/1024, ratio))
			short = short || ratio > memoryGoal
		}
	}
	if err := otherMake(ctx, b.Simulator(), o.rest); err != nil {
		fmt.Printf("  %-16s not measured: %v\n", "Baileys", err)
	}
	fmt.Printf("bench-sessions: memory per idle session beside bare: %s (goal ≤ %.1f×); goroutines per session %s (goal ≤ %.0f)\n",
		strings.Join(memory, ", "), memoryGoal, strings.Join(goroutines, ", "), goroutineGoal)
	if short {
		return cluster.ErrShort
	}
	return nil
}

func row(name string, n int, v sides.Vitals, each, goroutines float64) {
	fmt.Printf("  %-16s %8d %10.1f %10.1f %10.1f %10.1f %14.0f %10.1f\n", name, n, mib(v.RSS), mib(v.Anonymous), mib(v.Heap), mib(v.Stack), each/1024, goroutines)
}

// measure starts a side, lets its sessions rest, looks, and stops it.
func measure(ctx context.Context, b *sides.Bench, start func(context.Context) (*sides.Side, error), rest time.Duration) (v sides.Vitals, err error) {
	s, err := start(ctx)
	if err != nil {
		return v, err
	}
	if err := b.AwaitOnline(ctx, 5*time.Minute); err != nil {
		return v, err
	}
	if err := cluster.Pause(ctx, rest); err != nil {
		return v, err
	}
	if v, err = s.Vitals(ctx); err != nil {
		return v, err
	}
	return v, s.End()
}

// otherMake pairs 20 sessions of Baileys in one process with the simulator and prints what they take.
func otherMake(ctx context.Context, simulator string, rest time.Duration) error {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("find the module's folder: %w", err)
	}
	dir := filepath.Join(strings.TrimSpace(string(root)), "interop")
	install := exec.CommandContext(ctx, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci: %w %s", err, out)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute+rest)
	defer cancel()
	node := exec.CommandContext(ctx, "node", "idle.mjs", simulator, "20", strconv.Itoa(int(rest.Seconds()))) //nolint:gosec // a script of ours
	node.Dir = dir
	out, err := node.Output()
	if err != nil {
		return fmt.Errorf("idle.mjs: %w", err)
	}
	var got struct {
		Sessions  int
		Base, RSS int64
	}
	if err := json.Unmarshal(out, &got); err != nil {
		return fmt.Errorf("idle.mjs: %w", err)
	}
	fmt.Printf("  %-16s %8d %10.1f\n", "Baileys", 0, mib(got.Base))
	fmt.Printf("  %-16s %8d %10.1f %10s %10s %10s %14.0f\n", "Baileys", got.Sessions, mib(got.RSS), "", "", "", float64(got.RSS-got.Base)/float64(got.Sessions)/1024)
	return nil
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }
