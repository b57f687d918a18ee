// Command mendmodules makes copies of whatsmeow, go.mau.fi/util and coder/websocket that tests on simulated time can run
// under the race detector: with locks whose waiting is durable in a testing/synctest bubble, and without one data race
// and one goroutine leak of upstream's. docs/mended-modules.md lists and explains every change.
//
// It owns .cache/mended, .cache/sim.mod and .cache/sim.sum below the current directory, which must be the module's root.
// It must never change go.mod, the module cache, or anything that ordinary builds read: the product is built from the
// unmodified modules.
//
// A copy lives in a folder named after the versions and the patches, is made once, and is put in place by one rename, so
// several builds may ask at the same time. Every change checks that upstream's text is the one it was written for.
package main

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

//go:embed lock.go
var lockSource string

//go:embed patches.go
var patchSource string

//go:embed main.go
var ownSource string

func main() {
	path, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mend-modules:", err)
		os.Exit(1)
	}
	if _, err := fmt.Fprintln(os.Stdout, path); err != nil {
		os.Exit(1)
	}
}

func run() (modfile string, err error) {
	root, err := filepath.Abs(".")
	if err != nil {
		return "", err
	}
	modules, err := locate(whatsmeow, mauUtil, websocket)
	if err != nil {
		return "", err
	}
	identity := []string{lockSource, patchSource, ownSource}
	for _, m := range modules {
		identity = append(identity, m.Path, m.Version)
	}
	sum := sha256.Sum256([]byte(strings.Join(identity, "\n")))
	cache := filepath.Join(root, ".cache")
	dir := filepath.Join(cache, "mended", hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := makeCopies(modules, dir); err != nil {
			return "", err
		}
	} else if err != nil {
		return "", err
	}
	return writeModfile(root, cache, modules, dir)
}

type module struct {
	Path, Version, Dir string
}

func (m module) folder() string { return strings.ReplaceAll(m.Path, "/", "_") }

// locate asks the go command where the modules are, after downloading what is not there yet.
func locate(paths ...string) ([]module, error) {
	out, err := goCommand(append([]string{"mod", "download", "-json"}, paths...)...)
	if err != nil {
		return nil, err
	}
	var modules []module
	for decoder := json.NewDecoder(bytes.NewReader(out)); decoder.More(); {
		var m module
		if err := decoder.Decode(&m); err != nil {
			return nil, fmt.Errorf("read the answer of go mod download: %w", err)
		}
		modules = append(modules, m)
	}
	if len(modules) != len(paths) {
		return nil, fmt.Errorf("go mod download knows %d of the modules %v", len(modules), paths)
	}
	return modules, nil
}

func goCommand(args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...) //nolint:noctx // ends with this program, which the caller may interrupt
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s%s", strings.Join(args, " "), err, stderr.String(), out)
	}
	return out, nil
}

func makeCopies(modules []module, dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	draft, err := os.MkdirTemp(filepath.Dir(dir), ".draft-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(draft) }() // gone already when everything went well
	at := map[string]string{}
	for _, m := range modules {
		at[m.Path] = filepath.Join(draft, m.folder())
		if err := copyModule(m.Dir, at[m.Path]); err != nil {
			return fmt.Errorf("copy %s: %w", m.Path, err)
		}
	}
	for _, swap := range lockSwaps {
		if err := swap.apply(filepath.Join(at[swap.module], swap.dir)); err != nil {
			return fmt.Errorf("%s/%s: %w", swap.module, swap.dir, err)
		}
	}
	for _, p := range patches {
		if err := p.apply(filepath.Join(at[p.module], p.file)); err != nil {
			return fmt.Errorf("patch %s on %s/%s: %w", p.name, p.module, p.file, err)
		}
	}
	if err := os.Chmod(draft, 0o755); err != nil {
		return err
	}
	if err := os.Rename(draft, dir); err != nil {
		if _, statErr := os.Stat(dir); statErr == nil {
			return nil // another process was faster and made the same
		}
		return err
	}
	return nil
}

// copyModule copies everything but tests, as files that may be written.
func copyModule(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case entry.IsDir() && entry.Name() == "testdata":
			return fs.SkipDir
		case entry.IsDir():
			return os.MkdirAll(target, 0o755)
		case strings.HasSuffix(path, "_test.go"):
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(target, data, 0o644)
	})
}

