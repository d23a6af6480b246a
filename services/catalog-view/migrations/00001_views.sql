-- +goose Up

-- A removed product stays as a row, a tombstone with a version, so that a late change can't bring it back.
CREATE TABLE product_view (
    sku      text PRIMARY KEY,
    version  bigint  NOT NULL,
    name     text    NOT NULL,
    price    bigint  NOT NULL,
    currency text    NOT NULL,
    stock    bigint  NOT NULL,
    removed  boolean NOT NULL
);

CREATE TABLE order_view (
    id        uuid PRIMARY KEY,
    version   bigint      NOT NULL,
    customer  text        NOT NULL,
    status    text        NOT NULL,
    lines     jsonb       NOT NULL,
    total     bigint      NOT NULL,
    currency  text        NOT NULL,
    reason    text        NOT NULL,
    placed_at timestamptz NOT NULL
);

-- How many of each product are in confirmed orders.
CREATE TABLE best_sellers (
    sku      text PRIMARY KEY,
    quantity bigint NOT NULL
);

CREATE INDEX best_sellers_by_quantity ON best_sellers (quantity DESC);

-- +goose Down
DROP TABLE best_sellers;
DROP TABLE order_view;
DROP TABLE product_view;
