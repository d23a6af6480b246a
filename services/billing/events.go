package billing

import (
	"context"

	"onceshop/pkg/broker"
	"onceshop/pkg/events"
	"onceshop/pkg/inbox"
)

// handlers are what billing does about orders' events. Each changes what the customer owes, by a sum, which
// a repeated message would double: so all of them run inside the inbox (run.go), in its transaction.
// Their order does not matter: sums commute, and a payment's next step follows from its row.
func (s *Service) handlers() broker.Handlers {
	return broker.NewHandlers(
		broker.On(s.onOrderPlaced),
		broker.On(s.onOrderRejected),
		broker.On(s.onOrderCancelled),
	)
}

// onOrderPlaced records the intent to charge the order's total; the executor acts on it after the commit.
// Guard: the inbox, for the balance; for the payment, one per order, and its state machine.
func (s *Service) onOrderPlaced(ctx context.Context, event events.OrderPlaced) error {
	tx := inbox.Tx(ctx)
	if _, err := paymentOf(ctx, tx, event.Order); err != nil {
		return err
	}
	return owe(ctx, tx, event.Customer, event.Total.Currency, event.Total.Amount)
}

// onOrderRejected settles the account; the payment has ended by itself. Guard: the inbox.
func (s *Service) onOrderRejected(ctx context.Context, event events.OrderRejected) error {
	return owe(ctx, inbox.Tx(ctx), event.Customer, event.Total.Currency, -event.Total.Amount)
}

// onOrderCancelled settles the account and has the payment voided or refunded. It may come before the
// order was placed, as far as billing knows: the event has the whole order, and makes the payment, which
// then never charges. Guard: the inbox, for the balance; for the payment, its state machine.
func (s *Service) onOrderCancelled(ctx context.Context, event events.OrderCancelled) error {
	tx := inbox.Tx(ctx)
	payment, err := paymentOf(ctx, tx, event.Order)
	if err != nil {
		return err
	}
	if payment.wantCancel() {
		if err := savePayment(ctx, tx, payment); err != nil {
			return err
		}
	}
	return owe(ctx, tx, event.Customer, event.Total.Currency, -event.Total.Amount)
}
