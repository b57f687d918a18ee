package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/testkit"
)

// asProcess makes the test binary be wafleet.
const asProcess = "WAFLEET_TEST_AS_PROCESS"

func TestMain(m *testing.M) {
	if os.Getenv(asProcess) != "" {
		os.Exit(Main(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// output collects what a process prints; it may be read while it grows.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// run runs a command that ends by itself.
func run(t *testing.T, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs output
	code = Main(t.Context(), args, environ, &out, &errs)
	return code, out.String(), errs.String()
}

// started is a command that runs until it is stopped.
type started struct {
	*testing.T
	out, errs output
	stop      func() int // ends it and returns its exit code
	done      chan struct{}
}

// start runs a command in this process.
func start(t *testing.T, environ []string, args ...string) *started {
	t.Helper()
	s := &started{T: t, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	code := 0
	go func() {
		defer close(s.done)
		code = Main(ctx, args, environ, &s.out, &s.errs)
	}()
	s.stop = func() int {
		cancel()
		<-s.done
		return code
	}
	t.Cleanup(func() { s.stop() })
	return s
}

// spawn runs a command as a process of its own.
func spawn(t *testing.T, environ []string, args ...string) (s *started, cmd *exec.Cmd) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(self, args...)
	s = &started{T: t, done: make(chan struct{})}
	cmd.Env = append([]string{asProcess + "=1", "PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, environ...)
	cmd.Stdout, cmd.Stderr = &s.out, &s.errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.done)
		_ = cmd.Wait()
	}()
	s.stop = func() int {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-s.done
		return cmd.ProcessState.ExitCode()
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-s.done
	})
	return s, cmd
}

// find waits for a line of the output or the log and returns the group of the pattern.
func (s *started) find(pattern string) string {
	s.Helper()
	re := regexp.MustCompile(pattern)
	var found string
	testkit.Eventually(s.T, 60*time.Second, func() error {
		all := s.out.String() + s.errs.String()
		if m := re.FindStringSubmatch(all); m != nil {
			found = m[len(m)-1]
			return nil
		}
		select {
		case <-s.done:
			s.Fatalf("ended without %q:\n%s", pattern, all)
		default:
		}
		return fmt.Errorf("no %q in:\n%s", pattern, all)
	})
	return found
}

const (
	opsURL = `ops listener is open" url=(http://\S+)`
	apiURL = `API listener is open" url=(http://\S+)`
)

// upArgs start "up" on free ports in a folder.
func upArgs(dir string, more ...string) []string {
	return append([]string{"up", "--data-dir", dir, "--listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0"}, more...)
}

// get answers status and body.
func get(t *testing.T, url, key string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// waitReady waits until /readyz says 200.
func (s *started) waitReady() (ops string) {
	s.Helper()
	ops = s.find(opsURL)
	testkit.Eventually(s.T, 60*time.Second, func() error {
		if status, body := get(s.T, ops+"/readyz", ""); status != http.StatusOK {
			return fmt.Errorf("/readyz is %d %s\n%s", status, body, s.errs.String())
		}
		return nil
	})
	return ops
}

func TestWrongCommandLinesAndSettingsAreRefusedBeforeAnythingIsDone(t *testing.T) {
	key := strings.Repeat("ab", 32)
	shared := []string{"DATABASE_URL=postgres://nobody:secret-word@127.0.0.1:1/x", "REDIS_URL=redis://127.0.0.1:1", "DATA_KEY=" + key, "LOOKUP_KEY=" + key}
	without := func(name string) (left []string) {
		for _, kv := range shared {
			if !strings.HasPrefix(kv, name+"=") {
				left = append(left, kv)
			}
		}
		return left
	}
	dir := filepath.Join(t.TempDir(), "data")
	for _, tc := range []struct {
		name    string
		environ []string
		args    []string
		want    string
	}{
		{"no command", nil, nil, `expected one of`},
		{"an unknown command", nil, []string{"serve"}, `unexpected argument serve`},
		{"an unknown flag", nil, []string{"up", "--simulate"}, "unknown flag --simulate"},
		{"a bad value in the environment", []string{"LEASE_TTL=soon"}, upArgs(dir), "LEASE_TTL in the environment"},
		{"a beat too slow for its lease", nil, upArgs(dir, "--lease-beat=15s"), "LEASE_BEAT is 15s: it must be positive and less than half of LEASE_TTL (30s)"},
		{"a flag counts before the environment", []string{"LEASE_BEAT=1s"}, upArgs(dir, "--lease-beat=15s"), "LEASE_BEAT is 15s"},
		{"a bad data key", []string{"DATA_KEY=secret-word"}, upArgs(dir), "DATA_KEY can't be used: key must be 32 bytes"},
		{"a bad earlier key", []string{"LOOKUP_KEY_PREVIOUS=" + key + ",secret-word"}, upArgs(dir), "LOOKUP_KEY_PREVIOUS can't be used"},
		{"a bad Redis URL", []string{"REDIS_URL=ftp://:secret-word@h"}, upArgs(dir), "REDIS_URL can't be used"},
		{"api without PostgreSQL", without("DATABASE_URL"), []string{"api"}, `DATABASE_URL must be postgres://… for "api"`},
		{"worker without Redis", without("REDIS_URL"), []string{"worker"}, `REDIS_URL must be redis://… for "worker"`},
		{"webhooks without a data key", without("DATA_KEY"), []string{"webhooks"}, `DATA_KEY must be set for "webhooks"`},
		{"scheduler without a lookup key", without("LOOKUP_KEY"), []string{"scheduler"}, `LOOKUP_KEY must be set for "scheduler"`},
		{"worker on SQLite", append(without("DATABASE_URL"), "DATABASE_URL=sqlite:/x"), []string{"worker"}, `DATABASE_URL must be postgres://… for "worker"`},
		{"up as one shard", []string{"SHARD_COUNT=2", "SHARD_INDEX=1"}, upArgs(dir), `SHARD_INDEX is for "worker": "up" is for every shard`},
		{"a shard index that is none", append(shared, "SHARD_COUNT=2"), []string{"worker", "--shard-index=2"}, "SHARD_INDEX is 2: it must be 0 to SHARD_COUNT-1 (1)"},
		{"two shard counts", append(shared, "SHARD_COUNT=2", "WHATSAPP_SHARD_COUNT=3"), []string{"api"}, "WHATSAPP_SHARD_COUNT is 3 and SHARD_COUNT is 2"},
		{"a simulator elsewhere", nil, upArgs(dir, "--simulator=http://192.0.2.1:7700"), "--simulator must be on this machine"},
		{"a simulator by name", nil, upArgs(dir, "--simulator=http://sim.example.com"), "--simulator must be on this machine"},
		{"a simulator with a path", nil, upArgs(dir, "--simulator=http://127.0.0.1:1/sim/"), "--simulator must be a plain address"},
		{"a simulator over TLS", shared, []string{"worker", "--simulator=https://127.0.0.1"}, "--simulator must be a plain address"},
		{"a simulator elsewhere, for the api", shared, []string{"api", "--simulator=http://10.0.0.1"}, "--simulator must be on this machine"},
		{"a key for nobody", nil, []string{"keys", "create", "--data-dir", dir}, "missing --admin or --org"},
		{"a key for two", nil, []string{"keys", "create", "--admin", "--org=a", "--data-dir", dir}, "--admin and --org exclude each other"},
		{"keys without keys", nil, []string{"keys", "list", "--data-dir", dir}, "DATA_KEY is not set and " + filepath.Join(dir, "data.key") + " does not exist"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := run(t, tc.environ, tc.args...)
			if code != exitUsage || !strings.Contains(stderr, tc.want) || stdout != "" || strings.Contains(stderr, "secret-word") {
				t.Errorf("Main = %d with %q, want %d with %q", code, stderr, exitUsage, tc.want)
			}
			for line := range strings.Lines(stderr) {
				if !strings.HasPrefix(line, "wafleet: ") {
					t.Errorf("line %q does not say who speaks", line)
				}
			}
		})
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a refused start made the data folder")
	}
}

func TestHelpAndVersionAnswer(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"up", "--help"}, {"keys", "create", "--help"}} {
		if code, stdout, _ := run(t, nil, args...); code != exitOK || !strings.Contains(stdout, "Usage: wafleet") {
			t.Errorf("%v = %d with %q", args, code, stdout)
		}
	}
	code, stdout, _ := run(t, nil, "version")
	for _, want := range []string{"wafleet ", "go1.", "whatsmeow ", "WhatsApp Web 2.3000."} {
		if code != exitOK || !strings.Contains(stdout, want) {
			t.Errorf("version = %d without %q: %s", code, want, stdout)
		}
	}
}

func TestFirstStartMakesKeysAndAnAdminKeyShownOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "data")
	first := start(t, nil, upArgs(dir)...)
	key := first.find(`admin key, shown this once: (wfa_\S+)`)
	first.waitReady()
	for _, name := range []string{"data.key", "lookup.key", "admin.key", "wafleet.db"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s is %v, %v, want readable by its owner only", name, info, err)
		}
	}
	if raw, err := os.ReadFile(filepath.Join(dir, "admin.key")); err != nil || strings.TrimSpace(string(raw)) != key {
		t.Errorf("the kept admin key differs from the shown one: %v", err)
	}
	if strings.Contains(first.errs.String(), key) {
		t.Error("the admin key is in the log")
	}
	api := first.find(apiURL)
	if status, body := get(t, api+"/api/admin/organizations", key); status != http.StatusOK {
		t.Errorf("the admin key answers %d %s", status, body)
	}
	if status, _ := get(t, api+"/api/admin/organizations", ""); status != http.StatusUnauthorized {
		t.Errorf("no key answers %d, want 401", status)
	}
	if code := first.stop(); code != exitOK {
		t.Errorf("stopped with %d:\n%s", code, first.errs.String())
	}

	second := start(t, nil, upArgs(dir)...)
	second.find(`(admin key of the first start is kept)`)
	if out := second.out.String(); strings.Contains(out, key) {
		t.Errorf("the admin key is shown a second time:\n%s", out)
	}
	api = second.find(apiURL)
	if status, body := get(t, api+"/api/admin/organizations", key); status != http.StatusOK {
		t.Errorf("the admin key answers %d %s after a restart", status, body)
	}
}

