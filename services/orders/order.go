package orders

import (
	"errors"
	"fmt"
	"math"
	"time"

	"onceshop/pkg/events"
)

// Rules of orders that a request can break.
var (
	ErrUnknownOrder    = errors.New("no such order")
	ErrMixedCurrencies = errors.New("all lines of an order need one currency")
	ErrTotalTooLarge   = errors.New("the total is more than can be counted")
	ErrRepeatedProduct = errors.New("a product may be in one line only")
	ErrAlreadyEnded    = errors.New("the order has ended")
)

// Status of an order: placed → confirmed | rejected | cancelled; confirmed → cancelled.
type Status string

// The statuses.
const (
	Placed    Status = "placed"
	Confirmed Status = "confirmed"
	Rejected  Status = "rejected"
	Cancelled Status = "cancelled"
)

// Order is a customer's order. Every change raises its version by one. While it is placed or confirmed it
// holds what it took from the stock; leaving these for rejected or cancelled gives that back, once.
type Order struct {
	id             string
	version        int64
	customer       string
	status         Status
	lines          []events.OrderLine
	total          events.Money
	paymentMethod  string
	paymentVersion int64 // of the last payment event taken into account
	reason         string
	placedAt       time.Time
}

// Line is a wish: so many of a product.
type Line struct {
	SKU      string `json:"sku"`
	Quantity int64  `json:"quantity"`
}

// Place takes the lines' quantities from the products' stock and returns the order, with the events of the
// order and of each product. The products are those of the lines, by SKU. An error leaves no order; the
// products are then to be thrown away.
func Place(id, customer, paymentMethod string, lines []Line, products map[string]*Product, at time.Time) (*Order, []events.Event, error) {
	order := &Order{
		id: id, version: 1, customer: customer, status: Placed, paymentMethod: paymentMethod, placedAt: at,
	}
	var changes []events.Event
	taken := map[string]bool{}
	for i, line := range lines {
		product, err := products[line.SKU], error(nil)
		switch {
		case product == nil:
			err = fmt.Errorf("%w: %s", ErrUnknownProduct, line.SKU)
		case taken[line.SKU]:
			err = fmt.Errorf("%w: %s", ErrRepeatedProduct, line.SKU)
		default:
			var change events.Event
			if change, err = product.take(line.Quantity); err == nil {
				err = order.add(product, line.Quantity)
			}
			changes = append(changes, change)
		}
		if err != nil {
			return nil, nil, &LineError{Line: i, Err: err}
		}
		taken[line.SKU] = true
	}
	return order, append([]events.Event{events.OrderPlaced{Order: order.state()}}, changes...), nil
}

// LineError says which line breaks a rule.
type LineError struct {
	Line int // from 0
	Err  error
}

// Error returns the rule's text.
func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap returns the rule.
func (e *LineError) Unwrap() error { return e.Err }

func (o *Order) add(product *Product, quantity int64) error {
	if len(o.lines) > 0 && product.price.Currency != o.total.Currency {
		return ErrMixedCurrencies
	}
	if product.price.Amount > 0 && quantity > (math.MaxInt64-o.total.Amount)/product.price.Amount {
		return ErrTotalTooLarge
	}
	o.total = events.Money{Amount: o.total.Amount + product.price.Amount*quantity, Currency: product.price.Currency}
	o.lines = append(o.lines, events.OrderLine{
		SKU: product.sku, Name: product.name, Quantity: quantity, UnitPrice: product.price,
	})
	return nil
}

// paid takes a payment event into account: ours only if it is newer than the last and the order still
// waits. It says whether the order may act on it.
func (o *Order) paid(payment events.Payment) bool {
	if payment.Version <= o.paymentVersion || o.status != Placed {
		return false
	}
	o.paymentVersion = payment.Version
	return true
}

// Confirm says that the order is paid. It returns no event, and changes nothing, unless the order is placed
// and the payment newer than what it knows.
func (o *Order) Confirm(payment events.Payment) events.Event {
	if !o.paid(payment) {
		return nil
	}
	o.status = Confirmed
	o.version++
	return events.OrderConfirmed{Order: o.state()}
}

// Reject says that the payment was declined, and gives the stock back. It returns no events, and changes
// nothing, unless the order is placed and the payment newer than what it knows.
func (o *Order) Reject(payment events.Payment, products map[string]*Product) []events.Event {
	if !o.paid(payment) {
		return nil
	}
	o.status, o.reason = Rejected, "payment declined: "+payment.DeclineCode
	o.version++
	return append([]events.Event{events.OrderRejected{Order: o.state()}}, o.giveBack(products)...)
}

// Cancel ends a placed or confirmed order and gives the stock back. One that is cancelled already stays as
// it is and returns no events; one that was rejected is an error.
func (o *Order) Cancel(reason string, products map[string]*Product) ([]events.Event, error) {
	switch o.status {
	case Cancelled:
		return nil, nil
	case Rejected:
		return nil, fmt.Errorf("%w: it was rejected", ErrAlreadyEnded)
	}
	o.status, o.reason = Cancelled, reason
	o.version++
	return append([]events.Event{events.OrderCancelled{Order: o.state()}}, o.giveBack(products)...), nil
}

func (o *Order) giveBack(products map[string]*Product) []events.Event {
	changes := make([]events.Event, len(o.lines))
	for i, line := range o.lines {
		changes[i] = products[line.SKU].giveBack(line.Quantity)
	}
	return changes
}

// skus returns the products of the order's lines.
func (o *Order) skus() []string {
	skus := make([]string, len(o.lines))
	for i, line := range o.lines {
		skus[i] = line.SKU
	}
	return skus
}

// state is the order as others see it.
func (o *Order) state() events.Order {
	return events.Order{
		OrderID: o.id, Version: o.version, Customer: o.customer, Status: string(o.status), Lines: o.lines,
		Total: o.total, PaymentMethod: o.paymentMethod, Reason: o.reason, PlacedAt: o.placedAt,
	}
}
