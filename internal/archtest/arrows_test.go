package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const modulePath = "github.com/wafleet/wafleet"

// arrows says which internal packages each internal package may import outside its tests. A name stands for the package
// and everything below it. Levels go up from L0; nothing imports its own level, except wastore, which is built on store.
var arrows = map[string][]string{
	// L0: words and pure rules, standard library only
	"fleet": {},
	"seal":  {},
	"plant": {},
	"group": {},
	// beside them: pictures of QR codes
	"qrdraw": {},
	// beside them: rules that need tables of others
	"keyword": {"fleet"},
	"phone":   {"fleet"},
	// L1: state
	"store":   {"fleet", "seal", "group", "plant"},
	"wastore": {"fleet", "seal", "group", "store", "plant"},
	"ledger":  {"fleet", "redis"},
	"bus":     {"fleet", "redis"},
	"media":   {"fleet"},
	// L2: one job each, never each other
	"lease":   {"fleet", "group", "store", "plant"},
	"auth":    {"fleet", "seal", "store", "bus"},
	"router":  {"fleet", "store", "ledger", "plant"},
	"wa":      {"fleet", "plant"},
	"webhook": {"fleet", "seal", "store", "bus", "plant"},
	// L3: the two directions of a message
	"outbound": {"fleet", "phone", "seal", "store", "ledger", "bus", "router", "plant"},
	"inbound":  {"fleet", "keyword", "seal", "store", "bus", "media", "plant"},
	// L4: processes, which meet in rows and nudges only
	"httpapi":   {"fleet", "keyword", "phone", "seal", "store", "bus", "media", "auth", "webhook", "outbound", "qrdraw"},
	"pairing":   {"fleet", "seal", "store", "bus", "auth", "qrdraw"},
	"worker":    {"fleet", "seal", "store", "wastore", "ledger", "bus", "lease", "wa", "inbound", "plant"},
	"scheduler": {"fleet", "seal", "store", "ledger", "bus", "outbound"},
	// beside the path: what an older gateway left
	"poolimport": {"fleet", "store"},
	// beside the layers: settings, the connection to Redis, and the server that WhatsApp is in tests and demos
	"cmdline": {},
	"config":  {"cmdline"},
	"redis":   {"fleet"},
	"wasim":   {},
	// L5: wiring
	"cli": {anything},
}

const anything = "*"

// speakWhatsApp are the packages that may import whatsmeow. Whoever else did would be a second place that knows what
// WhatsApp is like, and could send around the lease.
//
// The trials may because they compare the gateway with the bare library.
var speakWhatsApp = []string{"wa", "wastore", "wasim", "trials"}

// testWhatsApp may in addition do so in their tests, where the real client runs against the simulator.
var testWhatsApp = []string{"worker", "simulate", "scripts"}

// pure packages import the standard library only.
var pure = []string{"fleet", "seal", "plant", "group"}

type goPackage struct {
	ImportPath, Dir, Name, Doc         string
	Imports, TestImports, XTestImports []string
	GoFiles, TestGoFiles, XTestGoFiles []string
}

// top is the name of the package tree: "wasim" for …/internal/wasim/memnet, "scripts" for …/scripts/x, "main" for the root.
func (p goPackage) top() string { return top(p.ImportPath) }

func top(importPath string) string {
	rel := strings.TrimPrefix(strings.TrimPrefix(importPath, modulePath), "/")
	rel = strings.TrimPrefix(rel, "internal/")
	name, _, _ := strings.Cut(rel, "/")
	if name == "" {
		return "main"
	}
	return name
}

func isInternal(importPath string) bool {
	return strings.HasPrefix(importPath, modulePath+"/internal/")
}

// testOnly reports whether a package exists for tests: the shared helpers, the simulation, and suites such as storetest.
func testOnly(importPath string) bool {
	switch top(importPath) {
	case "testkit", "archtest", "simulate":
		return true
	}
	return isInternal(importPath) && strings.HasSuffix(importPath, "test")
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var listPackages = sync.OnceValues(func() ([]goPackage, error) {
	// -e: a package that does not compile has arrows too, and other tests say that it does not compile.
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,Name,Doc,Imports,TestImports,XTestImports,GoFiles,TestGoFiles,XTestGoFiles", "./...")
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return nil, fmt.Errorf("go list: %w: %s", err, exit.Stderr)
		}
		return nil, err
	}
	var packages []goPackage
	for decoder := json.NewDecoder(bytes.NewReader(out)); decoder.More(); {
		var p goPackage
		if err := decoder.Decode(&p); err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
	return packages, nil
})

