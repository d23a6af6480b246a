-- +goose Up

CREATE TABLE payment_intents (
    id             text PRIMARY KEY,
    status         text   NOT NULL CHECK (status IN ('requires_confirmation', 'requires_payment_method', 'succeeded', 'canceled')),
    amount         bigint NOT NULL CHECK (amount > 0), -- in the currency's minor unit
    currency       text   NOT NULL,
    payment_method text,           -- null after a decline
    decline_code   text,           -- null unless declined
    latest_charge  text,           -- null unless succeeded
    metadata       jsonb  NOT NULL,
    created        bigint NOT NULL -- Unix time, as Stripe has it
);

-- One row per capture, only ever inserted. There is no unique constraint on the payment intent, on purpose:
-- the lock on the intent's row prevents a second capture, and an audit that counts the captures per order
-- must be able to see one.
CREATE TABLE charges (
    id                text PRIMARY KEY,
    payment_intent_id text        NOT NULL REFERENCES payment_intents,
    amount            bigint      NOT NULL CHECK (amount > 0),
    currency          text        NOT NULL,
    order_id          text        NOT NULL, -- the intent's metadata[order_id], empty if it has none
    created_at        timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX charges_by_order ON charges (order_id);

-- Likewise, one row per refund.
CREATE TABLE refunds (
    id                text PRIMARY KEY,
    payment_intent_id text        NOT NULL REFERENCES payment_intents,
    charge_id         text        NOT NULL REFERENCES charges,
    amount            bigint      NOT NULL CHECK (amount > 0),
    currency          text        NOT NULL,
    order_id          text        NOT NULL,
    created_at        timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX refunds_by_payment_intent ON refunds (payment_intent_id);
CREATE INDEX refunds_by_order ON refunds (order_id);

-- The answer to the first request with a key. It commits with the request's effect, so the row is there
-- exactly if the effect is. After 24 hours it counts as absent.
CREATE TABLE idempotency_keys (
    key        text PRIMARY KEY,
    request    text        NOT NULL, -- path and parameters; a repetition must have the same
    status     int         NOT NULL,
    body       bytea       NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- +goose Down
DROP TABLE idempotency_keys;
DROP TABLE refunds;
DROP TABLE charges;
DROP TABLE payment_intents;
