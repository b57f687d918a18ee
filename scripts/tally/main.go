// Command tally reads what `go test -json` prints and counts the tests that were given a database through a pooler. It
// prints the output of tests that failed, and of packages that could not be built or broke off; the figure goes to a file.
// It ends with an error when a test failed, or none had such a database.
//
//	go test -json ./... | go run ./scripts/tally FILE
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// attribute is what internal/testkit gives a test whose database lies behind a pooler.
const attribute = "database-through"

type event struct {
	Action, Package, ImportPath, Test, Output, Key, Value string
	Elapsed                                               float64
}

type test struct{ pkg, name string }

type tally struct {
	output         map[test][]string
	through        map[test]bool
	passed, failed int
	broken         int // packages that failed although none of their tests did, or were not built
	failedIn       map[string]bool
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "tally: name the file for the figure")
		os.Exit(2)
	}
	t := &tally{output: map[test][]string{}, through: map[test]bool{}, failedIn: map[string]bool{}}
	if err := t.read(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "tally: %v\n", err)
		os.Exit(1)
	}
	figure := fmt.Sprintf("test-pgbouncer: %d tests on PostgreSQL through PgBouncer, %d passed of all; %d failed, %d packages broke off (goal 0, 0)\n",
		len(t.through), t.passed, t.failed, t.broken)
	if err := os.WriteFile(os.Args[1], []byte(figure), 0o600); err != nil {
		fmt.Fprintf(os.Stderr, "tally: %v\n", err)
		os.Exit(1)
	}
	if t.failed+t.broken > 0 || len(t.through) == 0 {
		os.Exit(1)
	}
}

func (t *tally) read(in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				_, _ = io.WriteString(out, line) // not one of its lines
			} else {
				t.take(e, out)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func (t *tally) take(e event, out io.Writer) {
	key := test{e.Package, e.Test}
	switch e.Action {
	case "attr":
		if e.Key == attribute {
			t.through[key] = true
		}
	case "output":
		t.output[key] = append(t.output[key], e.Output)
	case "build-output":
		_, _ = io.WriteString(out, e.Output)
	case "pass", "skip", "fail":
		switch {
		case e.Action == "fail" && e.Test != "":
			t.failed++
			t.failedIn[e.Package] = true
			_, _ = io.WriteString(out, strings.Join(t.output[key], ""))
		case e.Action == "fail":
			if !t.failedIn[e.Package] {
				t.broken++
				_, _ = io.WriteString(out, strings.Join(t.output[key], ""))
			}
			_, _ = fmt.Fprintf(out, "FAIL %s %.1fs\n", e.Package, e.Elapsed)
		case e.Test == "":
			_, _ = fmt.Fprintf(out, "ok   %s %.1fs\n", e.Package, e.Elapsed)
		case e.Action == "pass":
			t.passed++
		}
		delete(t.output, key)
	}
}
