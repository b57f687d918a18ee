package cli

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
)

// sharedSettings are those of separate processes on one PostgreSQL database and one Redis.
func sharedSettings(t *testing.T, databaseURL string) []string {
	t.Helper()
	addr, prefix := testkit.Redis(t)
	return []string{
		"DATABASE_URL=" + databaseURL, "REDIS_URL=redis://" + addr, "REDIS_PREFIX=" + prefix,
		"DATA_KEY=" + strings.Repeat("ab", 32), "LOOKUP_KEY=" + strings.Repeat("cd", 32),
		"LISTEN=127.0.0.1:0", "OPS_LISTEN=127.0.0.1:0", "LEASE_TTL=6s", "LEASE_BEAT=1s",
	}
}

func TestSeparateProcessesMeetInPostgresAndRedis(t *testing.T) {
	settings := sharedSettings(t, storetest.PostgresURL(t))
	var all []*started
	for _, args := range [][]string{{"api"}, {"worker", "--worker-id=one"}, {"worker", "--worker-id=two"}, {"webhooks"}, {"scheduler"}} {
		all = append(all, start(t, settings, args...))
	}
	for _, s := range all {
		ops := s.waitReady()
		if _, body := get(t, ops+"/readyz", ""); !strings.Contains(body, `"timeouts":"ok"`) {
			t.Errorf("readiness does not look at the database's timeouts: %s", body)
		}
	}
	code, key, stderr := run(t, settings[:5], "keys", "create", "--admin")
	if code != exitOK {
		t.Fatalf("keys create = %d with %q", code, stderr)
	}
	api, key := all[0].find(apiURL), strings.TrimSpace(key)
	workers := func(want ...string) {
		t.Helper()
		testkit.Eventually(t, 20*time.Second, func() error {
			status, body := get(t, api+"/api/admin/workers", key)
			if status != http.StatusOK || strings.Count(body, `"startedAt"`) != len(want) {
				return fmt.Errorf("workers: %d %s", status, body)
			}
			for _, name := range want {
				if !strings.Contains(body, `"`+name+`"`) {
					return fmt.Errorf("no worker %q in %s", name, body)
				}
			}
			return nil
		})
	}
	workers("one", "two")
	if code := all[2].stop(); code != exitOK {
		t.Errorf("worker two ended with %d:\n%s", code, all[2].errs.String())
	}
	workers("one")
	for _, s := range all {
		if code := s.stop(); code != exitOK {
			t.Errorf("ended with %d:\n%s", code, s.errs.String())
		}
	}
}

func TestSeparateProcessesRefuseADatabaseOfAnotherVersionUntilItIsMigrated(t *testing.T) {
	settings := sharedSettings(t, testkit.Postgres(t))
	if code, _, stderr := run(t, settings, "scheduler"); code != exitFailed || !strings.Contains(stderr, "run: wafleet migrate") {
		t.Errorf("scheduler on an empty database = %d with %q", code, stderr)
	}
	if code, _, stderr := run(t, settings, "migrate"); code != exitOK {
		t.Fatalf("migrate = %d with %q", code, stderr)
	}
	if code, _, stderr := run(t, settings, "migrate"); code != exitOK {
		t.Errorf("migrate again = %d with %q", code, stderr)
	}
	start(t, settings, "scheduler").waitReady()
	other := append([]string{}, settings...)
	other[3] = "DATA_KEY=" + strings.Repeat("ef", 32)
	if code, _, stderr := run(t, other, "scheduler"); code != exitFailed || !strings.Contains(stderr, "DATA_KEY does not open this database") {
		t.Errorf("scheduler with another DATA_KEY = %d with %q", code, stderr)
	}
}

