package orders

import (
	"context"
	"errors"

	"onceshop/pkg/broker"
	"onceshop/pkg/events"
	"onceshop/pkg/fault"
)

// handlers are what orders does about billing's events. It needs no inbox: an order's status is the guard.
// A payment event has an effect only while the order is placed, and moves it out of that state, so a
// repeated one, or an older one that comes late, finds nothing to do.
func (s *Service) handlers() broker.Handlers {
	return broker.NewHandlers(
		broker.On(s.onPaymentCaptured),
		broker.On(s.onPaymentDeclined),
		broker.On(s.onPaymentRefunded),
	)
}

// onPaymentCaptured confirms the order. Guard: status and payment version. An order that was cancelled
// meanwhile stays so; billing learns of that by itself, and refunds.
func (s *Service) onPaymentCaptured(ctx context.Context, event events.PaymentCaptured) error {
	return known(s.ConfirmOrder(ctx, event.Payment))
}

// onPaymentDeclined rejects the order and gives its stock back. Guard: status and payment version.
func (s *Service) onPaymentDeclined(ctx context.Context, event events.PaymentDeclined) error {
	return known(s.RejectOrder(ctx, event.Payment))
}

// onPaymentRefunded has nothing to change: the order is cancelled, or nothing would have been refunded.
// So it needs no guard.
func (s *Service) onPaymentRefunded(context.Context, events.PaymentRefunded) error { return nil }

// known makes a payment of an order that does not exist a permanent error: orders are never deleted, and
// billing heard of each from here.
func known(err error) error {
	if errors.Is(err, ErrUnknownOrder) {
		return fault.AsPermanent(err)
	}
	return err
}
