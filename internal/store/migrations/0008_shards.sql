-- +goose Up

-- Which part of the fleet a worker is for, and whether an operator wants it empty.
ALTER TABLE workers ADD COLUMN shard_count BIGINT NOT NULL DEFAULT 1;
ALTER TABLE workers ADD COLUMN shard_index BIGINT NOT NULL DEFAULT 0; -- -1: all of them
ALTER TABLE workers ADD COLUMN drain BOOLEAN NOT NULL DEFAULT FALSE;
