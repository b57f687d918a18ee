-- +goose Up

-- One person as an organization knows them, and their exchange with it.
CREATE TABLE contacts (
	id              TEXT PRIMARY KEY,
	org_id          TEXT NOT NULL REFERENCES organizations (id),
	contact_key     TEXT NOT NULL,                      -- match key: one of the aliases
	phone           TEXT NOT NULL DEFAULT '',
	lid             TEXT NOT NULL DEFAULT '',
	jid             TEXT NOT NULL DEFAULT '',           -- where frames go, as WhatsApp said; '' before it was asked
	conversation_id TEXT NOT NULL UNIQUE,
	checked_at      BIGINT NOT NULL DEFAULT 0,          -- when WhatsApp said so last
	absent          BOOLEAN NOT NULL DEFAULT FALSE,     -- it said that there is no account
	created_at      BIGINT NOT NULL
);
CREATE INDEX contacts_org ON contacts (org_id, id);

-- What a person is found under: match keys, and the ids of contacts that were merged into this one.
CREATE TABLE contact_aliases (
	org_id     TEXT NOT NULL,
	alias      TEXT NOT NULL,
	contact_id TEXT NOT NULL,
	PRIMARY KEY (org_id, alias)
);
CREATE INDEX contact_aliases_contact ON contact_aliases (contact_id);

-- Who does not want to hear from an organization: one row per match key of the person, so that a claim needs one
-- lookup whatever the message was addressed to. Rows stay when an opt-out ends, or an old STOP that comes late would count.
CREATE TABLE opt_outs (
	org_id      TEXT NOT NULL,
	contact_key TEXT NOT NULL,
	contact_id  TEXT NOT NULL,
	active      BOOLEAN NOT NULL,
	at          BIGINT NOT NULL,                        -- WhatsApp's time of a keyword
	source      TEXT NOT NULL,                          -- keyword, manual, import
	keyword     TEXT NOT NULL DEFAULT '',
	PRIMARY KEY (org_id, contact_key)
);
CREATE INDEX opt_outs_contact ON opt_outs (contact_id);

ALTER TABLE organizations ADD COLUMN people_rules TEXT NOT NULL DEFAULT '';  -- fleet.PeopleRules as JSON
ALTER TABLE messages ADD COLUMN unresolved BOOLEAN NOT NULL DEFAULT FALSE;   -- WhatsApp is asked where it goes before its first frame
ALTER TABLE messages ADD COLUMN exempt BOOLEAN NOT NULL DEFAULT FALSE;       -- it confirms an opt-out, which doesn't hold it back

-- Every conversation is somebody's. Their numbers become match keys: two variants of one number become one contact.
INSERT INTO contacts (id, org_id, contact_key, phone, lid, conversation_id, created_at)
	SELECT 'ctc_' || substr(min(c.id), 5), c.org_id, c.folded,
		coalesce(min(CASE WHEN c.contact_key LIKE 'lid:%' THEN NULL ELSE c.contact_key END), ''),
		coalesce(min(CASE WHEN c.contact_key LIKE 'lid:%' THEN substr(c.contact_key, 5) END), ''),
		min(c.id), min(c.created_at)
	FROM (SELECT id, org_id, contact_key, created_at, CASE
			WHEN contact_key LIKE '55%' AND length(contact_key)=12 AND substr(contact_key, 5, 1) NOT BETWEEN '2' AND '5'
				THEN substr(contact_key, 1, 4) || '9' || substr(contact_key, 5)
			WHEN contact_key LIKE '521%' AND length(contact_key)=13 THEN '52' || substr(contact_key, 4)
			WHEN contact_key LIKE '54%' AND length(contact_key)=12 THEN '549' || substr(contact_key, 3)
			WHEN contact_key LIKE '229%' AND length(contact_key)=11 THEN '22901' || substr(contact_key, 4)
			ELSE contact_key END AS folded FROM conversations) AS c
	GROUP BY c.org_id, c.folded;
INSERT INTO contact_aliases (org_id, alias, contact_id) SELECT org_id, contact_key, id FROM contacts;
DROP TABLE conversations;