func TestUpOnPostgresMakesItsKeysInTheFolder(t *testing.T) {
	dir, url := t.TempDir(), storetest.PostgresURL(t)
	up := start(t, []string{"DATABASE_URL=" + url}, upArgs(dir)...)
	up.waitReady()
	if log := up.errs.String(); !strings.Contains(log, "no REDIS_URL") {
		t.Errorf("up on PostgreSQL without Redis does not say what that costs:\n%s", log)
	}
	if code := up.stop(); code != exitOK {
		t.Errorf("ended with %d:\n%s", code, up.errs.String())
	}
	// Another folder would make other keys: they are not kept.
	elsewhere := t.TempDir()
	code, _, stderr := run(t, []string{"DATABASE_URL=" + url}, upArgs(elsewhere)...)
	if code != exitFailed || !strings.Contains(stderr, "the database was made with other keys") {
		t.Errorf("up from another folder = %d with %q", code, stderr)
	}
	if code, out, _ := run(t, []string{"DATABASE_URL=" + url}, "keys", "list", "--data-dir", dir); code != exitOK || !strings.Contains(out, "first start") {
		t.Errorf("keys list = %d with %s", code, out)
	}
}

func TestOnPostgresWithoutRedisThereIsOneProcess(t *testing.T) {
	dir, url := t.TempDir(), storetest.PostgresURL(t)
	settings := []string{"DATABASE_URL=" + url, "LEASE_TTL=2s", "LEASE_BEAT=500ms"}
	first := start(t, settings, upArgs(dir)...)
	first.waitReady()
	if code, _, stderr := run(t, settings, upArgs(dir)...); code != exitFailed || !strings.Contains(stderr, "another process without REDIS_URL") {
		t.Errorf("a second up = %d with %q, want it refused", code, stderr)
	}
	addr, prefix := testkit.Redis(t)
	beside := start(t, append(settings, "REDIS_URL=redis://"+addr, "REDIS_PREFIX="+prefix), upArgs(dir)...)
	beside.waitReady() // the row is for those that share nothing
	if code := beside.stop(); code != exitOK {
		t.Errorf("up with Redis ended with %d:\n%s", code, beside.errs.String())
	}
	if code := first.stop(); code != exitOK {
		t.Errorf("up ended with %d:\n%s", code, first.errs.String())
	}
	// A stop gives the row back, so the next start does not wait; whoever loses it ends.
	next := start(t, settings, upArgs(dir)...)
	next.waitReady()
	if log := next.errs.String(); strings.Contains(log, "waiting to see whether it lives") {
		t.Errorf("a start after a stop waited:\n%s", log)
	}
	db := storetest.Open(t, url)
	if _, err := db.DB().Exec(t.Context(), `UPDATE singleton SET owner='other', expires_at=expires_at+60000`); err != nil {
		t.Fatal(err)
	}
	<-next.done
	if code := next.stop(); code != exitFailed || !strings.Contains(next.errs.String(), "another process without REDIS_URL") {
		t.Errorf("up that lost the row ended with %d:\n%s", code, next.errs.String())
	}
}

func TestAPartThatIsAwayIsNamedWithoutItsPassword(t *testing.T) {
	_, prefix := testkit.Redis(t)
	settings := sharedSettings(t, storetest.PostgresURL(t))
	settings[1], settings[2] = "REDIS_URL=redis://:secret-word@127.0.0.1:1", "REDIS_PREFIX="+prefix
	// Without Redis a process works, a second late; it says that it is not ready, and goes on dialling.
	scheduler := start(t, settings, "scheduler")
	status, body := get(t, scheduler.find(opsURL)+"/readyz", "")
	if status != http.StatusServiceUnavailable || !strings.Contains(body, `"bus":"ping Redis: `) || !strings.Contains(body, `"database":"ok"`) {
		t.Errorf("/readyz without Redis = %d %s", status, body)
	}
	if code := scheduler.stop(); code != exitOK || strings.Contains(scheduler.errs.String()+body, "secret-word") {
		t.Errorf("scheduler without its Redis = %d with %q", code, scheduler.errs.String())
	}
	settings[0] = "DATABASE_URL=postgres://nobody:secret-word@127.0.0.1:1/x"
	if code, _, stderr := run(t, settings, "scheduler"); code != exitFailed || !strings.Contains(stderr, "connect to database") || strings.Contains(stderr, "secret-word") {
		t.Errorf("scheduler without its database = %d with %q", code, stderr)
	}
}
