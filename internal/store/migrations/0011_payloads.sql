-- +goose Up

-- Another token: @number@, the type of a key that is another table's @serial@.

-- What a message's frame says, sealed, stored before the frame. Apart from its row, which is written anew with every
-- status. Rows go in the order of their messages, so that neither needs an index by age.
CREATE TABLE payloads (
	message @number@ PRIMARY KEY,                       -- messages.seq
	sealed  @bytes@ NOT NULL
);
INSERT INTO payloads (message, sealed) SELECT seq, payload FROM messages WHERE payload IS NOT NULL;

DROP INDEX messages_payload;
ALTER TABLE messages DROP COLUMN payload;

-- Sequence numbers go up with time: what is older than something is found by halving (Store.before).
DROP INDEX messages_age;
DROP INDEX events_age;
DROP INDEX attempts_age;                                -- attempts_session serves, session by session
