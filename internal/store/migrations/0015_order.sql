-- +goose Up

-- The seq of a message to the same person that waited on another number when this one was accepted: it goes first. 0: none.
ALTER TABLE messages ADD COLUMN trails BIGINT NOT NULL DEFAULT 0;
