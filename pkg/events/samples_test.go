package events_test

import (
	"time"

	"onceshop/pkg/events"
)

// sample is one event of each type, with every field set, and the decoder of its type.
type sample struct {
	event  events.Event
	decode func([]byte) (events.Event, error)
}

func sampleOf[E events.Event](event E) sample {
	return sample{event, func(body []byte) (events.Event, error) { return events.Decode[E](body) }}
}

func samples() []sample {
	product := events.Product{
		SKU: "mug-red", Version: 7, Name: "Red mug", Price: events.Money{Amount: 1250, Currency: "EUR"}, Stock: 40,
	}
	removed := product
	removed.Version, removed.Removed = 8, true
	order := func(version int64, status, reason string) events.Order {
		return events.Order{
			OrderID: "0193a5f0-6c1e-7d4a-9b57-3f1c5f2c8e01", Version: version, Customer: "ada", Status: status,
			Lines: []events.OrderLine{
				{SKU: "mug-red", Name: "Red mug", Quantity: 2, UnitPrice: events.Money{Amount: 1250, Currency: "EUR"}},
				{SKU: "tea-50g", Name: "Tea, 50 g", Quantity: 1, UnitPrice: events.Money{Amount: 499, Currency: "EUR"}},
			},
			Total: events.Money{Amount: 2999, Currency: "EUR"}, PaymentMethod: "pm_card_visa", Reason: reason,
			PlacedAt: time.Date(2026, 1, 2, 15, 4, 5, 678901000, time.UTC),
		}
	}
	payment := func(version int64, status, code string) events.Payment {
		return events.Payment{
			PaymentID: "0193a5f0-6d02-7e11-8a44-5b0d7c9e2f03", Version: version, OrderID: "0193a5f0-6c1e-7d4a-9b57-3f1c5f2c8e01",
			Customer: "ada", Amount: events.Money{Amount: 2999, Currency: "EUR"}, Status: status, DeclineCode: code,
		}
	}
	return []sample{
		sampleOf(events.ProductChanged{Product: product}),
		sampleOf(events.ProductRemoved{Product: removed}),
		sampleOf(events.OrderPlaced{Order: order(1, "placed", "")}),
		sampleOf(events.OrderConfirmed{Order: order(2, "confirmed", "")}),
		sampleOf(events.OrderRejected{Order: order(2, "rejected", "payment declined: generic_decline")}),
		sampleOf(events.OrderCancelled{Order: order(3, "cancelled", "cancelled by the customer")}),
		sampleOf(events.PaymentCaptured{Payment: payment(4, "captured", "")}),
		sampleOf(events.PaymentDeclined{Payment: payment(4, "declined", "generic_decline")}),
		sampleOf(events.PaymentRefunded{Payment: payment(5, "refunded", "")}),
	}
}
