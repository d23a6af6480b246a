// Package orders is the service that sells: it owns products and orders.
//
//	owns       products (with their stock) and orders
//	publishes  orders.product_changed.v1, orders.product_removed.v1, orders.order_placed.v1,
//	           orders.order_confirmed.v1, orders.order_rejected.v1, orders.order_cancelled.v1
//	consumes   billing.payment_captured.v1, billing.payment_declined.v1, billing.payment_refunded.v1
//	stores     products, orders, order_lines; outbox
//
// A request or a payment event changes the aggregate and writes its events into the outbox in one
// transaction; the relay publishes them:
//
//	POST /orders ──▶ ┌ lock products, take stock ┐
//	                 │ order: placed             │──▶ relay ──▶ exchange "orders"
//	                 └ events into outbox        ┘
//
//	payment captured ──▶ placed → confirmed
//	payment declined ──▶ placed → rejected, stock back      each one transaction with its events
//	cancel, or late  ──▶ placed, confirmed → cancelled, stock back
//
// Read order.go and product.go for the rules, service.go for the transactions, store.go for the SQL,
// events.go for what is consumed and why it needs no inbox, run.go for the wiring.
package orders
