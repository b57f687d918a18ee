// Package config is every setting of wafleet: one struct, read once, checked as a whole.
//
// A setting has one name, such as LEASE_TTL, under which it stands in the environment and in the file
// of --config, and a flag made from it, --lease-ttl. The command line counts before the environment,
// and that before the file. Empty is the same as absent. A setting NAME that may be secret can be given
// as NAME_FILE instead, the path of a file that holds it.
//
// The package reads files and the environment it is given, and nothing else: it opens no database and
// makes no key. What one process needs and another does not is said by Check.
package config

import (
	"log/slog"
	"time"
)

// Config holds the settings. The tags are read by cmdline, and setting and secret by Fill;
// docs/configuration.md is made from them.
type Config struct {
	Storage
	Keys
	HTTP
	Worker
	Routing
	Webhooks
	Retention
	Logging
}

// Storage says where rows and nudges are.
type Storage struct {
	DataDir         string `setting:"DATA_DIR" default:"./data" placeholder:"DIR" group:"storage" help:"Folder of 'up': the SQLite file, the keys made at the first start, and the lock that keeps a second 'up' out."`
	DatabaseURL     Secret `setting:"DATABASE_URL" secret:"" placeholder:"URL" group:"storage" help:"postgres://… or sqlite:PATH. 'up' uses a SQLite file in DATA_DIR without it; separate processes need PostgreSQL."`
	DatabasePoolMax int    `setting:"DATABASE_POOL_MAX" default:"16" group:"storage" help:"Database connections for work, per process. Lease beats have one more of their own."`
	RedisURL        Secret `setting:"REDIS_URL" secret:"" placeholder:"URL" group:"storage" help:"redis://… or rediss://…: carries nudges between processes. Only 'up' runs without it, and then only one on a PostgreSQL database."`
	RedisPrefix     string `setting:"REDIS_PREFIX" placeholder:"TEXT" group:"storage" help:"Goes in front of every Redis name, for several fleets on one server."`
}

// Keys are the secrets of the database.
type Keys struct {
	DataKey           Secret `setting:"DATA_KEY" secret:"" placeholder:"KEY" group:"keys" help:"Encrypts bodies in the database: 32 bytes as 64 hex digits or base64. 'up' makes one in DATA_DIR at its first start."`
	DataKeyPrevious   Secret `setting:"DATA_KEY_PREVIOUS" secret:"" placeholder:"KEYS" group:"keys" help:"Earlier data keys, separated by commas: they still open what they sealed."`
	LookupKey         Secret `setting:"LOOKUP_KEY" secret:"" placeholder:"KEY" group:"keys" help:"Hashes API keys so that they can be found: 32 bytes as 64 hex digits or base64. 'up' makes one in DATA_DIR at its first start."`
	LookupKeyPrevious Secret `setting:"LOOKUP_KEY_PREVIOUS" secret:"" placeholder:"KEYS" group:"keys" help:"Earlier lookup keys, separated by commas: API keys made under them still work."`
}

// HTTP says where a process listens.
type HTTP struct {
	Listen         string   `setting:"LISTEN" default:"127.0.0.1:8080" placeholder:"HOST:PORT" group:"http" help:"Where the API listens."`
	OpsListen      string   `setting:"OPS_LISTEN" default:"127.0.0.1:9090" placeholder:"HOST:PORT" group:"http" help:"Where /healthz, /readyz, /version and /metrics listen. Not for the public."`
	PublicURL      string   `setting:"PUBLIC_URL" placeholder:"URL" group:"http" help:"The API's address as clients see it, for links. http://LISTEN without it."`
	TrustedProxies []string `setting:"TRUSTED_PROXIES" placeholder:"CIDR,…" group:"http" help:"Addresses of proxies whose X-Forwarded-For is believed."`
}

