package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/cmdline"
)

var update = flag.Bool("update", false, "write docs/configuration.md anew")

// parse reads a configuration as a command would.
func parse(t *testing.T, args, environ []string) (*Config, error) {
	t.Helper()
	var c Config
	l := cmdline.Describe(&c)
	if _, err := l.Read(args); err != nil {
		return &c, err
	}
	return &c, Fill(l, environ)
}

func mustParse(t *testing.T, args, environ []string) *Config {
	t.Helper()
	c, err := parse(t, args, environ)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "settings")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDefaultsAreTheDocumentedOnesAndPass(t *testing.T) {
	c := mustParse(t, nil, nil)
	want := Config{
		Storage: Storage{DataDir: "./data", DatabasePoolMax: 16},
		HTTP:    HTTP{Listen: "127.0.0.1:8080", OpsListen: "127.0.0.1:9090"},
		Routing: Routing{HealthMin: 30, HealthPenalty: 20, HealthReward: 5, WarmDays: 28},
		Worker:  Worker{WorkerMaxSessions: 500, RestoreConcurrency: 10, LeaseTTL: 30 * time.Second, LeaseBeat: 10 * time.Second},
		Retention: Retention{
			RetentionMessagesDays: 90, RetentionEventsDays: 30, RetentionAttemptsDays: 7, RetentionIdempotencyDays: 2, RetentionChatsDays: 365, RetentionCommandsDays: 7,
		},
		Logging: Logging{LogFormat: "text", LogLevel: slog.LevelInfo},
	}
	if d := cmp.Diff(want, *c); d != "" {
		t.Errorf("defaults (-want +got):\n%s", d)
	}
	if err := c.Check(); err != nil {
		t.Errorf("Check of the defaults = %v, want nil", err)
	}
}

func TestFlagsCountBeforeTheEnvironmentAndThatBeforeTheFile(t *testing.T) {
	settings := file(t, "LEASE_TTL=40s\nLEASE_BEAT=11s\nWORKER_ID=from-file\nLOG_FORMAT=json\n")
	for _, tc := range []struct {
		name          string
		args, environ []string
		want          string
	}{
		{"nothing but the default", nil, nil, "30s"},
		{"the file", []string{"--config", settings}, nil, "40s"},
		{"the file named by the environment", nil, []string{"WAFLEET_CONFIG=" + settings}, "40s"},
		{"the environment before the file", []string{"--config=" + settings}, []string{"LEASE_TTL=50s"}, "50s"},
		{"a flag before both", []string{"--lease-ttl=60s", "--config", settings}, []string{"LEASE_TTL=50s"}, "1m0s"},
		{"a flag with the default's value is a flag", []string{"--config", settings, "--lease-ttl", "30s"}, nil, "30s"},
		{"empty is absent", []string{"--config", settings}, []string{"LEASE_TTL="}, "40s"},
		{"--config before WAFLEET_CONFIG", []string{"--config", settings}, []string{"WAFLEET_CONFIG=/nowhere"}, "40s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := mustParse(t, tc.args, tc.environ).LeaseTTL.String(); got != tc.want {
				t.Errorf("LEASE_TTL = %s, want %s", got, tc.want)
			}
		})
	}
	c := mustParse(t, []string{"--config", settings}, nil)
	if c.LogFormat != "json" || c.Name() != "from-file" || c.LeaseBeat != 11*time.Second {
		t.Errorf("the file gave LOG_FORMAT=%s WORKER_ID=%s LEASE_BEAT=%s", c.LogFormat, c.Name(), c.LeaseBeat)
	}
}

