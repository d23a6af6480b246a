-- +goose Up

-- A payment is the intent to charge, the work item of the executor, and the record of the outcome.
CREATE TABLE payments (
    id             uuid PRIMARY KEY,
    order_id       uuid        NOT NULL UNIQUE, -- one payment per order, whatever is left of the inbox's guard
    version        bigint      NOT NULL,
    customer       text        NOT NULL,
    amount         bigint      NOT NULL CHECK (amount >= 0),
    currency       text        NOT NULL,
    payment_method text        NOT NULL,
    status         text        NOT NULL
        CHECK (status IN ('new', 'created', 'confirming', 'captured', 'declined', 'voided', 'refunded')),
    cancel_wanted  boolean     NOT NULL,
    intent_id      text        NOT NULL, -- the provider's, '' before it is created
    refund_id      text        NOT NULL, -- the provider's, '' before it is refunded
    decline_code   text        NOT NULL,
    attempts       int         NOT NULL DEFAULT 0, -- failed calls of the provider, for the pause before the next
    due_at         timestamptz,                    -- when the executor takes it up; NULL: nothing to do
    created_at     timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX payments_due ON payments (due_at) WHERE due_at IS NOT NULL;

-- What each customer owes.
CREATE TABLE accounts (
    customer text   NOT NULL,
    currency text   NOT NULL,
    balance  bigint NOT NULL,
    PRIMARY KEY (customer, currency)
);

-- +goose Down
DROP TABLE accounts;
DROP TABLE payments;
