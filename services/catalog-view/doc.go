// Package catalogview is the service that shows: products, orders and best sellers, as they last were.
//
//	owns       nothing; all it has can be thrown away and made again
//	publishes  nothing
//	consumes   orders.product_changed.v1, orders.product_removed.v1, orders.order_placed.v1,
//	           orders.order_confirmed.v1, orders.order_rejected.v1, orders.order_cancelled.v1
//	stores     product_view, order_view, best_sellers; no inbox
//
// An event carries its aggregate's whole state and a version, so the newest one is all that matters:
//
//	version 3 ──▶ INSERT … ON CONFLICT DO UPDATE … WHERE view.version < excluded.version ──▶ 3
//	version 1 ──▶ … 3 < 1: nothing happens                                                ──▶ 3
//	version 2 ──▶ … 3 < 2: nothing happens                                                ──▶ 3
//	version 3 ──▶ … 3 < 3: nothing happens                                                ──▶ 3
//
// Events may come twice, late and in any order, and the view ends the same.
//
// Read store.go for the guard, best.go for the best sellers, which are sums and still need no inbox.
package catalogview
