-- +goose Up

-- One text for PostgreSQL and SQLite. Tokens replaced before goose reads it:
--   @serial@  an ascending integer primary key made by the database
--   @bytes@   binary
-- Times are unix milliseconds. Ids are text made by the process. A zero time is 0, never NULL.

CREATE TABLE meta (
	key   TEXT PRIMARY KEY,
	value TEXT NOT NULL
);

CREATE TABLE organizations (
	id              TEXT PRIMARY KEY,
	label           TEXT NOT NULL,
	strategy        TEXT NOT NULL,
	head_session_id TEXT NOT NULL DEFAULT '',
	next_number     BIGINT NOT NULL DEFAULT 1,
	created_at      BIGINT NOT NULL
);

CREATE TABLE projects (
	id         TEXT PRIMARY KEY,
	org_id     TEXT NOT NULL REFERENCES organizations (id),
	name       TEXT NOT NULL,
	created_at BIGINT NOT NULL,
	UNIQUE (org_id, name)
);

CREATE TABLE api_keys (
	id          TEXT PRIMARY KEY,
	org_id      TEXT REFERENCES organizations (id), -- NULL: admin key
	project_id  TEXT REFERENCES projects (id),
	admin       BOOLEAN NOT NULL,
	label       TEXT NOT NULL,
	prefix      TEXT NOT NULL,
	lookup_hash @bytes@ NOT NULL UNIQUE,
	verify_hash TEXT NOT NULL,
	created_at  BIGINT NOT NULL,
	revoked_at  BIGINT NOT NULL DEFAULT 0
);

CREATE TABLE sessions (
	id                  TEXT PRIMARY KEY,               -- UUIDv4: decides the shard
	shard_key           BIGINT NOT NULL,                -- first 8 hex digits of id; shard = shard_key mod SHARD_COUNT
	slug                TEXT NOT NULL UNIQUE,
	org_id              TEXT NOT NULL REFERENCES organizations (id),
	label               TEXT NOT NULL DEFAULT '',
	position            BIGINT NOT NULL,
	desired             TEXT NOT NULL,
	paused              BOOLEAN NOT NULL DEFAULT FALSE,

	-- observed: written by the owner only, under its fence
	observed            TEXT NOT NULL,
	observed_since      BIGINT NOT NULL,
	announced           TEXT NOT NULL DEFAULT '',       -- state last told by a session.status event
	observed_epoch      BIGINT NOT NULL DEFAULT 0,
	generation          BIGINT NOT NULL DEFAULT 0,
	reason              TEXT NOT NULL DEFAULT '',
	reason_code         BIGINT NOT NULL DEFAULT 0,
	last_error          TEXT NOT NULL DEFAULT '',
	attempts            BIGINT NOT NULL DEFAULT 0,
	retry_at            BIGINT NOT NULL DEFAULT 0,
	until_at            BIGINT NOT NULL DEFAULT 0,

	-- the login
	phone               TEXT NOT NULL DEFAULT '',
	device_jid          TEXT NOT NULL DEFAULT '',
	lid                 TEXT NOT NULL DEFAULT '',
	push_name           TEXT NOT NULL DEFAULT '',
	platform            TEXT NOT NULL DEFAULT '',
	paired_at           BIGINT NOT NULL DEFAULT 0,
	revoked_at          BIGINT NOT NULL DEFAULT 0,

	-- the pairing under way
	pairing_method      TEXT NOT NULL DEFAULT '',
	pairing_qr          TEXT NOT NULL DEFAULT '',
	pairing_code        TEXT NOT NULL DEFAULT '',
	pairing_expires_at  BIGINT NOT NULL DEFAULT 0,
	pairing_ends_at     BIGINT NOT NULL DEFAULT 0,

	created_at          BIGINT NOT NULL
);
CREATE INDEX sessions_org ON sessions (org_id, position);
-- A number belongs to one live session over all organizations.
CREATE UNIQUE INDEX sessions_phone ON sessions (phone) WHERE phone <> '' AND desired <> 'deleted';

