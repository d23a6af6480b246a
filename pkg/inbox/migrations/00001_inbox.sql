-- +goose Up

-- One row per message that was handled. It commits with the effect, so the row is there exactly if the
-- effect is.
CREATE TABLE inbox (
    consumer   text        NOT NULL,
    message_id text        NOT NULL,
    handled_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, message_id)
);

-- +goose Down
DROP TABLE inbox;
