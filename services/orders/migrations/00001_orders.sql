-- +goose Up

-- A removed product stays as a row, so that its SKU's versions go on if it is created again.
CREATE TABLE products (
    sku      text PRIMARY KEY,
    version  bigint  NOT NULL,
    name     text    NOT NULL,
    price    bigint  NOT NULL CHECK (price >= 0), -- in the currency's minor unit
    currency text    NOT NULL,
    stock    bigint  NOT NULL CHECK (stock >= 0), -- what can still be ordered
    received bigint  NOT NULL CHECK (received >= stock), -- all that was ever put into stock
    removed  boolean NOT NULL
);

CREATE TABLE orders (
    id              uuid PRIMARY KEY,
    version         bigint      NOT NULL,
    customer        text        NOT NULL,
    status          text        NOT NULL CHECK (status IN ('placed', 'confirmed', 'rejected', 'cancelled')),
    total           bigint      NOT NULL CHECK (total >= 0),
    currency        text        NOT NULL,
    payment_method  text        NOT NULL,
    payment_version bigint      NOT NULL, -- of the last payment event that was taken into account
    reason          text        NOT NULL,
    placed_at       timestamptz NOT NULL
);

CREATE INDEX orders_placed ON orders (placed_at) WHERE status = 'placed';
CREATE INDEX orders_by_customer ON orders (customer, placed_at);

CREATE TABLE order_lines (
    order_id   uuid   NOT NULL REFERENCES orders,
    line       int    NOT NULL,
    sku        text   NOT NULL REFERENCES products,
    name       text   NOT NULL,
    quantity   bigint NOT NULL CHECK (quantity > 0),
    unit_price bigint NOT NULL CHECK (unit_price >= 0),
    PRIMARY KEY (order_id, line)
);

-- +goose Down
DROP TABLE order_lines;
DROP TABLE orders;
DROP TABLE products;