func TestSecretsMayComeFromFiles(t *testing.T) {
	secret := file(t, "  deadbeef\n")
	settings := file(t, "DATA_KEY_FILE="+secret+"\n")
	for name, tc := range map[string]struct{ args, environ []string }{
		"the environment's twin":                      {nil, []string{"DATA_KEY_FILE=" + secret}},
		"the file's twin":                             {[]string{"--config", settings}, nil},
		"the environment's twin before the file":      {[]string{"--config", file(t, "DATA_KEY=other")}, []string{"DATA_KEY_FILE=" + secret}},
		"the environment before the file's twin":      {[]string{"--config", settings}, []string{"DATA_KEY=deadbeef"}},
		"a flag before everything, even both at once": {[]string{"--data-key=deadbeef"}, []string{"DATA_KEY=a", "DATA_KEY_FILE=b"}},
	} {
		c, err := parse(t, tc.args, tc.environ)
		if err != nil || c.DataKey.Reveal() != "deadbeef" {
			t.Errorf("%s: DATA_KEY = %q, %v, want the file's text without the spaces around", name, c.DataKey.Reveal(), err)
		}
	}
	if c := mustParse(t, nil, []string{"WORKER_ID_FILE=" + secret}); c.WorkerID != "" {
		t.Errorf("WORKER_ID = %q: only secrets have twins", c.WorkerID)
	}
}

func TestErrorsSayWhichSettingAndWhereAndNeverASecret(t *testing.T) {
	for _, tc := range []struct {
		name, want    string
		args, environ []string
	}{
		{"both twins", "DATA_KEY and DATA_KEY_FILE are both set in the environment: remove one", nil, []string{"DATA_KEY=secret-word", "DATA_KEY_FILE=x"}},
		{"a missing secret file", "DATA_KEY can't be read as DATA_KEY_FILE in the environment says", nil, []string{"DATA_KEY_FILE=/no/such"}},
		{"an empty secret file", "DATABASE_URL is empty in the file that DATABASE_URL_FILE", nil, []string{"DATABASE_URL_FILE=/dev/null"}},
		{"a bad duration in the environment", "LEASE_TTL in the environment", nil, []string{"LEASE_TTL=soon"}},
		{"a bad number in the file", "DATABASE_POOL_MAX in ", []string{"--config", file(t, "DATABASE_POOL_MAX=many")}, nil},
		{"a bad bool", "WEBHOOK_ALLOW_PRIVATE in the environment", nil, []string{"WEBHOOK_ALLOW_PRIVATE=perhaps"}},
		{"a bad word of a list", "LOG_FORMAT in the environment must be one of text, json", nil, []string{"LOG_FORMAT=xml"}},
		{"a bad level", "LOG_LEVEL in the environment", nil, []string{"LOG_LEVEL=loud"}},
		{"a typing mistake in the file", "DATABSE_URL in line 2 of ", []string{"--config", file(t, "\nDATABSE_URL=postgres://secret-word@x")}, nil},
		{"and its cure", "did you mean DATABASE_URL?", []string{"--config", file(t, "DATABSE_URL=x")}, nil},
		{"an unknown setting like nothing", "see docs/configuration.md", []string{"--config", file(t, "FOO=x")}, nil},
		{"a missing settings file", "WAFLEET_CONFIG names a file that can't be read", []string{"--config", "/no/such"}, nil},
		{"a broken settings file", "can't be understood: line 2: expected NAME=value", []string{"--config", file(t, "A=1\nsecret-word")}, nil},
		{"--simulator style flags are no settings of a file", "SIMULATOR in line 1", []string{"--config", file(t, "SIMULATOR=http://127.0.0.1:7700")}, nil},
	} {
		_, err := parse(t, tc.args, tc.environ)
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret-word") {
			t.Errorf("%s: %v, want an error with %q", tc.name, err, tc.want)
		}
	}
}

