package cli

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
)

// forkedPID finds the process of a shard's latest start.
func forkedPID(t *testing.T, s *started, shard int) int {
	t.Helper()
	pattern := regexp.MustCompile(`shard's process started" shard=` + strconv.Itoa(shard) + ` pid=(\d+)`)
	all := pattern.FindAllStringSubmatch(s.errs.String(), -1)
	if len(all) == 0 {
		t.Fatalf("shard %d was never started:\n%s", shard, s.errs.String())
	}
	pid, err := strconv.Atoi(all[len(all)-1][1])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestAWorkerOfSeveralShardsRunsOneProcessPerShardAndMendsThem(t *testing.T) {
	url := storetest.PostgresURL(t)
	st := storetest.Open(t, url)
	if _, err := st.CreateOrganization(t.Context(), fleet.Organization{ID: "org-a", Strategy: fleet.StrategyWeighted}); err != nil {
		t.Fatal(err)
	}
	var ids []fleet.SessionID
	for range 12 {
		s, err := st.CreateSession(t.Context(), store.NewSession{Org: "org-a"})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, s.ID)
	}
	settings := append(sharedSettings(t, url), "SHARD_COUNT=2", "WORKER_ID=w", "GOMEMLIMIT=512MiB", "LEASE_TTL=30s", "LEASE_BEAT=1s")
	parent, cmd := spawn(t, settings, "worker")
	ops := parent.waitReady()
	owned := func() {
		t.Helper()
		testkit.Eventually(t, 20*time.Second, func() error {
			for _, id := range ids {
				s, err := st.SessionByID(t.Context(), id)
				if err != nil {
					return err
				}
				if want := fmt.Sprintf("w-%d", fleet.ShardOf(id, 2)); s.OwnerID() != want {
					return fmt.Errorf("session %s is owned by %q, want %s", id, s.OwnerID(), want)
				}
			}
			return nil
		})
	}
	owned()
	if status, body := get(t, ops+"/readyz", ""); status != http.StatusOK || !strings.Contains(body, `"shard 0":"ok"`) || !strings.Contains(body, `"shard 1":"ok"`) {
		t.Errorf("/readyz = %d %s, want both shards in it", status, body)
	}
	_, metrics := get(t, ops+"/metrics", "")
	for _, want := range []string{`wafleet_worker_sessions_active{shard="0"} `, `wafleet_worker_sessions_active{shard="1"} `, `go_gc_gomemlimit_bytes{shard="0"} 2.68435456e+08`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	if n := strings.Count(metrics, "# TYPE wafleet_worker_sessions_active "); n != 1 {
		t.Errorf("/metrics has the heading of a family %d times, want once", n)
	}

	// A child that is killed comes back, without anybody waiting for its leases to run out.
	if err := syscall.Kill(forkedPID(t, parent, 1), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	parent.find(`(sessions of an ended process are free)`)
	owned()
	parent.waitReady()

	// Children don't outlive their parent.
	pids := []int{forkedPID(t, parent, 0), forkedPID(t, parent, 1)}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-parent.done
	testkit.Eventually(t, 20*time.Second, func() error {
		for _, pid := range pids {
			if state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(state), ") Z ") {
				return fmt.Errorf("process %d lives on", pid)
			}
		}
		workers, err := st.Workers(t.Context())
		if err == nil && len(workers) > 0 {
			err = fmt.Errorf("workers %v are still registered", workers)
		}
		return err
	})

	again, _ := spawn(t, settings, "worker")
	again.waitReady()
	owned()
	if code := again.stop(); code != exitOK {
		t.Errorf("a graceful stop ended with %d:\n%s", code, again.errs.String())
	}
	for _, id := range ids {
		if s, err := st.SessionByID(t.Context(), id); err != nil || s.OwnerID() != "" {
			t.Errorf("after the stop %s is owned by %q, %v:\n%s", id, s.OwnerID(), err, again.errs.String())
		}
	}
}

func TestMetricsOfSeveralProcessesStandUnderOneHeading(t *testing.T) {
	var e exposition
	e.add("# HELP a Things.\n# TYPE a gauge\na 1\n", "")
	text := "# HELP a Things.\n# TYPE a gauge\na 2\n# HELP b Others, {odd}.\n# TYPE b counter\nb{x=\"y z\"} 3\nb{x=\"\"} 4\n"
	e.add(text, `shard="0"`)
	e.add(text, `shard="1"`)
	want := "# HELP a Things.\n# TYPE a gauge\na 1\na{shard=\"0\"} 2\na{shard=\"1\"} 2\n" +
		"# HELP b Others, {odd}.\n# TYPE b counter\nb{shard=\"0\",x=\"y z\"} 3\nb{shard=\"0\",x=\"\"} 4\nb{shard=\"1\",x=\"y z\"} 3\nb{shard=\"1\",x=\"\"} 4\n"
	if d := cmp.Diff(want, e.String()); d != "" {
		t.Errorf("exposition (-want +got):\n%s", d)
	}
}
