package story

import (
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"

	"onceshop/cmd/shop/setup"
	"onceshop/pkg/postgres"
)

// Watcher counts what has become of the orders, in the services' databases.
type Watcher struct {
	orders, view *sqlx.DB
}

// NewWatcher returns a watcher of the shop.
func NewWatcher(shop setup.Shop) (*Watcher, error) {
	w := &Watcher{}
	for service, db := range map[string]**sqlx.DB{setup.Orders: &w.orders, setup.CatalogView: &w.view} {
		url, err := shop.AuditURL(service)
		if err != nil {
			return nil, err
		}
		if *db, err = postgres.Open(postgres.Config{URL: url, MaxConnections: 1, ApplicationName: "watcher"}); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// Close closes the connections.
func (w *Watcher) Close() {
	_ = w.orders.Close()
	_ = w.view.Close()
}

// Progress is how many orders are in each status, and how many the view shows as ended.
type Progress struct {
	Placed, Confirmed, Rejected, Cancelled, Shown int
}

// Total returns how many orders there are.
func (p Progress) Total() int { return p.Placed + p.Confirmed + p.Rejected + p.Cancelled }

// String returns a line of progress.
func (p Progress) String() string {
	return fmt.Sprintf("%4d orders: %d waiting, %d confirmed, %d rejected, %d cancelled; %d shown as ended",
		p.Total(), p.Placed, p.Confirmed, p.Rejected, p.Cancelled, p.Shown)
}

const countOrders = `
SELECT count(*) FILTER (WHERE status = 'placed') AS placed, count(*) FILTER (WHERE status = 'confirmed') AS confirmed,
    count(*) FILTER (WHERE status = 'rejected') AS rejected, count(*) FILTER (WHERE status = 'cancelled') AS cancelled
FROM orders`

const countShown = `SELECT count(*) FROM order_view WHERE status <> 'placed' AND version > 0`

// Progress reads it.
func (w *Watcher) Progress(ctx context.Context) (p Progress, err error) {
	if err := w.orders.GetContext(ctx, &p, countOrders); err != nil {
		return p, fmt.Errorf("count orders: %w", err)
	}
	if err := w.view.GetContext(ctx, &p.Shown, countShown); err != nil {
		return p, fmt.Errorf("count shown orders: %w", err)
	}
	return p, nil
}
