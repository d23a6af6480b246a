-- +goose Up

-- Rows wait here until the broker has confirmed them, and are then deleted. Within one key, id order is
-- commit order: whoever writes a key's row holds the lock of the key's aggregate until it commits.
CREATE TABLE outbox (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id text        NOT NULL,
    topic      text        NOT NULL, -- the event's name
    key        text        NOT NULL, -- the aggregate's id
    payload    bytea       NOT NULL,
    metadata   jsonb       NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- Keys whose first message the broker refused. All rows of such a key wait, so that its order holds.
CREATE TABLE outbox_held (
    key      text PRIMARY KEY,
    attempts int         NOT NULL,
    next_try timestamptz,          -- NULL: none, until an operator redrives or drops the message
    error    text        NOT NULL,
    since    timestamptz NOT NULL DEFAULT now()
);

-- +goose Down
DROP TABLE outbox_held;
DROP TABLE outbox;
