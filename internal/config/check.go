package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"
)

// Error says which setting is wrong and what to do. It never shows a secret.
type Error struct {
	Setting string
	Problem string
}

// Error reads "LEASE_BEAT must be …". The flag's name follows from the setting's.
func (e *Error) Error() string { return e.Setting + " " + e.Problem }

// Check looks at every setting and returns all that is wrong, joined.
func (c *Config) Check() error {
	var errs []error
	bad := func(setting, problem string, args ...any) {
		errs = append(errs, &Error{setting, fmt.Sprintf(problem, args...)})
	}
	atLeast := func(setting string, have, least int) {
		if have < least {
			bad(setting, "is %d: it must be at least %d", have, least)
		}
	}
	if c.DataDir == "" {
		bad("DATA_DIR", "is empty: name a folder")
	}
	if url := c.DatabaseURL.Reveal(); url != "" {
		switch scheme, _, found := strings.Cut(url, "://"); {
		case !found, scheme == "postgres", scheme == "postgresql":
		default:
			bad("DATABASE_URL", "begins with %q: use postgres://… or sqlite:PATH", scheme+"://")
		}
	}
	atLeast("DATABASE_POOL_MAX", c.DatabasePoolMax, 2)

	for setting, value := range map[string]string{"LISTEN": c.Listen, "OPS_LISTEN": c.OpsListen} {
		if _, _, err := net.SplitHostPort(value); err != nil {
			bad(setting, "is %q: use HOST:PORT, such as 127.0.0.1:8080, or :8080 for every address", value)
		}
	}
	if c.Listen == c.OpsListen && !strings.HasSuffix(c.Listen, ":0") {
		bad("OPS_LISTEN", "is the same address as LISTEN: give it another port")
	}
	if c.PublicURL != "" {
		u, err := url.Parse(c.PublicURL)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			bad("PUBLIC_URL", "is not a plain http:// or https:// address, such as https://wa.example.com")
		}
	}
	if _, err := c.Proxies(); err != nil {
		bad("TRUSTED_PROXIES", "%v", err)
	}

	if c.WorkerID != "" && normalWorkerID(c.WorkerID) == "" {
		bad("WORKER_ID", "has no letter or digit: choose a name such as worker-1")
	}
	for setting, value := range map[string]int{"HEALTH_MIN": c.HealthMin, "HEALTH_PENALTY": c.HealthPenalty, "HEALTH_REWARD": c.HealthReward} {
		if value < 1 || value > 100 {
			bad(setting, "is %d: it must be 1 to 100", value)
		}
	}
	if c.WarmDays < 1 || c.WarmDays > 28 {
		bad("WARM_DAYS", "is %d: it must be 1 to 28", c.WarmDays)
	}
	atLeast("SEND_RATE", c.SendRate, 0)
	atLeast("REQUEST_RATE", c.RequestRate, 0)
	atLeast("WORKER_MAX_SESSIONS", c.WorkerMaxSessions, 1)
	atLeast("RESTORE_CONCURRENCY", c.RestoreConcurrency, 1)
	if c.LeaseTTL < time.Second || c.LeaseTTL > time.Hour {
		bad("LEASE_TTL", "is %s: it must be between 1s and 1h", c.LeaseTTL)
	}
	if c.LeaseBeat <= 0 || 2*c.LeaseBeat >= c.LeaseTTL {
		bad("LEASE_BEAT", "is %s: it must be positive and less than half of LEASE_TTL (%s), so that one lost beat does not lose the lease", c.LeaseBeat, c.LeaseTTL)
	}
	c.checkShards(bad)
	if c.WAWebVersion != "" && !webVersion.MatchString(c.WAWebVersion) {
		bad("WA_WEB_VERSION", "is %q: it must be three numbers, such as 2.3000.1023456789", c.WAWebVersion)
	}

	atLeast("RETENTION_MESSAGES_DAYS", c.RetentionMessagesDays, 4) // longer than fleet.PayloadRetention
	atLeast("RETENTION_EVENTS_DAYS", c.RetentionEventsDays, 4)     // longer than a delivery is tried
	if c.RetentionEventsDays > c.RetentionMessagesDays {
		bad("RETENTION_EVENTS_DAYS", "is %d: events refer to messages, so it can't be more than RETENTION_MESSAGES_DAYS (%d)", c.RetentionEventsDays, c.RetentionMessagesDays)
	}
	atLeast("RETENTION_ATTEMPTS_DAYS", c.RetentionAttemptsDays, 2)
	atLeast("RETENTION_IDEMPOTENCY_DAYS", c.RetentionIdempotencyDays, 1)
	atLeast("RETENTION_CHATS_DAYS", c.RetentionChatsDays, 28) // longer than anybody is warm
	atLeast("RETENTION_COMMANDS_DAYS", c.RetentionCommandsDays, 1)
	return join(errs)
}