func TestCheckNamesEveryWrongSetting(t *testing.T) {
	for _, tc := range []struct{ arg, setting, want string }{
		{"--data-dir=", "DATA_DIR", "name a folder"},
		{"--database-url=mysql://secret-word@h/db", "DATABASE_URL", "postgres://… or sqlite:PATH"},
		{"--database-pool-max=1", "DATABASE_POOL_MAX", "at least 2"},
		{"--listen=8080", "LISTEN", "HOST:PORT"},
		{"--ops-listen=127.0.0.1:8080", "OPS_LISTEN", "another port"},
		{"--public-url=wa.example.com", "PUBLIC_URL", "https://"},
		{"--public-url=https://user:secret-word@wa.example.com", "PUBLIC_URL", "https://"},
		{"--trusted-proxies=10.0.0.0/8,proxy", "TRUSTED_PROXIES", `"proxy"`},
		{"--worker-id=---", "WORKER_ID", "letter or digit"},
		{"--worker-max-sessions=0", "WORKER_MAX_SESSIONS", "at least 1"},
		{"--restore-concurrency=0", "RESTORE_CONCURRENCY", "at least 1"},
		{"--lease-ttl=100ms", "LEASE_TTL", "between 1s and 1h"},
		{"--lease-beat=15s", "LEASE_BEAT", "less than half of LEASE_TTL (30s)"},
		{"--lease-beat=0s", "LEASE_BEAT", "positive"},
		{"--shard-count=0", "SHARD_COUNT", "1 to 1024"},
		{"--whatsapp-shard-count=1025", "WHATSAPP_SHARD_COUNT", "1 to 1024"},
		{"--shard-index=1", "SHARD_INDEX", "0 to SHARD_COUNT-1 (0)"},
		{"--shard-index=-1", "SHARD_INDEX", "0 to SHARD_COUNT-1 (0)"},
		{"--shard-adopt-after=59s", "SHARD_ADOPT_AFTER", "twice LEASE_TTL (30s)"},
		{"--wa-web-version=2.3000", "WA_WEB_VERSION", "three numbers"},
		{"--retention-messages-days=3", "RETENTION_MESSAGES_DAYS", "at least 4"},
		{"--retention-events-days=91", "RETENTION_EVENTS_DAYS", "RETENTION_MESSAGES_DAYS (90)"},
		{"--retention-attempts-days=1", "RETENTION_ATTEMPTS_DAYS", "at least 2"},
		{"--retention-idempotency-days=0", "RETENTION_IDEMPOTENCY_DAYS", "at least 1"},
		{"--retention-commands-days=0", "RETENTION_COMMANDS_DAYS", "at least 1"},
	} {
		err := mustParse(t, []string{tc.arg}, nil).Check()
		_, ok := errors.AsType[*Error](err)
		if !ok || !strings.Contains(err.Error(), tc.setting+" ") || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret-word") {
			t.Errorf("Check with %s = %v, want %s and %q", tc.arg, err, tc.setting, tc.want)
		}
	}
	err := mustParse(t, []string{"--listen=x", "--lease-ttl=1ms", "--worker-max-sessions=-1"}, nil).Check()
	if n := strings.Count(err.Error(), "\n"); n != 3 {
		t.Errorf("Check with four mistakes = %v, want four lines", err)
	}
}

func TestAShardIndexIsBelowItsCountAndTheCountsTwoNamesAgree(t *testing.T) {
	for _, tc := range []struct {
		name    string
		environ []string
		count   int
		want    string // the setting that is wrong
	}{
		{"nothing is set", nil, 1, ""},
		{"the last shard", []string{"SHARD_COUNT=3", "SHARD_INDEX=2"}, 3, ""},
		{"one too many", []string{"SHARD_COUNT=3", "SHARD_INDEX=3"}, 3, "SHARD_INDEX"},
		{"an index of one shard", []string{"SHARD_INDEX=0"}, 1, ""},
		{"the other name", []string{"WHATSAPP_SHARD_COUNT=2", "SHARD_INDEX=1"}, 2, ""},
		{"both names agree", []string{"WHATSAPP_SHARD_COUNT=2", "SHARD_COUNT=2"}, 2, ""},
		{"they do not", []string{"WHATSAPP_SHARD_COUNT=1", "SHARD_COUNT=2"}, 2, "WHATSAPP_SHARD_COUNT"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := mustParse(t, nil, tc.environ)
			if got := c.Shards(); got != tc.count {
				t.Errorf("Shards() = %d, want %d", got, tc.count)
			}
			switch err := c.Check(); {
			case tc.want == "" && err != nil:
				t.Errorf("Check() = %v, want nil", err)
			case tc.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tc.want+" is ")):
				t.Errorf("Check() = %v, want %s refused", err, tc.want)
			}
		})
	}
}

