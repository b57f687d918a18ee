package cli

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/wafleet/wafleet/trials/cluster"
)

// The processes of deploy/compose.yml, with its commands and settings, are a whole gateway, and each answers its
// container's health check.
func TestTheComposeFileIsAWholeGateway(t *testing.T) {
	f := startFleet(t, func(o *cluster.Options) { o.Compose = "../../deploy/compose.yml" })
	want := []string{"sim", "api", "api2", "scheduler", "scheduler2", "webhooks", "worker", "worker2"}
	if got := f.Names(); !slices.Equal(got, want) {
		t.Errorf("processes of the compose file: %v, want %v", got, want)
	}
	for _, name := range want[1:] {
		ops, err := f.Process(name).Ready(t.Context())
		f.must(err)
		code, out, errs := run(t, []string{"OPS_LISTEN=" + strings.TrimPrefix(ops, "http://")}, "health")
		if code != exitOK || !strings.Contains(out, `"status":"ready"`) {
			t.Errorf("health of %s = %d with %s%s", name, code, out, errs)
		}
	}
	f.must(f.Pair(t.Context(), 2))
	f.talk("through one api", 1)()
	f.API = f.Others[0]
	f.talk("through the other", 1)()
	f.settle()
	report, err := f.Audit(t.Context())
	f.must(err)
	if report.Count() > 0 {
		t.Errorf("the audit found: %s", report)
	}
	if err := f.Stop(); err != nil {
		t.Errorf("stop of everything: %v", err)
	}
}

func TestHealthSaysWhatIsWrong(t *testing.T) {
	for _, c := range []struct{ listen, want string }{
		{"127.0.0.1:1", "refused"},
		{"here", `OPS_LISTEN is "here"`},
	} {
		if code, _, errs := run(t, []string{"OPS_LISTEN=" + c.listen}, "health"); code == exitOK || !strings.Contains(errs, c.want) {
			t.Errorf("health at %s = %d with %q, want %q", c.listen, code, errs, c.want)
		}
	}
}

// What the file leaves to the reader is in the example.
func TestTheComposeFileIsReadAsItIsWritten(t *testing.T) {
	example, err := os.ReadFile("../../deploy/.env.example")
	if err != nil {
		t.Fatal(err)
	}
	vars := map[string]string{}
	for line := range strings.Lines(string(example)) {
		if name, _, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			vars[name] = "given"
		}
	}
	services, err := cluster.ReadCompose("../../deploy/compose.yml", vars)
	if err != nil {
		t.Fatal(err)
	}
	replicas := map[string]int{}
	for _, s := range services {
		replicas[s.Name] = s.Replicas
		if want := "postgres://wafleet:given@postgres:5432/wafleet?sslmode=disable"; s.Settings["DATABASE_URL"] != want {
			t.Errorf("DATABASE_URL of %s = %q, want %q", s.Name, s.Settings["DATABASE_URL"], want)
		}
		if !slices.Equal(s.Command, []string{s.Name}) {
			t.Errorf("command of %s = %q, want its name", s.Name, s.Command)
		}
	}
	if replicas["api"] != 2 || replicas["worker"] != 2 || replicas["scheduler"] != 2 || replicas["webhooks"] != 1 || replicas["migrate"] != 1 {
		t.Errorf("replicas = %v", replicas)
	}
	if _, err := cluster.ReadCompose("../../deploy/compose.yml", nil); err == nil || !strings.Contains(err.Error(), "DATA_KEY") {
		t.Errorf("without variables = %v, want what is missing", err)
	}
}
