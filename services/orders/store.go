package orders

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"onceshop/pkg/events"
	"onceshop/pkg/postgres"
)

// All SQL of the service is here. Whoever changes an aggregate locks its row first, and keeps the lock until
// the transaction ends: the order's, then those of products by SKU. So two transactions never wait for each
// other in a circle, and the outbox gets one aggregate's events in the order of their versions.

//go:embed migrations/*.sql
var migrations embed.FS

func schema() postgres.Migrations { return postgres.EmbeddedMigrations("orders", migrations) }

type productRow struct {
	SKU      string `db:"sku"`
	Version  int64  `db:"version"`
	Name     string `db:"name"`
	Price    int64  `db:"price"`
	Currency string `db:"currency"`
	Stock    int64  `db:"stock"`
	Received int64  `db:"received"`
	Removed  bool   `db:"removed"`
}

func (r productRow) product() *Product {
	return &Product{
		sku: r.SKU, version: r.Version, name: r.Name, price: events.Money{Amount: r.Price, Currency: r.Currency},
		stock: r.Stock, received: r.Received, removed: r.Removed,
	}
}

const selectProducts = `SELECT sku, version, name, price, currency, stock, received, removed FROM products `

const lockProducts = selectProducts + `WHERE sku = ANY ($1) ORDER BY sku FOR UPDATE`

// products locks the products and returns them by SKU; unknown ones are missing.
func products(ctx context.Context, tx *sqlx.Tx, skus ...string) (map[string]*Product, error) {
	var rows []productRow
	if err := tx.SelectContext(ctx, &rows, lockProducts, skus); err != nil {
		return nil, fmt.Errorf("lock products: %w", err)
	}
	found := make(map[string]*Product, len(rows))
	for _, row := range rows {
		found[row.SKU] = row.product()
	}
	return found, nil
}

const insertProduct = `
INSERT INTO products (sku, version, name, price, currency, stock, received, removed)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT DO NOTHING`

const updateProduct = `
UPDATE products SET version = $2, name = $3, price = $4, currency = $5, stock = $6, received = $7, removed = $8
WHERE sku = $1`

// saveProduct writes a product that was locked, or is new. One that somebody else has just created is
// ErrProductExists.
func saveProduct(ctx context.Context, tx *sqlx.Tx, p *Product) error {
	query := updateProduct
	if p.version == 1 {
		query = insertProduct
	}
	result, err := tx.ExecContext(ctx, query,
		p.sku, p.version, p.name, p.price.Amount, p.price.Currency, p.stock, p.received, p.removed)
	if err != nil {
		return fmt.Errorf("save product %s: %w", p.sku, err)
	}
	if rows, err := result.RowsAffected(); err != nil || rows == 0 {
		return errors.Join(fmt.Errorf("%w: %s", ErrProductExists, p.sku), err)
	}
	return nil
}

const updateStock = `
UPDATE products SET stock = new.stock, version = new.version
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS new (sku, stock, version)
WHERE products.sku = new.sku AND products.version < new.version`

// saveStock writes the stock of products that were locked.
func saveStock(ctx context.Context, tx *sqlx.Tx, changed map[string]*Product) error {
	var skus []string
	var stocks, versions []int64
	for _, p := range changed {
		skus, stocks, versions = append(skus, p.sku), append(stocks, p.stock), append(versions, p.version)
	}
	if _, err := tx.ExecContext(ctx, updateStock, skus, stocks, versions); err != nil {
		return fmt.Errorf("save stock: %w", err)
	}
	return nil
}

type orderRow struct {
	ID             string    `db:"id"`
	Version        int64     `db:"version"`
	Customer       string    `db:"customer"`
	Status         string    `db:"status"`
	Total          int64     `db:"total"`
	Currency       string    `db:"currency"`
	PaymentMethod  string    `db:"payment_method"`
	PaymentVersion int64     `db:"payment_version"`
	Reason         string    `db:"reason"`
	PlacedAt       time.Time `db:"placed_at"`
}

type lineRow struct {
	OrderID   string `db:"order_id"`
	SKU       string `db:"sku"`
	Name      string `db:"name"`
	Quantity  int64  `db:"quantity"`
	UnitPrice int64  `db:"unit_price"`
}

func (r orderRow) order(lines []lineRow) *Order {
	o := &Order{
		id: r.ID, version: r.Version, customer: r.Customer, status: Status(r.Status),
		total: events.Money{Amount: r.Total, Currency: r.Currency}, paymentMethod: r.PaymentMethod,
		paymentVersion: r.PaymentVersion, reason: r.Reason, placedAt: r.PlacedAt.UTC(),
	}
	for _, line := range lines {
		if line.OrderID == r.ID {
			o.lines = append(o.lines, events.OrderLine{
				SKU: line.SKU, Name: line.Name, Quantity: line.Quantity,
				UnitPrice: events.Money{Amount: line.UnitPrice, Currency: r.Currency},
			})
		}
	}
	return o
}

const selectOrders = `
SELECT id, version, customer, status, total, currency, payment_method, payment_version, reason, placed_at
FROM orders `

