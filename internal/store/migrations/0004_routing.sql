-- +goose Up

-- What the router knows of a number. -1 stands for the default, so that a better default counts for those
-- who never chose.
ALTER TABLE sessions ADD COLUMN budget_minute BIGINT NOT NULL DEFAULT -1;
ALTER TABLE sessions ADD COLUMN budget_hour BIGINT NOT NULL DEFAULT -1;
ALTER TABLE sessions ADD COLUMN budget_day BIGINT NOT NULL DEFAULT -1;
ALTER TABLE sessions ADD COLUMN new_chats_day BIGINT NOT NULL DEFAULT -1;
ALTER TABLE sessions ADD COLUMN warmup_at BIGINT NOT NULL DEFAULT 0; -- first completed pairing; 0: warmed up
ALTER TABLE sessions ADD COLUMN detached BOOLEAN NOT NULL DEFAULT FALSE; -- taken out of the organization's list: receives, never sends

ALTER TABLE organizations ADD COLUMN affinity_ttl BIGINT NOT NULL DEFAULT 86400000; -- ms

-- How fast messages may be asked for: per minute on average, and how many at once. 0: no limit, and a minute's worth.
ALTER TABLE sessions ADD COLUMN rate_minute BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN rate_burst BIGINT NOT NULL DEFAULT 0;
ALTER TABLE organizations ADD COLUMN rate_minute BIGINT NOT NULL DEFAULT 0;
ALTER TABLE organizations ADD COLUMN rate_burst BIGINT NOT NULL DEFAULT 0;

-- What WhatsApp holds against a number. It stays with the number, whichever session has it.
CREATE TABLE number_limits (
	phone        TEXT PRIMARY KEY,
	cold_until   BIGINT NOT NULL DEFAULT 0, -- must not write to strangers
	cold_told    BOOLEAN NOT NULL DEFAULT FALSE,
	capped_until BIGINT NOT NULL DEFAULT 0, -- must not open new chats
	capped_told  BOOLEAN NOT NULL DEFAULT FALSE
);

-- Who has talked to whom, by match key. A person who wrote within the token window is warm on that session.
CREATE TABLE chats (
	contact_key  TEXT NOT NULL,
	session_id   TEXT NOT NULL REFERENCES sessions (id),
	first_out_at BIGINT NOT NULL DEFAULT 0,
	last_out_at  BIGINT NOT NULL DEFAULT 0,             -- accurate to an hour
	first_in_at  BIGINT NOT NULL DEFAULT 0,
	last_in_at   BIGINT NOT NULL DEFAULT 0,             -- accurate to an hour
	token_at     BIGINT NOT NULL DEFAULT 0,             -- stamp of their trusted-contact token
	PRIMARY KEY (contact_key, session_id)
);
CREATE INDEX chats_opened ON chats (first_out_at) WHERE first_out_at > 0;

ALTER TABLE messages ADD COLUMN reservation TEXT NOT NULL DEFAULT '';      -- what the ledger gave for it; '' once it was given back
ALTER TABLE messages ADD COLUMN ledger_generation BIGINT NOT NULL DEFAULT 0;
ALTER TABLE messages ADD COLUMN opened BOOLEAN NOT NULL DEFAULT FALSE;     -- it opened the chat, and takes that back if it ends before a frame
ALTER TABLE messages ADD COLUMN send_at BIGINT NOT NULL DEFAULT 0;         -- when the caller wants it sent; 0: at once
ALTER TABLE messages ADD COLUMN parked BOOLEAN NOT NULL DEFAULT FALSE;     -- has no number yet, or none any more: no lane sends it
ALTER TABLE messages ADD COLUMN hops BIGINT NOT NULL DEFAULT 0;            -- numbers that were refused by a stranger's gate
CREATE INDEX messages_parked ON messages (due_at) WHERE parked;
-- Reservations of messages that ended before a frame and that the ledger has not got back yet.
CREATE INDEX messages_owed ON messages (seq) WHERE reservation <> '' AND (status IN ('cancelled', 'expired', 'suppressed') OR status = 'failed' AND attempts = 0);

-- Goes up with every rebuild of the ledger: what was reserved before is not good after.
CREATE TABLE ledger (
	name       TEXT PRIMARY KEY,
	generation BIGINT NOT NULL
);
INSERT INTO ledger (name, generation) VALUES ('ledger', 1);