// Worker is how sessions are owned.
type Worker struct {
	WorkerID           string        `setting:"WORKER_ID" placeholder:"NAME" group:"worker" help:"Name of the worker in leases, logs and the API; unique over the fleet. Host name and process id without it."`
	WorkerMaxSessions  int           `setting:"WORKER_MAX_SESSIONS" default:"500" group:"worker" help:"Sessions one worker holds at most."`
	RestoreConcurrency int           `setting:"RESTORE_CONCURRENCY" default:"10" group:"worker" help:"Sessions a worker claims, and starts, at a time."`
	LeaseTTL           time.Duration `setting:"LEASE_TTL" default:"30s" group:"worker" help:"How long a session stays with a worker that is not heard of. A killed worker's sessions move after this."`
	LeaseBeat          time.Duration `setting:"LEASE_BEAT" default:"10s" group:"worker" help:"How often a worker renews its leases; less than half of LEASE_TTL."`
	ShardCount         *int          `setting:"SHARD_COUNT" placeholder:"N" group:"worker" help:"Parts into which the fleet's sessions are cut, the same for every process; 1 without it, which is no sharding. A session's part is its id's first eight hex digits modulo this."`
	ShardIndex         *int          `setting:"SHARD_INDEX" placeholder:"N" group:"worker" help:"Which part this worker is for, 0 to SHARD_COUNT-1. Without it 'worker' starts one process per part. Not for 'up', which is for all of them."`
	WhatsAppShardCount *int          `setting:"WHATSAPP_SHARD_COUNT" name:"whatsapp-shard-count" placeholder:"N" group:"worker" help:"Another name of SHARD_COUNT, for producers that call it so. Set to something else than SHARD_COUNT it is refused."`
	ShardAdoptAfter    time.Duration `setting:"SHARD_ADOPT_AFTER" default:"0s" group:"worker" help:"How long a part may be without a worker until workers of other parts take its sessions over, and give them back when it has one again; at least twice LEASE_TTL, 0 is never."`
	WAWebVersion       string        `setting:"WA_WEB_VERSION" placeholder:"A.B.C" group:"worker" help:"The WhatsApp Web version to log in as, instead of the one this binary was built with. For the day WhatsApp calls it outdated."`
}

// Routing is what holds for every number of the fleet.
type Routing struct {
	HealthMin     int `setting:"HEALTH_MIN" default:"30" group:"routing" help:"A number whose health is below this gets no messages. Health is 100 at most, and 100 again after six hours without a message."`
	HealthPenalty int `setting:"HEALTH_PENALTY" default:"20" group:"routing" help:"What a number's health loses when WhatsApp refuses a message because of the number."`
	HealthReward  int `setting:"HEALTH_REWARD" default:"5" group:"routing" help:"What it gains when WhatsApp takes a message."`
	WarmDays      int `setting:"WARM_DAYS" default:"28" group:"routing" help:"Days that somebody who wrote to a number is no stranger to it; 28 at most, the longest that WhatsApp's own tokens for such chats are good."`
	RequestRate   int `setting:"REQUEST_RATE" default:"0" placeholder:"N" group:"routing" help:"Requests per minute that all organizations together may make to the API, on average; 0 is no limit."`
	SendRate      int `setting:"SEND_RATE" default:"0" placeholder:"N" group:"routing" help:"Messages per minute that all organizations together may ask for, on average; 0 is no limit."`
}

// Webhooks is what endpoints may be.
type Webhooks struct {
	WebhookAllowPrivate bool `setting:"WEBHOOK_ALLOW_PRIVATE" group:"webhooks" help:"Let webhook endpoints be on loopback and private addresses. Only for tests and closed networks: tenants could reach your own services."`
}

// Retention says how long rows are kept.
type Retention struct {
	RetentionMessagesDays    int `setting:"RETENTION_MESSAGES_DAYS" default:"90" group:"retention" help:"Days that messages are kept, both ways."`
	RetentionEventsDays      int `setting:"RETENTION_EVENTS_DAYS" default:"30" group:"retention" help:"Days that events and their deliveries are kept; at most RETENTION_MESSAGES_DAYS."`
	RetentionAttemptsDays    int `setting:"RETENTION_ATTEMPTS_DAYS" default:"7" group:"retention" help:"Days that every frame is on record; at least 2, because daily budgets are rebuilt from it."`
	RetentionIdempotencyDays int `setting:"RETENTION_IDEMPOTENCY_DAYS" default:"2" group:"retention" help:"Days that an Idempotency-Key is remembered."`
	RetentionChatsDays       int `setting:"RETENTION_CHATS_DAYS" default:"365" group:"retention" help:"Days that a number remembers who wrote to whom, after the last message; at least 28. Who hears from it later counts as a new chat. Opt-outs and contacts are kept as long as their organization."`
	RetentionCommandsDays    int `setting:"RETENTION_COMMANDS_DAYS" default:"7" group:"retention" help:"Days that ended commands are kept."`
}

// Logging is what every command takes.
type Logging struct {
	ConfigFile string     `name:"config" setting:"WAFLEET_CONFIG" placeholder:"FILE" group:"logs" help:"File with settings, one NAME=value a line."`
	LogFormat  string     `setting:"LOG_FORMAT" default:"text" enum:"text,json" group:"logs" help:"text or json."`
	LogLevel   slog.Level `setting:"LOG_LEVEL" default:"info" placeholder:"LEVEL" group:"logs" help:"debug, info, warn or error."`
}

// Secret is a setting that never prints. Reveal gives it.
type Secret string

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

// String hides the secret but not its absence.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "redacted"
}

// GoString hides the secret in %#v.
func (s Secret) GoString() string { return `"` + s.String() + `"` }

// MarshalText hides the secret in JSON.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue hides the secret in logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