const selectLines = `
SELECT order_id, sku, name, quantity, unit_price FROM order_lines WHERE order_id = ANY ($1) ORDER BY order_id, line`

const lockOrder = selectOrders + `WHERE id = $1 FOR UPDATE`

// order locks the order and returns it.
func order(ctx context.Context, tx *sqlx.Tx, id string) (*Order, error) {
	return oneOrder(ctx, tx, lockOrder, id)
}

func oneOrder(ctx context.Context, q sqlx.QueryerContext, query, id string) (*Order, error) {
	orders, err := manyOrders(ctx, q, query, id)
	if err != nil {
		return nil, err
	}
	if len(orders) == 0 {
		return nil, fmt.Errorf("%w: %s", ErrUnknownOrder, id)
	}
	return orders[0], nil
}

func manyOrders(ctx context.Context, q sqlx.QueryerContext, query string, args ...any) ([]*Order, error) {
	var rows []orderRow
	if err := sqlx.SelectContext(ctx, q, &rows, query, args...); err != nil {
		return nil, fmt.Errorf("read orders: %w", err)
	}
	ids := make([]string, len(rows))
	for i, row := range rows {
		ids[i] = row.ID
	}
	var lines []lineRow
	if err := sqlx.SelectContext(ctx, q, &lines, selectLines, ids); err != nil {
		return nil, fmt.Errorf("read order lines: %w", err)
	}
	orders := make([]*Order, len(rows))
	for i, row := range rows {
		orders[i] = row.order(lines)
	}
	return orders, nil
}

const insertOrder = `
INSERT INTO orders (id, version, customer, status, total, currency, payment_method, payment_version, reason, placed_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`

const insertLines = `
INSERT INTO order_lines (order_id, line, sku, name, quantity, unit_price)
SELECT $1, row_number() OVER (), sku, name, quantity, unit_price
FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[]) AS line (sku, name, quantity, unit_price)`

func addOrder(ctx context.Context, tx *sqlx.Tx, o *Order) error {
	if _, err := tx.ExecContext(ctx, insertOrder, o.id, o.version, o.customer, string(o.status), o.total.Amount,
		o.total.Currency, o.paymentMethod, o.paymentVersion, o.reason, o.placedAt); err != nil {
		return fmt.Errorf("add order %s: %w", o.id, err)
	}
	var skus, names []string
	var quantities, prices []int64
	for _, line := range o.lines {
		skus, names = append(skus, line.SKU), append(names, line.Name)
		quantities, prices = append(quantities, line.Quantity), append(prices, line.UnitPrice.Amount)
	}
	if _, err := tx.ExecContext(ctx, insertLines, o.id, skus, names, quantities, prices); err != nil {
		return fmt.Errorf("add lines of order %s: %w", o.id, err)
	}
	return nil
}

const updateOrder = `UPDATE orders SET version = $2, status = $3, payment_version = $4, reason = $5 WHERE id = $1`

// saveOrder writes an order that was locked.
func saveOrder(ctx context.Context, tx *sqlx.Tx, o *Order) error {
	_, err := tx.ExecContext(ctx, updateOrder, o.id, o.version, string(o.status), o.paymentVersion, o.reason)
	if err != nil {
		return fmt.Errorf("save order %s: %w", o.id, err)
	}
	return nil
}

const readProduct = selectProducts + `WHERE sku = $1 AND NOT removed`

func readOneProduct(ctx context.Context, db *sqlx.DB, sku string) (*Product, error) {
	var row productRow
	err := db.GetContext(ctx, &row, readProduct, sku)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("%w: %s", ErrUnknownProduct, sku)
	}
	if err != nil {
		return nil, fmt.Errorf("read product %s: %w", sku, err)
	}
	return row.product(), nil
}

const readProducts = selectProducts + `WHERE NOT removed AND sku > $1 ORDER BY sku LIMIT $2`

func readPageOfProducts(ctx context.Context, db *sqlx.DB, after string, limit int) ([]*Product, error) {
	var rows []productRow
	if err := db.SelectContext(ctx, &rows, readProducts, after, limit); err != nil {
		return nil, fmt.Errorf("read products: %w", err)
	}
	page := make([]*Product, len(rows))
	for i, row := range rows {
		page[i] = row.product()
	}
	return page, nil
}

const readOrder = selectOrders + `WHERE id = $1`

// The ids are UUIDv7, so their order is that of placing.
const readOrders = selectOrders + `WHERE ($1 = '' OR customer = $1) AND id > $2 ORDER BY id LIMIT $3`

const readOverdue = `SELECT id FROM orders WHERE status = 'placed' AND placed_at < $1 ORDER BY placed_at LIMIT 100`

// overdue returns orders that wait for their payment since before the time given.
func overdue(ctx context.Context, db *sqlx.DB, before time.Time) ([]string, error) {
	var ids []string
	if err := db.SelectContext(ctx, &ids, readOverdue, before); err != nil {
		return nil, fmt.Errorf("read overdue orders: %w", err)
	}
	return ids, nil
}
