package catalogview

import (
	"context"

	"onceshop/pkg/broker"
	"onceshop/pkg/events"
)

// handlers are what the view does about orders' events. Their guard is the version, all of them: an event
// whose version the view has, or has passed, changes nothing and is counted.
func (s *Service) handlers() broker.Handlers {
	return broker.NewHandlers(
		broker.On(func(ctx context.Context, e events.ProductChanged) error { return s.onProduct(ctx, e.Product) }),
		broker.On(func(ctx context.Context, e events.ProductRemoved) error { return s.onProduct(ctx, e.Product) }),
		broker.On(func(ctx context.Context, e events.OrderPlaced) error { return s.onOrder(ctx, e.Order) }),
		broker.On(func(ctx context.Context, e events.OrderConfirmed) error { return s.onOrder(ctx, e.Order) }),
		broker.On(func(ctx context.Context, e events.OrderRejected) error { return s.onOrder(ctx, e.Order) }),
		broker.On(func(ctx context.Context, e events.OrderCancelled) error { return s.onOrder(ctx, e.Order) }),
	)
}

// onProduct shows a product's new state, removed or not. Guard: the version.
func (s *Service) onProduct(ctx context.Context, p events.Product) error {
	shown, err := showProduct(ctx, s.db, p)
	return s.count(shown, err)
}

// onOrder shows an order's new state. Guard: the version, for the best sellers too.
func (s *Service) onOrder(ctx context.Context, o events.Order) error {
	shown, err := showOrder(ctx, s.db, o)
	return s.count(shown, err)
}

func (s *Service) count(shown bool, err error) error {
	if err == nil && !shown {
		s.stale.Inc()
	}
	return err
}
