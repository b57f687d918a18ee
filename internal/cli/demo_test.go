package cli

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func demoArgs(dir string, more ...string) []string {
	return append([]string{"demo", "--folder", dir, "--listen=127.0.0.1:0", "--simulator=127.0.0.1:0"}, more...)
}

func TestADemoStoppedBeforeItsEndDoesNotSayThatEveryStepWasSeen(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs output
	code := Main(ctx, demoArgs(t.TempDir(), "--once"), nil, &out, &errs)
	if code != exitFailed || !strings.Contains(errs.String(), "stopped before every step was seen") {
		t.Errorf("demo --once that was stopped = %d with %q, want %d", code, errs.String(), exitFailed)
	}
}

func TestADemoDoesNotEmptyAFolderInUse(t *testing.T) {
	dir := t.TempDir()
	release, err := freshFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, databaseFile)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := run(t, nil, demoArgs(dir)...); code != exitUsage || !strings.Contains(stderr, "in use by another demo") {
		t.Errorf("a second demo in one folder = %d with %q, want it refused", code, stderr)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the second demo emptied the folder of the first: %v", err)
	}
	release()
	if release, err = freshFolder(dir); err != nil {
		t.Fatalf("freshFolder after the demo's end = %v", err)
	}
	defer release()
	if _, err := os.Stat(file); err == nil {
		t.Error("a new demo kept a file of the one before")
	}
}

func TestDemosAtOnceFindPortsOfTheirOwn(t *testing.T) {
	taken, err := listenOrAny(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	ln, err := listen(t.Context(), "LISTEN", taken.Addr().String(), true, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatalf("listen on a port that is taken = %v, want another one", err)
	}
	defer ln.Close()
	if _, err := listenOrAny(t.Context(), "127.0.0.1:99999"); err == nil {
		t.Error("listenOrAny takes a port that can't be")
	}
}
