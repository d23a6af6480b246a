package catalogview

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"onceshop/pkg/events"
	"onceshop/pkg/postgres"
)

//go:embed migrations/*.sql
var migrations embed.FS

func schema() postgres.Migrations { return postgres.EmbeddedMigrations("catalog_view", migrations) }

var errNotFound = errors.New("not found")

const upsertProduct = `
INSERT INTO product_view AS view (sku, version, name, price, currency, stock, removed)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (sku) DO UPDATE SET
    version = excluded.version, name = excluded.name, price = excluded.price, currency = excluded.currency,
    stock = excluded.stock, removed = excluded.removed
WHERE view.version < excluded.version`

// showProduct makes the view show the product, unless it shows that version or a later one; it says which.
func showProduct(ctx context.Context, db *sqlx.DB, p events.Product) (bool, error) {
	result, err := db.ExecContext(ctx, upsertProduct,
		p.SKU, p.Version, p.Name, p.Price.Amount, p.Price.Currency, p.Stock, p.Removed)
	if err != nil {
		return false, fmt.Errorf("show product %s: %w", p.SKU, err)
	}
	rows, err := result.RowsAffected()
	return rows == 1, err
}

// A placeholder of version 0 gives the first event of an order a row to lock, so that two events at once
// agree on what the view showed before.
const placeholder = `
INSERT INTO order_view (id, version, customer, status, lines, total, currency, reason, placed_at)
VALUES ($1, 0, '', '', '[]', 0, '', '', 'epoch')
ON CONFLICT DO NOTHING`

const lockOrder = `SELECT status, lines FROM order_view WHERE id = $1 FOR UPDATE`

const updateOrder = `
UPDATE order_view AS view SET
    version = $2, customer = $3, status = $4, lines = $5, total = $6, currency = $7, reason = $8, placed_at = $9
WHERE id = $1 AND view.version < $2`

// showOrder makes the view show the order, unless it shows that version or a later one; it says which. In
// the same transaction it changes the best sellers by what the order counts for now less what it counted
// for before.
func showOrder(ctx context.Context, db *sqlx.DB, o events.Order) (bool, error) {
	shown := false
	err := postgres.InTx(ctx, db, func(tx *sqlx.Tx) error {
		shown = false
		before, err := shownOrder(ctx, tx, o.OrderID)
		if err != nil {
			return err
		}
		lines, err := json.Marshal(o.Lines)
		if err != nil {
			return err
		}
		result, err := tx.ExecContext(ctx, updateOrder, o.OrderID, o.Version, o.Customer, o.Status, string(lines),
			o.Total.Amount, o.Total.Currency, o.Reason, o.PlacedAt)
		if err != nil {
			return err
		}
		rows, err := result.RowsAffected()
		if err != nil || rows == 0 {
			return err // a version that the view has, or has passed
		}
		shown = true
		return countSales(ctx, tx, difference(contribution(o), before))
	})
	if err != nil {
		return false, fmt.Errorf("show order %s: %w", o.OrderID, err)
	}
	return shown, nil
}

// shownOrder locks the order's row, which it makes if need be, and returns what the order counts for.
func shownOrder(ctx context.Context, tx *sqlx.Tx, id string) (map[string]int64, error) {
	if _, err := tx.ExecContext(ctx, placeholder, id); err != nil {
		return nil, err
	}
	var order events.Order
	var lines []byte
	if err := tx.QueryRowContext(ctx, lockOrder, id).Scan(&order.Status, &lines); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(lines, &order.Lines); err != nil {
		return nil, err
	}
	return contribution(order), nil
}

const readProducts = `
SELECT sku, version, name, price, currency, stock FROM product_view
WHERE NOT removed AND sku > $1 ORDER BY sku LIMIT $2`

const readProduct = `
SELECT sku, version, name, price, currency, stock FROM product_view WHERE NOT removed AND sku = $1`

type productRow struct {
	SKU      string `db:"sku"`
	Version  int64  `db:"version"`
	Name     string `db:"name"`
	Price    int64  `db:"price"`
	Currency string `db:"currency"`
	Stock    int64  `db:"stock"`
}

func (r productRow) product() events.Product {
	return events.Product{
		SKU: r.SKU, Version: r.Version, Name: r.Name, Stock: r.Stock,
		Price: events.Money{Amount: r.Price, Currency: r.Currency},
	}
}

func products(ctx context.Context, db *sqlx.DB, after string, limit int) ([]events.Product, error) {
	var rows []productRow
	if err := db.SelectContext(ctx, &rows, readProducts, after, limit); err != nil {
		return nil, fmt.Errorf("read products: %w", err)
	}
	page := make([]events.Product, len(rows))
	for i, row := range rows {
		page[i] = row.product()
	}
	return page, nil
}

func product(ctx context.Context, db *sqlx.DB, sku string) (events.Product, error) {
	var row productRow
	if err := db.GetContext(ctx, &row, readProduct, sku); err != nil {
		return events.Product{}, notFound("product", sku, err)
	}
	return row.product(), nil
}

const readOrder = `
SELECT id, version, customer, status, lines, total, currency, reason, placed_at
FROM order_view WHERE id = $1 AND version > 0`

// Order is an order as the view shows it.
type Order struct {
	OrderID  string             `json:"order_id"`
	Version  int64              `json:"version"`
	Customer string             `json:"customer"`
	Status   string             `json:"status"`
	Lines    []events.OrderLine `json:"lines"`
	Total    events.Money       `json:"total"`
	Reason   string             `json:"reason,omitempty"`
	PlacedAt time.Time          `json:"placed_at"`
}

func order(ctx context.Context, db *sqlx.DB, id string) (Order, error) {
	var o Order
	var lines []byte
	err := db.QueryRowContext(ctx, readOrder, id).Scan(&o.OrderID, &o.Version, &o.Customer, &o.Status, &lines,
		&o.Total.Amount, &o.Total.Currency, &o.Reason, &o.PlacedAt)
	if err != nil {
		return Order{}, notFound("order", id, err)
	}
	o.PlacedAt = o.PlacedAt.UTC()
	return o, json.Unmarshal(lines, &o.Lines)
}

func notFound(what, id string, err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		err = errNotFound
	}
	return fmt.Errorf("%s %s: %w", what, id, err)
}