func packages(t *testing.T) []goPackage {
	t.Helper()
	// go test reuses a result while the files and folders that the test itself opened are unchanged; what the go command
	// reads does not count. So look at every folder once.
	for _, dir := range []string{"internal", "scripts", "trials"} {
		err := filepath.WalkDir(filepath.Join(root(t), dir), func(_ string, _ fs.DirEntry, err error) error { return err })
		if err != nil {
			t.Fatal(err)
		}
	}
	all, err := listPackages()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 3 {
		t.Fatalf("go list found %d packages, want at least 3: it did not look at this module", len(all))
	}
	return all
}

func TestPackagesImportOnlyWhatTheTableAllows(t *testing.T) {
	for _, p := range packages(t) {
		if !isInternal(p.ImportPath) || testOnly(p.ImportPath) {
			continue
		}
		for _, problem := range arrowProblems(p) {
			t.Error(problem)
		}
	}
}

// arrowProblems compares the imports of one package with the table.
func arrowProblems(p goPackage) (problems []string) {
	name := p.top()
	allowed, known := arrows[name]
	if !known {
		return []string{fmt.Sprintf("internal/%s is not in the table of arrows: say there what it may import", name)}
	}
	for _, imported := range p.Imports {
		switch {
		case top(imported) == "trials":
			problems = append(problems, fmt.Sprintf("%s imports %s, which tries the product out from outside", name, imported))
		case !isInternal(imported):
			if slices.Contains(pure, name) && strings.Contains(imported, ".") {
				problems = append(problems, fmt.Sprintf("%s imports %s: it may import the standard library only", name, imported))
			}
		case testOnly(imported):
			problems = append(problems, fmt.Sprintf("%s imports %s, which is for tests", name, imported))
		case top(imported) == name || slices.Contains(allowed, anything) || slices.Contains(allowed, top(imported)):
		default:
			problems = append(problems, fmt.Sprintf("%s imports %s; it may import: %s", name, imported, strings.Join(allowed, ", ")))
		}
	}
	return problems
}

func TestTheArrowTestSeesWhatIsForbidden(t *testing.T) {
	in := func(names ...string) (paths []string) {
		for _, name := range names {
			paths = append(paths, modulePath+"/internal/"+name)
		}
		return paths
	}
	tests := []struct {
		name    string
		pkg     string
		imports []string
		want    int
	}{
		{"a package may use its own folders", "wasim", in("wasim/memnet"), 0},
		{"the store may use the vocabulary", "store", in("fleet", "seal"), 0},
		{"the vocabulary uses nobody", "fleet", in("store"), 1},
		{"the vocabulary uses the standard library only", "fleet", []string{"github.com/google/uuid", "time"}, 1},
		{"the two ends of a message never meet", "httpapi", in("worker"), 1},
		{"peers of one level never meet", "lease", in("wa", "auth"), 2},
		{"the simulator knows nobody", "wasim", in("fleet"), 1},
		{"helpers for tests stay in tests", "store", in("testkit", "store/storetest"), 2},
		{"the product knows nothing of its trials", "cli", []string{modulePath + "/trials/cluster"}, 1},
		{"the command line knows everybody", "cli", in("worker", "httpapi", "wasim", "config"), 0},
		{"an unknown package is asked to introduce itself", "extra", nil, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := arrowProblems(goPackage{ImportPath: modulePath + "/internal/" + tt.pkg, Imports: tt.imports})
			if len(got) != tt.want {
				t.Errorf("arrowProblems(%s imports %v) = %q, want %d problems", tt.pkg, tt.imports, got, tt.want)
			}
		})
	}
}

func TestTheTableOfArrowsHasNoCycle(t *testing.T) {
	var visit func(name string, path []string)
	visit = func(name string, path []string) {
		if slices.Contains(path, name) {
			t.Errorf("cycle: %s", strings.Join(append(path, name), " -> "))
			return
		}
		for _, next := range arrows[name] {
			if next == anything {
				continue
			}
			if _, known := arrows[next]; !known {
				t.Errorf("%s may import %s, which is not in the table", name, next)
			}
			visit(next, append(slices.Clone(path), name))
		}
	}
	for name := range arrows {
		visit(name, nil)
	}
}

func TestOnlyTheNamedPackagesSpeakWhatsApp(t *testing.T) {
	const whatsmeow = "go.mau.fi/whatsmeow"
	speaks := func(imports []string) bool {
		return slices.ContainsFunc(imports, func(path string) bool { return path == whatsmeow || strings.HasPrefix(path, whatsmeow+"/") })
	}
	for _, p := range packages(t) {
		if slices.Contains(speakWhatsApp, p.top()) {
			continue
		}
		if speaks(p.Imports) && p.top() != "simulate" {
			t.Errorf("%s imports whatsmeow; only %v may", p.ImportPath, speakWhatsApp)
		}
		if (speaks(p.TestImports) || speaks(p.XTestImports)) && !slices.Contains(testWhatsApp, p.top()) {
			t.Errorf("tests of %s import whatsmeow; beside %v only %v may", p.ImportPath, speakWhatsApp, testWhatsApp)
		}
	}
}
