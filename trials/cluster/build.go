package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Build builds wafleet with the unmodified modules of go.mod into dir, with these build tags, and returns the binary.
// The module is found from the working directory.
func Build(ctx context.Context, dir string, tags ...string) (binary string, err error) {
	binary = filepath.Join(dir, strings.Join(append([]string{"wafleet"}, tags...), "-"))
	cmd := exec.CommandContext(ctx, "go", "build", "-tags", strings.Join(tags, ","), "-o", binary, "github.com/wafleet/wafleet") //nolint:gosec // a folder and tags of ours
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build wafleet: %w\n%s", err, out)
	}
	return binary, nil
}

// Folder makes a folder for one run: binaries, logs, the servers' data. It lies below TMPDIR, or /tmp for root, because
// the servers run as an unprivileged user who must be able to enter it. remove deletes it; keep it when something failed.
func Folder(name string) (dir string, remove func(), err error) {
	parent := os.TempDir()
	if os.Getuid() == 0 {
		parent = "/tmp"
	}
	dir, err = os.MkdirTemp(parent, "wafleet-"+name+"-*")
	if err != nil {
		return "", nil, err
	}
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // the servers' user passes through
		return "", nil, err
	}
	return dir, func() { _ = os.RemoveAll(dir) }, nil
}