func (s lockSwap) apply(dir string) error {
	for file, want := range s.files {
		path := filepath.Join(dir, file)
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		swapped, n, err := swapLocks(source)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if n != want {
			return fmt.Errorf("%s holds %d locks, %d were expected: upstream has changed, look at what the locks are held across and correct the list", file, n, want)
		}
		if err := os.WriteFile(path, swapped, 0o644); err != nil {
			return err
		}
	}
	source := strings.Replace(lockSource, "package main\n", "package "+s.pkg+"\n", 1)
	return os.WriteFile(filepath.Join(dir, "zz_durable_lock.go"), []byte(source), 0o644)
}

// swapLocks replaces the types sync.Mutex and sync.RWMutex by the durable ones, and takes the import away when nothing
// else of sync is used. It counts what it replaced.
func swapLocks(source []byte) (swapped []byte, count int, err error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", source, parser.ParseComments)
	if err != nil {
		return nil, 0, err
	}
	type edit struct {
		from, to int
		text     string
	}
	var edits []edit
	others := 0
	offset := func(p token.Pos) int { return files.Position(p).Offset }
	ast.Inspect(file, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := selector.X.(*ast.Ident)
		if !ok || pkg.Name != "sync" {
			return true
		}
		switch selector.Sel.Name {
		case "Mutex":
			edits = append(edits, edit{offset(selector.Pos()), offset(selector.End()), "durableMutex"})
		case "RWMutex":
			edits = append(edits, edit{offset(selector.Pos()), offset(selector.End()), "durableRWMutex"})
		default:
			others++
		}
		return true
	})
	count = len(edits)
	if others == 0 {
		for _, spec := range file.Imports {
			if path, err := strconv.Unquote(spec.Path.Value); err == nil && path == "sync" && spec.Name == nil {
				edits = append(edits, edit{offset(spec.Pos()), offset(spec.End()), ""})
			}
		}
	}
	slices.SortFunc(edits, func(a, b edit) int { return b.from - a.from })
	swapped = source
	for _, e := range edits {
		swapped = slices.Concat(swapped[:e.from], []byte(e.text), swapped[e.to:])
	}
	return swapped, count, nil
}

func (p patch) apply(path string) error {
	source, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if n := strings.Count(string(source), p.from); n != 1 {
		return fmt.Errorf("its text occurs %d times, 1 was expected: upstream has changed, see whether the patch is still wanted", n)
	}
	return os.WriteFile(path, []byte(strings.Replace(string(source), p.from, p.to, 1)), 0o644)
}

// writeModfile writes .cache/sim.mod and .cache/sim.sum: the module's own files with three modules replaced.
func writeModfile(root, cache string, modules []module, dir string) (string, error) {
	draft, err := os.MkdirTemp(cache, ".sim-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(draft) }()
	for from, to := range map[string]string{"go.mod": "sim.mod", "go.sum": "sim.sum"} {
		data, err := os.ReadFile(filepath.Join(root, from))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(draft, to), data, 0o644); err != nil {
			return "", err
		}
	}
	args := []string{"mod", "edit"}
	for _, m := range modules {
		args = append(args, "-replace="+m.Path+"="+filepath.Join(dir, m.folder()))
	}
	if _, err := goCommand(append(args, filepath.Join(draft, "sim.mod"))...); err != nil {
		return "", err
	}
	for _, name := range []string{"sim.sum", "sim.mod"} {
		if err := os.Rename(filepath.Join(draft, name), filepath.Join(cache, name)); err != nil {
			return "", err
		}
	}
	return filepath.Join(cache, "sim.mod"), nil
}