// checkShards: a wrong number here would leave sessions without an owner, so nothing is guessed.
func (c *Config) checkShards(bad func(setting, problem string, args ...any)) {
	count := c.Shards()
	for setting, value := range map[string]*int{"SHARD_COUNT": c.ShardCount, "WHATSAPP_SHARD_COUNT": c.WhatsAppShardCount} {
		if value != nil && (*value < 1 || *value > maxShards) {
			bad(setting, "is %d: it must be 1 to %d", *value, maxShards)
			count = 0
		}
	}
	if a, b := c.ShardCount, c.WhatsAppShardCount; a != nil && b != nil && *a != *b {
		bad("WHATSAPP_SHARD_COUNT", "is %d and SHARD_COUNT is %d: they are two names of one setting, so remove one, or make them equal in every process", *b, *a)
		count = 0
	}
	if i := c.ShardIndex; i != nil && (*i < 0 || count > 0 && *i >= count) {
		bad("SHARD_INDEX", "is %d: it must be 0 to SHARD_COUNT-1 (%d)", *i, max(count, 1)-1)
	}
	if d := c.ShardAdoptAfter; d < 0 || d > 0 && d < 2*c.LeaseTTL {
		bad("SHARD_ADOPT_AFTER", "is %s: it must be 0, or at least twice LEASE_TTL (%s)", d, c.LeaseTTL)
	}
}

// maxShards is far more than processes make sense.
const maxShards = 1024

// Shards is how many parts the fleet's sessions are cut into; at least 1.
func (c *Worker) Shards() int {
	for _, n := range []*int{c.ShardCount, c.WhatsAppShardCount} {
		if n != nil {
			return max(*n, 1)
		}
	}
	return 1
}

var webVersion = regexp.MustCompile(`^\d{1,9}\.\d{1,9}\.\d{1,12}$`)

// CheckShared returns what a separate process of this name lacks: it meets the others only in
// PostgreSQL and Redis, and must not make keys of its own.
func (c *Config) CheckShared(command string) error {
	var errs []error
	if !c.Postgres() {
		errs = append(errs, &Error{"DATABASE_URL", fmt.Sprintf("must be postgres://… for %q: separate processes meet in PostgreSQL. Without it run \"wafleet up\", which is all of them in one process", command)})
	}
	if c.RedisURL == "" {
		errs = append(errs, &Error{"REDIS_URL", fmt.Sprintf("must be redis://… for %q: separate processes wake each other over Redis", command)})
	}
	return join(append(errs, c.CheckKeys(command)))
}

// CheckKeys returns which keys a command lacks that does not make them itself.
func (c *Keys) CheckKeys(command string) error {
	var errs []error
	for setting, value := range map[string]Secret{"DATA_KEY": c.DataKey, "LOOKUP_KEY": c.LookupKey} {
		if value == "" {
			errs = append(errs, &Error{setting, fmt.Sprintf("must be set for %q, the same for every process (or %s_FILE); openssl rand -hex 32 makes one", command, setting)})
		}
	}
	return join(errs)
}

// join flattens errors and orders them by their text, so that a message never depends on a map.
func join(errs []error) error {
	var list []error
	for _, e := range errs {
		if many, ok := e.(interface{ Unwrap() []error }); ok {
			list = append(list, many.Unwrap()...)
		} else if e != nil {
			list = append(list, e)
		}
	}
	sortErrors(list)
	return errors.Join(list...)
}

// Postgres reports whether DATABASE_URL is PostgreSQL's.
func (c *Storage) Postgres() bool {
	u := c.DatabaseURL.Reveal()
	return strings.HasPrefix(u, "postgres://") || strings.HasPrefix(u, "postgresql://")
}

// Proxies are the trusted proxies; a bare address stands for itself.
func (c *HTTP) Proxies() ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, raw := range c.TrustedProxies {
		raw = strings.TrimSpace(raw)
		p, err := netip.ParsePrefix(raw)
		if err != nil {
			addr, addrErr := netip.ParseAddr(raw)
			if addrErr != nil {
				return nil, fmt.Errorf("has %q, which is neither an address nor a network such as 10.0.0.0/8", raw)
			}
			p = netip.PrefixFrom(addr, addr.BitLen())
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// Name is the worker's name: WORKER_ID, else host name and process id, in lower-case letters,
// digits, dots and hyphens.
func (c *Worker) Name() string {
	if id := normalWorkerID(c.WorkerID); id != "" {
		return id
	}
	host, _ := os.Hostname()
	return fmt.Sprintf("%s-%d", cmp.Or(normalWorkerID(host), "worker"), os.Getpid())
}

const maxWorkerID = 63

func normalWorkerID(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.', r == '-':
			return r
		default:
			return '-'
		}
	}, strings.ToLower(strings.TrimSpace(s)))
	if len(s) > maxWorkerID {
		s = s[:maxWorkerID]
	}
	return strings.Trim(s, "-.")
}
