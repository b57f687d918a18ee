-- +goose Up

-- Whom to merge when WhatsApp tells whose a LID is, in whichever organization they are.
CREATE INDEX contact_aliases_lid ON contact_aliases (alias) WHERE alias LIKE 'lid:%';

-- When a chat was last of use, for retention. The index that was there before served nothing.
DROP INDEX IF EXISTS chats_opened;
CREATE INDEX chats_age ON chats ((CASE WHEN last_out_at>=last_in_at AND last_out_at>=token_at THEN last_out_at WHEN last_in_at>=token_at THEN last_in_at ELSE token_at END));
