-- +goose Up

-- How often what processes keep of rows has changed. They look each second, in case a nudge was lost.
CREATE TABLE changes (what TEXT PRIMARY KEY, n BIGINT NOT NULL);
INSERT INTO changes (what, n) VALUES ('keys', 1);

-- Requests of any kind in a minute, on average; 0: no limit.
ALTER TABLE projects ADD COLUMN requests_minute BIGINT NOT NULL DEFAULT 0;
