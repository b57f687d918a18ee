package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	for _, p := range packages(t) {
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command "
		}
		if len(p.GoFiles) > 0 && !strings.HasPrefix(p.Doc, want) {
			t.Errorf("%s has the doc comment %q, want one that begins with %q", p.ImportPath, p.Doc, want)
		}
	}
}

// bags are names that say nothing about what is inside, so everything ends up there.
var bags = []string{"util", "utils", "common", "helper", "helpers", "model", "models", "types", "misc", "shared", "base", "lib"}

func TestNoPackageIsABag(t *testing.T) {
	for _, p := range packages(t) {
		if slices.Contains(bags, p.Name) || slices.Contains(bags, filepath.Base(p.ImportPath)) {
			t.Errorf("%s: a package is named after what it does", p.ImportPath)
		}
	}
}

func TestNobodySleepsOnRealTime(t *testing.T) {
	for _, p := range packages(t) {
		for _, name := range slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles) {
			path := filepath.Join(p.Dir, name)
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, problem := range sleeps(path, source) {
				t.Error(problem)
			}
		}
	}
}

// sleeps finds calls of time.Sleep. They are allowed in test code that says it runs inside a bubble, by importing
// testing/synctest: there a sleep takes no time and is the way to let the clock run.
func sleeps(path string, source []byte) (problems []string) {
	fileSet := token.NewFileSet()
	file, err := parser.ParseFile(fileSet, path, source, parser.SkipObjectResolution)
	if err != nil {
		return []string{err.Error()}
	}
	timeName := ""
	for _, spec := range file.Imports {
		switch imported, _ := strconv.Unquote(spec.Path.Value); imported {
		case "testing/synctest":
			return nil
		case "time":
			timeName = "time"
			if spec.Name != nil {
				timeName = spec.Name.Name
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if selector, ok := n.(*ast.SelectorExpr); ok && selector.Sel.Name == "Sleep" {
			if pkg, ok := selector.X.(*ast.Ident); ok && pkg.Name == timeName {
				problems = append(problems, fmt.Sprintf("%s: time.Sleep: wait for the event, or use a timer beside ctx.Done()", fileSet.Position(selector.Pos())))
			}
		}
		return true
	})
	return problems
}

func TestTheSleepTestSeesSleeps(t *testing.T) {
	tests := []struct {
		name, source string
		want         int
	}{
		{"a sleep on real time", "package p\nimport \"time\"\nfunc f() { time.Sleep(1) }", 1},
		{"a sleep under another name", "package p\nimport clock \"time\"\nvar f = clock.Sleep", 1},
		{"a sleep in a bubble", "package p\nimport (\"time\"; \"testing/synctest\")\nfunc f() { time.Sleep(1); synctest.Wait() }", 0},
		{"a method of the same name", "package p\nimport \"time\"\nfunc f(x interface{ Sleep(time.Duration) }) { x.Sleep(1) }", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := sleeps("p.go", []byte(tt.source)); len(got) != tt.want {
				t.Errorf("sleeps = %q, want %d problems", got, tt.want)
			}
		})
	}
}

var (
	adrName  = regexp.MustCompile(`^(\d{4})-[a-z0-9]+(-[a-z0-9]+)*\.md$`)
	adrTitle = regexp.MustCompile(`^# (\d+)\. \S`)
)

func TestDecisionRecordsAreNumberedAndShort(t *testing.T) {
	entries, err := os.ReadDir(filepath.Join(root(t), "docs", "adr"))
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) == 0 {
		t.Fatal("docs/adr is empty")
	}
	for i, entry := range entries {
		match := adrName.FindStringSubmatch(entry.Name())
		if match == nil {
			t.Errorf("docs/adr/%s: want a name like 0001-what-was-decided.md", entry.Name())
			continue
		}
		if want := fmt.Sprintf("%04d", i+1); match[1] != want {
			t.Errorf("docs/adr/%s has the number %s, want %s: no gaps, no doubles", entry.Name(), match[1], want)
		}
		data, err := os.ReadFile(filepath.Join(root(t), "docs", "adr", entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		title := adrTitle.FindStringSubmatch(text)
		if number, _ := strconv.Atoi(match[1]); title == nil || title[1] != strconv.Itoa(number) {
			t.Errorf("docs/adr/%s: want a first line like %q", entry.Name(), fmt.Sprintf("# %d. What was decided", number))
		}
		var headings []string
		for line := range strings.Lines(text) {
			if heading, ok := strings.CutPrefix(strings.TrimSpace(line), "## "); ok {
				headings = append(headings, heading)
			}
		}
		if diff := cmp.Diff([]string{"Status", "Context", "Decision", "Consequences", "Alternatives"}, headings); diff != "" {
			t.Errorf("docs/adr/%s: headings (-want +got):\n%s", entry.Name(), diff)
		}
		if words := len(strings.Fields(text)); words > 600 {
			t.Errorf("docs/adr/%s has %d words, want a page: at most 600", entry.Name(), words)
		}
	}
}

func TestChangelogBeginsWithWhatIsUnreleased(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(root(t), "CHANGELOG.md"))
	if err != nil {
		t.Fatal(err)
	}
	var first string
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "## ") {
			first = strings.TrimSpace(line)
			break
		}
	}
	if first != "## [Unreleased]" {
		t.Errorf("the first section of CHANGELOG.md is %q, want %q", first, "## [Unreleased]")
	}
}

func TestEveryDirectDependencyIsExplained(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(root(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	contributing, err := os.ReadFile(filepath.Join(root(t), "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	notice, err := os.ReadFile(filepath.Join(root(t), "NOTICE"))
	if err != nil {
		t.Fatal(err)
	}
	requirement := regexp.MustCompile(`^\t([^ ]+\.[^ ]+) v\S+$`)
	found := 0
	for line := range strings.Lines(string(mod)) {
		match := requirement.FindStringSubmatch(strings.TrimRight(line, "\r\n"))
		if match == nil {
			continue
		}
		found++
		if !strings.Contains(string(contributing), "`"+match[1]+"`") {
			t.Errorf("CONTRIBUTING.md does not say what %s is for", match[1])
		}
		if !strings.Contains(string(notice), match[1]) {
			t.Errorf("NOTICE does not name the licence of %s", match[1])
		}
	}
	if found == 0 {
		t.Fatal("no direct dependency found in go.mod")
	}
}