func TestASecondUpOnTheSameFolderIsRefused(t *testing.T) {
	dir := t.TempDir()
	first := start(t, nil, upArgs(dir)...)
	first.waitReady()
	code, _, stderr := run(t, nil, upArgs(dir)...)
	if code != exitFailed || !strings.Contains(stderr, "is in use by another process: stop the other") {
		t.Errorf("the second up = %d with %q", code, stderr)
	}
	if code, _, stderr := run(t, nil, "migrate", "--data-dir", dir); code != exitFailed || !strings.Contains(stderr, "is in use by another process") {
		t.Errorf("migrate beside up = %d with %q", code, stderr)
	}
	first.stop()
	third := start(t, nil, upArgs(dir)...)
	third.waitReady()
}

func TestKeysCommandsWorkBesideUp(t *testing.T) {
	dir := t.TempDir()
	up := start(t, nil, upArgs(dir)...)
	api := up.find(apiURL)
	up.waitReady()
	code, out, stderr := run(t, nil, "keys", "create", "--admin", "--label=second", "--data-dir", dir)
	key := strings.TrimSpace(out)
	id := regexp.MustCompile(`key_\w+`).FindString(stderr)
	if code != exitOK || !strings.HasPrefix(key, "wfa_") || id == "" {
		t.Fatalf("keys create = %d with %q and %q", code, out, stderr)
	}
	if status, _ := get(t, api+"/api/admin/keys", key); status != http.StatusOK {
		t.Errorf("the new key answers %d", status)
	}
	if code, out, _ := run(t, nil, "keys", "list", "--data-dir", dir); code != exitOK || !strings.Contains(out, id) || !strings.Contains(out, "second") || strings.Contains(out, key) {
		t.Errorf("keys list = %d with\n%s", code, out)
	}
	if code, out, stderr := run(t, nil, "keys", "revoke", id, "--data-dir", dir); code != exitOK || !strings.Contains(out, id+" is revoked") {
		t.Errorf("keys revoke = %d with %q and %q", code, out, stderr)
	}
	if _, out, _ := run(t, nil, "keys", "list", "--data-dir", dir); !regexp.MustCompile(id + `\s+\(admin\)\s+revoked`).MatchString(out) {
		t.Errorf("keys list after the revocation:\n%s", out)
	}
	if code, _, stderr := run(t, nil, "keys", "revoke", "key_unknown", "--data-dir", dir); code != exitFailed || !strings.Contains(stderr, `there is no key "key_unknown"`) {
		t.Errorf("keys revoke of an unknown key = %d with %q", code, stderr)
	}
	if code, _, stderr := run(t, nil, "keys", "create", "--org=org-a", "--data-dir", dir); code != exitFailed || !strings.Contains(stderr, `there is no organization "org-a"`) {
		t.Errorf("keys create for an unknown organization = %d with %q", code, stderr)
	}
	if code, _, stderr := run(t, nil, "keys", "list", "--data-dir", dir, "--database-url", "sqlite:"+filepath.Join(dir, "no.db")); code != exitFailed || !strings.Contains(stderr, "there is no database yet") {
		t.Errorf("keys list without a database = %d with %q", code, stderr)
	}
}