func TestSeparateProcessesNeedPostgresRedisAndTheKeys(t *testing.T) {
	all := []string{"DATABASE_URL=postgres://h/db", "REDIS_URL=redis://h", "DATA_KEY=a", "LOOKUP_KEY=b"}
	if err := mustParse(t, nil, all).CheckShared("worker"); err != nil {
		t.Errorf("CheckShared with everything = %v, want nil", err)
	}
	for i, setting := range []string{"DATABASE_URL", "REDIS_URL", "DATA_KEY", "LOOKUP_KEY"} {
		environ := append([]string{}, all[:i]...)
		err := mustParse(t, nil, append(environ, all[i+1:]...)).CheckShared("worker")
		if err == nil || !strings.HasPrefix(err.Error(), setting+" must be") || !strings.Contains(err.Error(), `"worker"`) {
			t.Errorf("CheckShared without %s = %v", setting, err)
		}
	}
	if err := mustParse(t, nil, append([]string{"DATABASE_URL=sqlite:/x"}, all[1:]...)).CheckShared("api"); err == nil {
		t.Error("CheckShared on SQLite = nil, want a refusal")
	}
}

func TestSecretsPrintRedacted(t *testing.T) {
	c := mustParse(t, []string{"--data-key=secret-word", "--redis-url=redis://:secret-word@h"}, []string{"DATABASE_URL=postgres://u:secret-word@h/db", "LOOKUP_KEY=secret-word"})
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("config", slog.Any("all", c), slog.Any("key", c.DataKey))
	slog.New(slog.NewTextHandler(&log, nil)).Info("config", slog.Any("all", c), slog.Any("key", c.DataKey))
	raw, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	all := log.String() + string(raw) + fmt.Sprintf("%v %+v %#v %s %q", *c, *c, *c, c.DataKey, c.DataKey)
	if strings.Contains(all, "secret-word") {
		t.Errorf("a secret shows in:\n%s", all)
	}
	if !strings.Contains(all, "redacted") {
		t.Errorf("nothing is redacted in:\n%s", all)
	}
	if c.DataKeyPrevious.String() != "" {
		t.Error("an absent secret prints as if it were there")
	}
}

func TestWorkerNamesAreNormalised(t *testing.T) {
	for in, want := range map[string]string{
		"worker-1": "worker-1", " Worker 1 ": "worker-1", "Wörker_é": "w-rker", "a/b:c": "a-b-c", strings.Repeat("x", 80): strings.Repeat("x", 63),
	} {
		if got := (&Worker{WorkerID: in}).Name(); got != want {
			t.Errorf("WORKER_ID %q is %q, want %q", in, got, want)
		}
	}
	if got := (&Worker{}).Name(); got == "" || got != (&Worker{}).Name() || !strings.HasSuffix(got, strconv.Itoa(os.Getpid())) {
		t.Errorf("the default WORKER_ID is %q, want host name and process id", got)
	}
}

func TestTrustedProxiesAreAddressesAndNetworks(t *testing.T) {
	c := mustParse(t, []string{"--trusted-proxies=10.0.0.7/8, 192.0.2.1,2001:db8::/32"}, nil)
	got, err := c.Proxies()
	var texts []string
	for _, p := range got {
		texts = append(texts, p.String())
	}
	if d := cmp.Diff([]string{"10.0.0.0/8", "192.0.2.1/32", "2001:db8::/32"}, texts); err != nil || d != "" {
		t.Errorf("Proxies = %v (-want +got):\n%s", err, d)
	}
}

func TestEverySettingIsAFlagOfItsNameAndIsDocumented(t *testing.T) {
	groups := map[string]bool{}
	for _, g := range Groups {
		groups[g.Key] = true
	}
	for _, s := range settings() {
		flag := strings.ToLower(strings.ReplaceAll(s.Name, "_", "-"))
		if s.Name == fileSetting {
			flag = "config"
		}
		if s.Name == "" || s.Flag != flag || s.Help == "" || !groups[s.Group] {
			t.Errorf("setting %q is --%s, want --%s with help and a known group: %+v", s.Name, s.Flag, flag, s)
		}
	}
}

func TestConfigurationDocumentIsCurrent(t *testing.T) {
	const path = "../../docs/configuration.md"
	want := Markdown()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Errorf("%s is not current; run go test ./internal/config -update (-want +got):\n%s", path, d)
	}
}
