// Package provider is the simulated payment provider. It speaks Stripe's HTTP form for the part that the
// shop uses, so that billing calls it with Stripe's own client, and in production the same client calls
// Stripe.
//
//	owns       payment intents, charges and refunds
//	publishes  nothing
//	consumes   nothing
//	stores     payment_intents, charges, refunds, idempotency_keys
//
//	POST /v1/payment_intents               amount, currency, payment_method, metadata
//	GET  /v1/payment_intents/{id}
//	POST /v1/payment_intents/{id}/confirm
//	POST /v1/payment_intents/{id}/cancel
//	POST /v1/refunds                       payment_intent; the full amount only
//	GET  /v1/refunds/{id}
//	GET  /v1/refunds?payment_intent=
//
// It knows three of Stripe's test payment methods: pm_card_visa is accepted, pm_card_chargeDeclined and
// pm_card_chargeDeclinedInsufficientFunds are declined.
//
//	requires_confirmation   ──confirm──▶ succeeded, with one charge ──▶ at most one refund
//	                        ──confirm──▶ requires_payment_method, if declined
//	either "requires_…"     ──cancel───▶ canceled
//
// A parameter that is not simulated is refused, so that nothing seems to work here by being ignored; the
// exceptions choose how a payment is made: confirmation_method, payment_method_types and
// automatic_payment_methods. Two things differ from Stripe: a declined attempt leaves no charge behind
// (latest_charge is null), and a request that ends in a 500 leaves no answer under its idempotency key.
//
// Read intent.go for the rules, operation.go for the transactions, idempotency.go for the keys, store.go
// for the SQL, http.go for the rest of the form, run.go for the wiring.
package provider