func TestLostKeysAreNoticedAndNotReplaced(t *testing.T) {
	for _, lost := range [][]string{{"data.key"}, {"lookup.key"}, {"data.key", "lookup.key"}} {
		t.Run(strings.Join(lost, " and "), func(t *testing.T) {
			dir := t.TempDir()
			up := start(t, nil, upArgs(dir)...)
			up.waitReady()
			up.stop()
			kept := map[string][]byte{}
			for _, name := range lost {
				path := filepath.Join(dir, name)
				raw, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				kept[path] = raw
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			code, _, stderr := run(t, nil, upArgs(dir)...)
			if code != exitFailed || !strings.Contains(stderr, "the database was made with other keys") {
				t.Errorf("up = %d with %q", code, stderr)
			}
			for path, raw := range kept {
				if _, err := os.Stat(path); err == nil {
					t.Errorf("%s was made anew", path)
				}
				if err := os.WriteFile(path, raw, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			again := start(t, nil, upArgs(dir)...)
			again.waitReady()
		})
	}
}

func TestALookupKeyUnderWhichNoKeyWasMadeIsRefused(t *testing.T) {
	dir := t.TempDir()
	up := start(t, nil, upArgs(dir)...)
	up.waitReady()
	up.stop()
	other := []string{"LOOKUP_KEY=" + strings.Repeat("ef", 32)}
	for name, args := range map[string][]string{"up": upArgs(dir), "keys create": {"keys", "create", "--admin", "--data-dir", dir}} {
		if code, out, stderr := run(t, other, args...); code != exitFailed || out != "" || !strings.Contains(stderr, "LOOKUP_KEY finds no API key of this database") {
			t.Errorf("%s = %d with %q and %q, want it refused", name, code, out, stderr)
		}
	}
	raw, err := os.ReadFile(filepath.Join(dir, "lookup.key"))
	if err != nil {
		t.Fatal(err)
	}
	rotated := append(other, "LOOKUP_KEY_PREVIOUS="+strings.TrimSpace(string(raw)))
	start(t, rotated, upArgs(dir)...).waitReady()
}

func TestMigrateBeforeTheFirstUp(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if code, out, stderr := run(t, nil, "migrate", "--data-dir", dir); code != exitOK || !strings.Contains(out, "at this version") {
		t.Fatalf("migrate = %d with %q and %q", code, out, stderr)
	}
	start(t, nil, upArgs(dir)...).waitReady()
}

func TestADatabaseIsRealOrSimulatedForGood(t *testing.T) {
	sim := start(t, nil, "sim", "--listen=127.0.0.1:0")
	url := sim.find(`simulator on (http://[^/]+)/sim/`)
	if status, body := get(t, url+"/sim/root", ""); status != http.StatusOK || !strings.Contains(body, "pub") {
		t.Fatalf("/sim/root = %d %s", status, body)
	}
	simulated, actual := t.TempDir(), t.TempDir()
	up := start(t, nil, upArgs(simulated, "--simulator", url)...)
	up.waitReady()
	if log := up.errs.String(); !strings.Contains(log, "level=WARN msg=\"SIMULATED") {
		t.Errorf("a simulated process does not say so loudly:\n%s", log)
	}
	if code := up.stop(); code != exitOK {
		t.Errorf("stopped with %d:\n%s", code, up.errs.String())
	}
	// No setting makes a real process simulated.
	up = start(t, []string{"SIMULATOR=" + url, "WAFLEET_SIMULATOR=" + url}, upArgs(actual)...)
	up.waitReady()
	if log := up.errs.String(); strings.Contains(log, "SIMULATED") {
		t.Errorf("the environment made a process simulated:\n%s", log)
	}
	up.stop()
	for _, args := range [][]string{upArgs(simulated), upArgs(actual, "--simulator", url)} {
		if code, _, stderr := run(t, nil, args...); code != exitFailed || !strings.Contains(stderr, "database belongs to the other mode") {
			t.Errorf("%v = %d with %q", args, code, stderr)
		}
	}
	if code := sim.stop(); code != exitOK {
		t.Errorf("the simulator stopped with %d:\n%s", code, sim.errs.String())
	}
	if code, _, stderr := run(t, nil, upArgs(simulated, "--simulator", url)...); code != exitFailed || !strings.Contains(stderr, "start one with: wafleet sim") {
		t.Errorf("up without its simulator = %d with %q", code, stderr)
	}
}

func TestSIGTERMStopsUpInOrder(t *testing.T) {
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		t.Run(sig.String(), func(t *testing.T) {
			up, cmd := spawn(t, []string{"LOG_FORMAT=json"}, upArgs(t.TempDir())...)
			ops := up.find(`"ops listener is open","url":"(http://[^"]+)"`)
			testkit.Eventually(t, 60*time.Second, func() error {
				if status, body := get(t, ops+"/readyz", ""); status != http.StatusOK {
					return errors.New(body)
				}
				return nil
			})
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			select {
			case <-up.done:
			case <-time.After(30 * time.Second):
				t.Fatalf("still running after 30 s:\n%s", up.errs.String())
			}
			log := up.errs.String()
			if code := cmd.ProcessState.ExitCode(); code != exitOK || !strings.Contains(log, `"msg":"stopping"`) || !strings.Contains(log, `"msg":"stopped"`) {
				t.Errorf("ended with %d:\n%s", code, log)
			}
		})
	}
}

func TestWebhooksSurviveARestartAndNoSettingReplacesThem(t *testing.T) {
	dir := t.TempDir()
	first := start(t, []string{"WEBHOOK_ALLOW_PRIVATE=true"}, upArgs(dir)...)
	key := first.find(`admin key, shown this once: (wfa_\S+)`)
	first.waitReady()
	post(t, first.find(apiURL)+"/api/admin/organizations", key, `{"orgId":"org-a","label":"A"}`)
	post(t, first.find(apiURL)+"/api/admin/endpoints", key, `{"orgId":"org-a","url":"http://127.0.0.1:9/theirs"}`)
	if code := first.stop(); code != exitOK {
		t.Errorf("stopped with %d:\n%s", code, first.errs.String())
	}
	second := start(t, []string{"WEBHOOK_URL=http://127.0.0.1:9/ours", "WEBHOOKS=http://127.0.0.1:9/ours"}, upArgs(dir)...)
	second.waitReady()
	status, body := get(t, second.find(apiURL)+"/api/admin/endpoints", key)
	if status != http.StatusOK || strings.Count(body, `"url":`) != 1 || !strings.Contains(body, `"url":"http://127.0.0.1:9/theirs"`) {
		t.Errorf("after a restart the endpoints are %d %s, want the one of before", status, body)
	}
}

func post(t *testing.T, url, key, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		answer, _ := io.ReadAll(resp.Body)
		t.Fatalf("POST %s = %d %s", url, resp.StatusCode, answer)
	}
}
