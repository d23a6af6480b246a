package events

import "time"

// Events published by orders.
const (
	ProductChangedV1 = "orders.product_changed.v1"
	ProductRemovedV1 = "orders.product_removed.v1"
	OrderPlacedV1    = "orders.order_placed.v1"
	OrderConfirmedV1 = "orders.order_confirmed.v1"
	OrderRejectedV1  = "orders.order_rejected.v1"
	OrderCancelledV1 = "orders.order_cancelled.v1"
)

// Product is the whole state of a product.
type Product struct {
	SKU     string `json:"sku"`
	Version int64  `json:"version"`
	Name    string `json:"name"`
	Price   Money  `json:"price"`
	Stock   int64  `json:"stock"` // what can still be ordered
	Removed bool   `json:"removed"`
}

// Aggregate returns the SKU and the version.
func (p Product) Aggregate() (string, int64) { return p.SKU, p.Version }

// ProductChanged says that a product was created, changed, ordered or restocked.
type ProductChanged struct{ Product }

// Name returns ProductChangedV1.
func (ProductChanged) Name() string { return ProductChangedV1 }

// ProductRemoved says that a product is no longer sold. Creating the SKU again goes on from its version.
type ProductRemoved struct{ Product }

// Name returns ProductRemovedV1.
func (ProductRemoved) Name() string { return ProductRemovedV1 }

// Order is the whole state of an order.
type Order struct {
	OrderID       string      `json:"order_id"`
	Version       int64       `json:"version"`
	Customer      string      `json:"customer"`
	Status        string      `json:"status"` // placed, confirmed, rejected or cancelled
	Lines         []OrderLine `json:"lines"`
	Total         Money       `json:"total"`
	PaymentMethod string      `json:"payment_method"`
	Reason        string      `json:"reason,omitempty"` // why it was rejected or cancelled
	PlacedAt      time.Time   `json:"placed_at"`
}

// OrderLine is one product of an order, at the price it had when the order was placed.
type OrderLine struct {
	SKU       string `json:"sku"`
	Name      string `json:"name"`
	Quantity  int64  `json:"quantity"`
	UnitPrice Money  `json:"unit_price"`
}

// Aggregate returns the order's id and version.
func (o Order) Aggregate() (string, int64) { return o.OrderID, o.Version }

// OrderPlaced says that an order was taken and its stock reserved; it now waits for its payment.
type OrderPlaced struct{ Order }

// Name returns OrderPlacedV1.
func (OrderPlaced) Name() string { return OrderPlacedV1 }

// OrderConfirmed says that the order is paid.
type OrderConfirmed struct{ Order }

// Name returns OrderConfirmedV1.
func (OrderConfirmed) Name() string { return OrderConfirmedV1 }

// OrderRejected says that the payment was declined; the stock was given back.
type OrderRejected struct{ Order }

// Name returns OrderRejectedV1.
func (OrderRejected) Name() string { return OrderRejectedV1 }

// OrderCancelled says that the order was cancelled, before or after its payment; the stock was given
// back, and a captured payment is to be refunded.
type OrderCancelled struct{ Order }

// Name returns OrderCancelledV1.
func (OrderCancelled) Name() string { return OrderCancelledV1 }
