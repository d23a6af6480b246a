-- +goose Up

-- Rows wait here until the broker has confirmed them, and are then deleted. Within one key, id order is
-- commit order: whoever writes a key's row holds the lock of the key's aggregate until it commits.
--
-- The transaction id stands before the id, so that it is taken before the id is: columns are computed in
-- their order. The relay's scan hint relies on it (hint.go).
CREATE TABLE outbox (
    xid        xid8        NOT NULL DEFAULT pg_current_xact_id(),
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id text        NOT NULL,
    topic      text        NOT NULL, -- the event's name
    key        text        NOT NULL, -- the aggregate's id
    payload    bytea       NOT NULL,
    metadata   json        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
) WITH (
    -- Every row is deleted within moments, so the table is nearly all dead rows at any time. Vacuum early,
    -- by the count of dead rows alone, and without pauses.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold    = 5000,
    autovacuum_vacuum_cost_delay   = 0,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold   = 50000
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
