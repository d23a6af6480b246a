package catalogview

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jmoiron/sqlx"

	"onceshop/pkg/events"
)

// contribution is what an order counts for: its quantities by SKU while it is confirmed, else nothing.
func contribution(o events.Order) map[string]int64 {
	counted := map[string]int64{}
	if o.Status == "confirmed" {
		for _, line := range o.Lines {
			counted[line.SKU] += line.Quantity
		}
	}
	return counted
}

// difference returns after − before by SKU, without zeros.
func difference(after, before map[string]int64) map[string]int64 {
	changes := maps.Clone(after)
	for sku, quantity := range before {
		changes[sku] -= quantity
	}
	maps.DeleteFunc(changes, func(_ string, quantity int64) bool { return quantity == 0 })
	return changes
}

const addSales = `
INSERT INTO best_sellers AS best (sku, quantity) VALUES ($1, $2)
ON CONFLICT (sku) DO UPDATE SET quantity = best.quantity + excluded.quantity`

// countSales adds the changes to the best sellers. A sum would double with a repeated event; this one runs
// only when the order's row took a new version, in the same transaction, so it needs no inbox. Rows are
// taken by SKU, so that two orders never wait for each other in a circle.
func countSales(ctx context.Context, tx *sqlx.Tx, changes map[string]int64) error {
	for _, sku := range slices.Sorted(maps.Keys(changes)) {
		if _, err := tx.ExecContext(ctx, addSales, sku, changes[sku]); err != nil {
			return fmt.Errorf("count sales of %s: %w", sku, err)
		}
	}
	return nil
}

// BestSeller is a product and how many of it are in confirmed orders.
type BestSeller struct {
	SKU      string `db:"sku" json:"sku"`
	Name     string `db:"name" json:"name"`
	Quantity int64  `db:"quantity" json:"quantity"`
}

const readBestSellers = `
SELECT best.sku, coalesce(product.name, '') AS name, best.quantity
FROM best_sellers best LEFT JOIN product_view product ON product.sku = best.sku
WHERE best.quantity > 0
ORDER BY best.quantity DESC, best.sku LIMIT $1`

func bestSellers(ctx context.Context, db *sqlx.DB, limit int) ([]BestSeller, error) {
	best := []BestSeller{}
	if err := db.SelectContext(ctx, &best, readBestSellers, limit); err != nil {
		return nil, fmt.Errorf("read best sellers: %w", err)
	}
	return best, nil
}
