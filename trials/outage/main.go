// Command outage takes wafleet's parts away while everybody talks: PostgreSQL is restarted, crashes, refuses connections
// and lets every connection wait; Redis is restarted, crashes, freezes and is away at a start; the disk under SQLite is
// full. Nothing may be lost, doubled or logged out, callers hear 503 with Retry-After and nothing else, and when the
// part is back everything settles. The same audit must find what a planted bug loses.
//
//	PARTS="postgres redis disk plant" SESSIONS=6 go run ./trials/outage
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

func main() {
	run := outage
	if os.Getenv(smallDiskEnv) != "" {
		run = onSmallDisk
	}
	cluster.Main("outage", run)
}

const (
	pause  = 150 * time.Millisecond // between two texts of one number in one direction
	settle = 8 * time.Minute        // an outcome that is unknown twice takes five minutes
)

// parts of a run, in their order.
var parts = []string{"postgres", "redis", "disk", "plant"}

type options struct {
	parts    []string
	sessions int
	dir      string
	binary   string
}

func readOptions() (options, error) {
	o := options{parts: parts, sessions: 6}
	if text := os.Getenv("SESSIONS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 100 {
			return o, fmt.Errorf("SESSIONS=%q is not a number from 1 to 100", text)
		}
		o.sessions = n
	}
	if text := os.Getenv("PARTS"); text != "" {
		o.parts = strings.Fields(text)
		for _, part := range o.parts {
			if !slices.Contains(parts, part) {
				return o, fmt.Errorf("PARTS=%q: there is no part %q, only %v", text, part, parts)
			}
		}
	}
	return o, nil
}

func outage(ctx context.Context) error {
	o, err := readOptions()
	if err != nil {
		return err
	}
	var remove func()
	if o.dir, remove, err = cluster.Folder("outage"); err != nil {
		return err
	}
	if o.binary, err = cluster.Build(ctx, o.dir); err != nil {
		return err
	}
	var sum verdict
	for _, step := range []struct {
		part string
		run  func(context.Context, options, *verdict) error
	}{{"postgres", withoutPostgres}, {"redis", withoutRedis}, {"disk", withoutRoom}, {"plant", planted}} {
		if !slices.Contains(o.parts, step.part) {
			continue
		}
		fmt.Printf("== %s\n", step.part)
		if err := step.run(ctx, o, &sum); err != nil {
			return fmt.Errorf("%s: %w (logs in %s)", step.part, err, o.dir)
		}
	}
	if !sum.good() {
		fmt.Printf("logs are in %s\n%s\n", o.dir, &sum)
		return cluster.ErrShort
	}
	remove()
	fmt.Println(&sum)
	return nil
}
