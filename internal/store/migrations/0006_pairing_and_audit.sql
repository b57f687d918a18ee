-- +goose Up

-- Links with which an organization adds numbers by itself. The token is never stored: the HMAC finds the row,
-- the argon2id hash proves the token, as with API keys.
CREATE TABLE pairing_invites (
	id           TEXT PRIMARY KEY,
	org_id       TEXT NOT NULL REFERENCES organizations (id),
	lookup_hash  @bytes@ NOT NULL UNIQUE,
	verify_hash  TEXT NOT NULL,
	max_sessions BIGINT NOT NULL,
	used         BIGINT NOT NULL DEFAULT 0 CHECK (used >= 0 AND used <= max_sessions), -- sessions that hold a slot
	made_by      TEXT NOT NULL DEFAULT '',               -- key id
	created_at   BIGINT NOT NULL,
	expires_at   BIGINT NOT NULL,
	revoked_at   BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX pairing_invites_org ON pairing_invites (org_id, id);

ALTER TABLE sessions ADD COLUMN invite_id TEXT NOT NULL DEFAULT '';  -- the link that added it
ALTER TABLE sessions ADD COLUMN invite_end TEXT NOT NULL DEFAULT ''; -- why it gave its slot back; '' while it holds one
CREATE INDEX sessions_invite ON sessions (invite_id, created_at) WHERE invite_id <> '';
CREATE INDEX sessions_invite_open ON sessions (id) WHERE invite_id <> '' AND invite_end = '' AND paired_at = 0;

-- Who changed what. Only ever added to.
CREATE TABLE audit_log (
	n       @serial@,
	at      BIGINT NOT NULL,
	actor   TEXT NOT NULL,                               -- key id of an admin, invite id, or the command that did it
	action  TEXT NOT NULL,
	org_id  TEXT NOT NULL DEFAULT '',                    -- '': concerns no organization
	subject TEXT NOT NULL,                               -- id of what was changed
	before  TEXT NOT NULL DEFAULT '',                    -- JSON without secrets; '' = did not exist
	after   TEXT NOT NULL DEFAULT ''
);
CREATE INDEX audit_log_org ON audit_log (org_id, n);

ALTER TABLE organizations ADD COLUMN deleted_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE projects ADD COLUMN deleted_at BIGINT NOT NULL DEFAULT 0;

-- What a project may do. 0: no limit.
ALTER TABLE projects ADD COLUMN monthly_quota BIGINT NOT NULL DEFAULT 0; -- messages in a month of the organization's time zone
ALTER TABLE projects ADD COLUMN max_backlog BIGINT NOT NULL DEFAULT 0;   -- messages that wait to be sent
ALTER TABLE projects ADD COLUMN rate_minute BIGINT NOT NULL DEFAULT 0;   -- messages accepted in a minute, on average
ALTER TABLE projects ADD COLUMN rate_burst BIGINT NOT NULL DEFAULT 0;    -- of these, at once; 0: a minute's worth
ALTER TABLE organizations ADD COLUMN time_zone TEXT NOT NULL DEFAULT 'UTC';
