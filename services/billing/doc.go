// Package billing is the service that charges: it owns payments, refunds and what each customer owes.
//
//	owns       payments (with their refunds) and accounts
//	publishes  billing.payment_captured.v1, billing.payment_declined.v1, billing.payment_refunded.v1
//	consumes   orders.order_placed.v1, orders.order_rejected.v1, orders.order_cancelled.v1
//	stores     payments, accounts; inbox, outbox
//
// An event's effect is exactly once, by the inbox. A charge is outside the database, where no transaction
// reaches: its intent is recorded, then it is made, then its outcome is recorded.
//
//	order placed ──▶ ┌ message id into inbox      ┐
//	                 │ payment: new, due          │──▶ ack
//	                 └ account: owes the total    ┘
//
//	executor: lease ──▶ create at the provider ──▶ note "confirming" ──▶ confirm ──▶ ┌ payment: captured ┐
//	            ▲                                                           │ ?       │ account           │──▶ relay
//	            └── died? the lease ends, and the provider is asked ◀───────┘         └ event into outbox ┘
//
// Read payment.go for the state machine and what follows from it, events.go for the handlers and their
// guards, executor.go for the calls and their outcomes, run.go for the wiring (the inbox is there).
package billing
