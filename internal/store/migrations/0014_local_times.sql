-- +goose Up

-- When messages for later are wanted by the clocks of a place: rules of time zones change until then.
CREATE TABLE local_times (
	message_id TEXT PRIMARY KEY,
	local      TEXT NOT NULL,
	zone       TEXT NOT NULL
);
