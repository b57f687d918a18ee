-- +goose Up

-- What is being deleted: a session that was, or an organization. A row is a job: whoever works on it does one short
-- transaction after another, and each writes how far it came.
CREATE TABLE purges (
	kind        TEXT NOT NULL,                          -- session, organization
	subject     TEXT NOT NULL,                          -- sessions.id or organizations.id
	org_id      TEXT NOT NULL,
	step        BIGINT NOT NULL DEFAULT 0,              -- which comes next
	place       BIGINT NOT NULL DEFAULT 0,              -- how far a step came that walks through a table
	deleted     BIGINT NOT NULL DEFAULT 0,              -- rows so far
	created_at  BIGINT NOT NULL,
	finished_at BIGINT NOT NULL DEFAULT 0,
	PRIMARY KEY (kind, subject)
);
CREATE INDEX purges_open ON purges (created_at) WHERE finished_at = 0;

-- Devices that a session logs in with no more: their keys go.
CREATE TABLE former_devices (
	jid        TEXT PRIMARY KEY,
	session_id TEXT NOT NULL
);
CREATE INDEX former_devices_session ON former_devices (session_id);

CREATE INDEX chats_session ON chats (session_id);
CREATE INDEX commands_session ON commands (session_id);

-- What projects sent and organizations received, by day of the organization's time zone.
CREATE TABLE usage_days (
	org_id     TEXT NOT NULL,
	project_id TEXT NOT NULL,                           -- '': what came in, which is no project's
	day        TEXT NOT NULL,                           -- 2026-11-30
	accepted   BIGINT NOT NULL DEFAULT 0,
	sent       BIGINT NOT NULL DEFAULT 0,
	delivered  BIGINT NOT NULL DEFAULT 0,
	failed     BIGINT NOT NULL DEFAULT 0,
	received   BIGINT NOT NULL DEFAULT 0,
	PRIMARY KEY (org_id, project_id, day)
);

-- When a project got its quota: what it was accepted before does not count.
ALTER TABLE projects ADD COLUMN quota_since BIGINT NOT NULL DEFAULT 0;

INSERT INTO purges (kind, subject, org_id, created_at) SELECT 'session', id, org_id, created_at FROM sessions WHERE desired = 'deleted';
INSERT INTO purges (kind, subject, org_id, created_at) SELECT 'organization', id, id, deleted_at FROM organizations WHERE deleted_at > 0;
