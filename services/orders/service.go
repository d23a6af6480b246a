package orders

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"onceshop/pkg/events"
	"onceshop/pkg/outbox"
)

// Service does what HTTP requests and events ask for. Each method is one transaction, which holds the change
// and its events; an error leaves neither.
type Service struct {
	db     *sqlx.DB
	box    *outbox.Outbox
	logger *slog.Logger
}

// PlaceOrder takes the order and reserves its stock.
func (s *Service) PlaceOrder(ctx context.Context, customer, paymentMethod string, lines []Line) (*Order, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("new order id: %w", err)
	}
	skus := make([]string, len(lines))
	for i, line := range lines {
		skus[i] = line.SKU
	}
	var placed *Order
	err = s.box.InTx(ctx, func(tx *sqlx.Tx) error {
		known, err := products(ctx, tx, skus...)
		if err != nil {
			return err
		}
		// PostgreSQL keeps microseconds; the event should say what the database does.
		at := time.Now().UTC().Truncate(time.Microsecond)
		var changes []events.Event
		placed, changes, err = Place(id.String(), customer, paymentMethod, lines, known, at)
		if err != nil {
			return err
		}
		if err := addOrder(ctx, tx, placed); err != nil {
			return err
		}
		if err := saveStock(ctx, tx, known); err != nil {
			return err
		}
		return s.box.PublishTx(ctx, tx, changes...)
	})
	if err != nil {
		return nil, fmt.Errorf("place order: %w", err)
	}
	s.logger.Info("order placed", "order_id", placed.id, "total", placed.total.Amount,
		"correlation_id", events.CauseOf(ctx).CorrelationID)
	return placed, nil
}

// CancelOrder cancels the order; one that is cancelled already is returned as it is.
func (s *Service) CancelOrder(ctx context.Context, id, reason string) (*Order, error) {
	return s.changeOrder(ctx, id, func(tx *sqlx.Tx, o *Order) ([]events.Event, error) {
		return withStock(ctx, tx, o, func(known map[string]*Product) ([]events.Event, error) {
			return o.Cancel(reason, known)
		})
	})
}

// cancelIfPlaced cancels the order unless it has left the state placed meanwhile.
func (s *Service) cancelIfPlaced(ctx context.Context, id, reason string) error {
	_, err := s.changeOrder(ctx, id, func(tx *sqlx.Tx, o *Order) ([]events.Event, error) {
		if o.status != Placed {
			return nil, nil
		}
		return withStock(ctx, tx, o, func(known map[string]*Product) ([]events.Event, error) {
			return o.Cancel(reason, known)
		})
	})
	return err
}

// ConfirmOrder confirms a placed order whose payment was captured; any other stays as it is.
func (s *Service) ConfirmOrder(ctx context.Context, payment events.Payment) error {
	_, err := s.changeOrder(ctx, payment.OrderID, func(_ *sqlx.Tx, o *Order) ([]events.Event, error) {
		if confirmed := o.Confirm(payment); confirmed != nil {
			return []events.Event{confirmed}, nil
		}
		return nil, nil
	})
	return err
}

// RejectOrder rejects a placed order whose payment was declined; any other stays as it is.
func (s *Service) RejectOrder(ctx context.Context, payment events.Payment) error {
	_, err := s.changeOrder(ctx, payment.OrderID, func(tx *sqlx.Tx, o *Order) ([]events.Event, error) {
		return withStock(ctx, tx, o, func(known map[string]*Product) ([]events.Event, error) {
			return o.Reject(payment, known), nil
		})
	})
	return err
}

// changeOrder locks the order and saves what fn makes of it, with the events that fn returns. Without
// events nothing is written.
func (s *Service) changeOrder(ctx context.Context, id string, fn func(*sqlx.Tx, *Order) ([]events.Event, error)) (*Order, error) {
	var changed *Order
	err := s.box.InTx(ctx, func(tx *sqlx.Tx) error {
		var err error
		if changed, err = order(ctx, tx, id); err != nil {
			return err
		}
		changes, err := fn(tx, changed)
		if err != nil || len(changes) == 0 {
			return err
		}
		if err := saveOrder(ctx, tx, changed); err != nil {
			return err
		}
		return s.box.PublishTx(ctx, tx, changes...)
	})
	if err != nil {
		return nil, fmt.Errorf("change order: %w", err)
	}
	return changed, nil
}

// withStock locks the order's products and saves their stock as fn leaves it.
func withStock(ctx context.Context, tx *sqlx.Tx, o *Order, fn func(map[string]*Product) ([]events.Event, error)) ([]events.Event, error) {
	known, err := products(ctx, tx, o.skus()...)
	if err != nil {
		return nil, err
	}
	changes, err := fn(known)
	if err != nil || len(changes) == 0 {
		return nil, err
	}
	return changes, saveStock(ctx, tx, known)
}

// CreateProduct makes a product known, or known again after it was removed.
func (s *Service) CreateProduct(ctx context.Context, sku, name string, price events.Money, stock int64) (*Product, error) {
	return s.changeProduct(ctx, sku, func(p *Product) (events.Event, error) { return p.Create(name, price, stock) })
}

// ChangeProduct sets all of a product but its stock.
func (s *Service) ChangeProduct(ctx context.Context, sku, name string, price events.Money) (*Product, error) {
	return s.changeProduct(ctx, sku, func(p *Product) (events.Event, error) { return p.Change(name, price) })
}

// Restock adds to a product's stock.
func (s *Service) Restock(ctx context.Context, sku string, quantity int64) (*Product, error) {
	return s.changeProduct(ctx, sku, func(p *Product) (events.Event, error) { return p.Restock(quantity) })
}

// RemoveProduct ends the sale of a product.
func (s *Service) RemoveProduct(ctx context.Context, sku string) error {
	_, err := s.changeProduct(ctx, sku, (*Product).Remove)
	return err
}

func (s *Service) changeProduct(ctx context.Context, sku string, fn func(*Product) (events.Event, error)) (*Product, error) {
	var changed *Product
	err := s.box.InTx(ctx, func(tx *sqlx.Tx) error {
		known, err := products(ctx, tx, sku)
		if err != nil {
			return err
		}
		changed = known[sku]
		if changed == nil {
			changed = &Product{sku: sku}
		}
		change, err := fn(changed)
		if err != nil {
			return err
		}
		if err := saveProduct(ctx, tx, changed); err != nil {
			return err
		}
		return s.box.PublishTx(ctx, tx, change)
	})
	if err != nil {
		return nil, fmt.Errorf("change product: %w", err)
	}
	return changed, nil
}

// sweepEvery is how often CancelOverdue looks.
const sweepEvery = 5 * time.Second

// CancelOverdue cancels orders that wait for their payment for longer than limit, until ctx ends, so that
// no stock is held for ever. Any number of replicas may do so.
func (s *Service) CancelOverdue(ctx context.Context, limit time.Duration) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		ids, err := overdue(ctx, s.db, time.Now().Add(-limit))
		if err != nil {
			s.logger.Warn("sweep of overdue orders", "error", err)
		}
		for _, id := range ids {
			if err := s.cancelIfPlaced(ctx, id, "not paid in time"); err != nil {
				s.logger.Warn("cancel overdue order", "order_id", id, "error", err)
			}
		}
	}
}