-- The fence locks these rows and nothing else writes them but claim, beat and release.
CREATE TABLE leases (
	session_id TEXT PRIMARY KEY REFERENCES sessions (id),
	owner      TEXT NOT NULL DEFAULT '',
	epoch      BIGINT NOT NULL DEFAULT 0,
	expires_at BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX leases_owner ON leases (owner);

CREATE TABLE lease_log (
	session_id TEXT NOT NULL,
	epoch      BIGINT NOT NULL,
	owner      TEXT NOT NULL,
	at         BIGINT NOT NULL,
	PRIMARY KEY (session_id, epoch)
);

CREATE TABLE workers (
	owner        TEXT PRIMARY KEY,
	id           TEXT NOT NULL,
	version      TEXT NOT NULL,
	sessions     BIGINT NOT NULL,
	max_sessions BIGINT NOT NULL,
	draining     BOOLEAN NOT NULL,
	started_at   BIGINT NOT NULL,
	beat_at      BIGINT NOT NULL
);

-- seq per stream: a conversation, else a session, else an organization.
CREATE TABLE streams (
	id  TEXT PRIMARY KEY,
	seq BIGINT NOT NULL
);

CREATE TABLE conversations (
	id          TEXT PRIMARY KEY,
	org_id      TEXT NOT NULL REFERENCES organizations (id),
	contact_key TEXT NOT NULL,
	created_at  BIGINT NOT NULL,
	UNIQUE (org_id, contact_key)
);

CREATE TABLE messages (
	seq             @serial@,
	id              TEXT NOT NULL UNIQUE,
	org_id          TEXT NOT NULL REFERENCES organizations (id),
	project_id      TEXT NOT NULL,
	session_id      TEXT NOT NULL REFERENCES sessions (id),
	conversation_id TEXT NOT NULL,
	contact_key     TEXT NOT NULL,
	to_input        TEXT NOT NULL,
	to_jid          TEXT NOT NULL,
	kind            TEXT NOT NULL,
	client_ref      TEXT NOT NULL DEFAULT '',
	body            @bytes@,                            -- sealed under id
	payload         @bytes@,                            -- sealed marshalled protobuf, stored before the frame
	wa_id           TEXT NOT NULL,

	status          TEXT NOT NULL,
	outcome         TEXT NOT NULL DEFAULT '',
	error_code      TEXT NOT NULL DEFAULT '',
	error_detail    TEXT NOT NULL DEFAULT '',
	attempts        BIGINT NOT NULL DEFAULT 0,
	repeats         BIGINT NOT NULL DEFAULT 0,
	claim_epoch     BIGINT NOT NULL DEFAULT 0,
	locked_until    BIGINT NOT NULL DEFAULT 0,

	due_at          BIGINT NOT NULL,
	expires_at      BIGINT NOT NULL,
	unknown_since   BIGINT NOT NULL DEFAULT 0,
	unknown_told    BOOLEAN NOT NULL DEFAULT FALSE,     -- the 60 s event was written
	next_repeat_at  BIGINT NOT NULL DEFAULT 0,
	created_at      BIGINT NOT NULL,
	sent_at         BIGINT NOT NULL DEFAULT 0,
	delivered_at    BIGINT NOT NULL DEFAULT 0,
	read_at         BIGINT NOT NULL DEFAULT 0,
	played_at       BIGINT NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX messages_wa_id ON messages (session_id, wa_id);
CREATE INDEX messages_lane ON messages (session_id, seq) WHERE status IN ('queued', 'sending');
CREATE INDEX messages_expiry ON messages (expires_at) WHERE status = 'queued';
CREATE INDEX messages_org ON messages (org_id, seq);
CREATE INDEX messages_age ON messages (created_at);
CREATE INDEX messages_payload ON messages (created_at) WHERE payload IS NOT NULL;

-- Every frame of every message.
CREATE TABLE attempts (
	message_id TEXT NOT NULL,
	n          BIGINT NOT NULL,
	session_id TEXT NOT NULL,
	epoch      BIGINT NOT NULL,
	kind       TEXT NOT NULL,
	at         BIGINT NOT NULL,
	outcome    TEXT NOT NULL DEFAULT '',
	code       BIGINT NOT NULL DEFAULT 0,
	PRIMARY KEY (message_id, n)
);
CREATE INDEX attempts_session ON attempts (session_id, at);
CREATE INDEX attempts_age ON attempts (at);

CREATE TABLE idempotency_keys (
	org_id       TEXT NOT NULL,
	key          TEXT NOT NULL,
	body_hash    @bytes@ NOT NULL,
	holder       TEXT NOT NULL,
	state        TEXT NOT NULL,                         -- pending, done
	locked_until BIGINT NOT NULL,
	status       BIGINT NOT NULL DEFAULT 0,             -- HTTP status of the stored answer
	answer       @bytes@,                               -- sealed under org_id/key
	created_at   BIGINT NOT NULL,
	PRIMARY KEY (org_id, key)
);
CREATE INDEX idempotency_keys_age ON idempotency_keys (created_at);

CREATE TABLE inbound_messages (
	n               @serial@,
	id              TEXT NOT NULL UNIQUE,
	org_id          TEXT NOT NULL REFERENCES organizations (id),
	session_id      TEXT NOT NULL REFERENCES sessions (id),
	conversation_id TEXT NOT NULL,
	chat            TEXT NOT NULL,
	sender          TEXT NOT NULL,
	sender_phone    TEXT NOT NULL DEFAULT '',
	sender_lid      TEXT NOT NULL DEFAULT '',
	push_name       TEXT NOT NULL DEFAULT '',
	wa_id           TEXT NOT NULL,
	kind            TEXT NOT NULL,
	version         BIGINT NOT NULL DEFAULT 0,
	body            @bytes@,                            -- sealed text
	raw             @bytes@,                            -- sealed marshalled message
	offline         BOOLEAN NOT NULL,
	sent_at         BIGINT NOT NULL,
	received_at     BIGINT NOT NULL,
	UNIQUE (session_id, chat, wa_id, kind, version)
);
CREATE INDEX inbound_messages_age ON inbound_messages (received_at);

CREATE TABLE commands (
	n            @serial@,
	id           TEXT NOT NULL UNIQUE,
	session_id   TEXT NOT NULL REFERENCES sessions (id),
	class        TEXT NOT NULL,
	kind         TEXT NOT NULL,
	payload      TEXT NOT NULL,
	status       TEXT NOT NULL,
	result       TEXT NOT NULL DEFAULT '',
	error_code   TEXT NOT NULL DEFAULT '',
	error        TEXT NOT NULL DEFAULT '',
	attempts     BIGINT NOT NULL DEFAULT 0,
	claim_epoch  BIGINT NOT NULL DEFAULT 0,
	created_at   BIGINT NOT NULL,
	expires_at   BIGINT NOT NULL,
	finished_at  BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX commands_open ON commands (session_id, n) WHERE status IN ('pending', 'running');
CREATE INDEX commands_age ON commands (created_at);

CREATE TABLE endpoints (
	id                   TEXT PRIMARY KEY,
	org_id               TEXT REFERENCES organizations (id), -- NULL: hears every organization
	scope                TEXT NOT NULL,
	url                  TEXT NOT NULL,
	description          TEXT NOT NULL DEFAULT '',
	events               TEXT NOT NULL DEFAULT '',      -- kinds joined by commas; '' = all of its scope
	disabled             BOOLEAN NOT NULL DEFAULT FALSE,
	disabled_why         TEXT NOT NULL DEFAULT '',
	secret               @bytes@ NOT NULL,              -- sealed under id
	previous_secret      @bytes@,                       -- sealed under id; live during a rotation
	previous_secret_ends BIGINT NOT NULL DEFAULT 0,
	max_concurrency      BIGINT NOT NULL,
	failures             BIGINT NOT NULL DEFAULT 0,
	failing_since        BIGINT NOT NULL DEFAULT 0,
	open_until           BIGINT NOT NULL DEFAULT 0,
	last_success_at      BIGINT NOT NULL DEFAULT 0,
	created_at           BIGINT NOT NULL,
	deleted_at           BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX endpoints_org ON endpoints (org_id) WHERE deleted_at = 0;

CREATE TABLE events (
	n               @serial@,
	id              TEXT NOT NULL UNIQUE,
	org_id          TEXT REFERENCES organizations (id), -- NULL: concerns no organization
	kind            TEXT NOT NULL,
	session_id      TEXT NOT NULL DEFAULT '',
	conversation_id TEXT NOT NULL DEFAULT '',
	stream          TEXT NOT NULL,
	seq             BIGINT NOT NULL,
	data            TEXT NOT NULL,                      -- fleet.EventData as JSON: references, never bodies
	created_at      BIGINT NOT NULL,
	UNIQUE (stream, seq)
);
CREATE INDEX events_age ON events (created_at);

CREATE TABLE deliveries (
	n            @serial@,
	id           TEXT NOT NULL UNIQUE,
	endpoint_id  TEXT NOT NULL REFERENCES endpoints (id),
	event_id     TEXT NOT NULL,
	org_id       TEXT NOT NULL,
	stream       TEXT NOT NULL,
	ordered      BOOLEAN NOT NULL DEFAULT TRUE,
	ready        BOOLEAN NOT NULL,                      -- may be tried: unordered, or first ordered of its (endpoint, stream), kept so under the row lock of the stream
	replay       BOOLEAN NOT NULL DEFAULT FALSE,
	status       TEXT NOT NULL,
	attempts     BIGINT NOT NULL DEFAULT 0,
	due_at       BIGINT NOT NULL,
	locked_until BIGINT NOT NULL DEFAULT 0,
	locked_by    TEXT NOT NULL DEFAULT '',
	first_fail   BIGINT NOT NULL DEFAULT 0,
	last_status  BIGINT NOT NULL DEFAULT 0,
	last_error   TEXT NOT NULL DEFAULT '',
	created_at   BIGINT NOT NULL,
	finished_at  BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX deliveries_head ON deliveries (endpoint_id, stream, n) WHERE status = 'pending' AND ordered;
CREATE INDEX deliveries_due ON deliveries (endpoint_id, due_at, n) WHERE status = 'pending' AND ready;
CREATE INDEX deliveries_busy ON deliveries (endpoint_id, locked_until) WHERE status = 'pending' AND locked_until > 0;
CREATE INDEX deliveries_event ON deliveries (event_id) WHERE status = 'pending';
CREATE INDEX deliveries_org ON deliveries (org_id, n);
CREATE INDEX deliveries_age ON deliveries (created_at);

-- One row per periodic job. A slot is held while it is worked on, and only finishing it advances
-- next_at: a scheduler that dies in between loses no slot.
CREATE TABLE schedules (
	name         TEXT PRIMARY KEY,
	every_ms     BIGINT NOT NULL,
	next_at      BIGINT NOT NULL,
	last_at      BIGINT NOT NULL DEFAULT 0,
	holder       TEXT NOT NULL DEFAULT '',
	locked_until BIGINT NOT NULL DEFAULT 0
);

-- Held by the one process that runs on PostgreSQL without Redis: what Redis would share is in its memory.
CREATE TABLE singleton (
	name       TEXT PRIMARY KEY,
	owner      TEXT NOT NULL,
	expires_at BIGINT NOT NULL
);
