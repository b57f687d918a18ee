-- +goose Up
ALTER TABLE inbound_messages ADD COLUMN content @bytes@; -- sealed JSON of fleet.Content, NULL where there is only text
