-- +goose Up

-- One row per message that was handled. It commits with the effect, so the row is there exactly if the
-- effect is. handled_at is when its transaction began.
CREATE TABLE inbox (
    consumer    text COLLATE "C" NOT NULL,
    message_id  text COLLATE "C" NOT NULL,
    fingerprint bytea            NOT NULL,
    handled_at  timestamptz      NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, message_id)
) WITH (
    -- Rows are never updated, and the cleaner deletes them in the order in which they came. By default a
    -- fifth of them would be dead before they are vacuumed.
    autovacuum_vacuum_scale_factor = 0.05
);

-- For the cleaner, which looks for the oldest of a consumer.
CREATE INDEX inbox_handled_at ON inbox (consumer, handled_at);

-- +goose Down
DROP TABLE inbox;
