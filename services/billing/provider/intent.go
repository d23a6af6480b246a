package provider

import (
	"crypto/rand"
	"encoding/json"
	"strings"

	"github.com/jmoiron/sqlx/types"
)

// Statuses of a payment intent, under Stripe's names.
const (
	requiresConfirmation  = "requires_confirmation"
	requiresPaymentMethod = "requires_payment_method" // after a decline
	succeeded             = "succeeded"
	canceled              = "canceled"
)

// paymentIntent is one attempt to charge one amount. It is charged at most once, and never both charged
// and canceled, if those who change it hold its row lock.
type paymentIntent struct {
	ID            string         `db:"id" json:"id"`
	Status        string         `db:"status" json:"status"`
	Amount        int64          `db:"amount" json:"amount"` // in the currency's minor unit
	Currency      string         `db:"currency" json:"currency"`
	PaymentMethod *string        `db:"payment_method" json:"payment_method"` // nil after a decline
	DeclineCode   *string        `db:"decline_code" json:"-"`                // nil unless declined
	LatestCharge  *string        `db:"latest_charge" json:"latest_charge"`   // nil unless succeeded
	Metadata      types.JSONText `db:"metadata" json:"metadata"`
	Created       int64          `db:"created" json:"created"` // Unix time
}

// confirm charges the payment method and says whether it was accepted. If it was declined, declined says
// why; either way the intent has changed. It is refused, and nothing changes, unless the intent waits for
// its confirmation.
func (p *paymentIntent) confirm() (captured bool, err error) {
	if p.Status != requiresConfirmation {
		return false, p.unexpectedState("confirm", requiresConfirmation)
	}
	if code, _ := declineCode(*p.PaymentMethod); code != "" {
		p.Status, p.PaymentMethod, p.DeclineCode = requiresPaymentMethod, nil, &code
		return false, nil
	}
	p.Status, p.LatestCharge = succeeded, new(newID("ch"))
	return true, nil
}

// cancel ends the intent, so that it can't be charged any more. Like Stripe, it refuses one that has
// succeeded and one that is canceled already.
func (p *paymentIntent) cancel() error {
	if p.Status != requiresConfirmation && p.Status != requiresPaymentMethod {
		return p.unexpectedState("cancel", requiresPaymentMethod, requiresConfirmation)
	}
	p.Status = canceled
	return nil
}

// refundable refuses a refund of amount, where 0 means the whole, unless the intent has succeeded, has no
// refund yet, and amount is the whole.
func (p *paymentIntent) refundable(amount int64, earlier []*refund) error {
	switch {
	case p.Status != succeeded:
		return refused("", "payment_intent", "This PaymentIntent (%s) does not have a successful charge to refund.", p.ID)
	case len(earlier) > 0:
		return refused("charge_already_refunded", "", "Charge %s has already been refunded.", *p.LatestCharge)
	case amount != 0 && amount != p.Amount:
		return refused("", "amount", "Only a refund of the full amount, %d, is simulated.", p.Amount)
	}
	return nil
}

// declined is the reason of the last decline, nil if there was none.
func (p *paymentIntent) declined() *apiError {
	if p.DeclineCode == nil {
		return nil
	}
	message := "Your card was declined."
	if *p.DeclineCode == "insufficient_funds" {
		message = "Your card has insufficient funds."
	}
	return &apiError{status: 402, Type: cardError, Code: "card_declined", DeclineCode: *p.DeclineCode, Message: message}
}

func (p *paymentIntent) unexpectedState(verb string, allowed ...string) error {
	err := refused("payment_intent_unexpected_state", "",
		"You cannot %s this PaymentIntent because it has a status of %s. Only one with a status of %s allows it.",
		verb, p.Status, strings.Join(allowed, " or "))
	err.PaymentIntent = p
	return err
}

// MarshalJSON returns Stripe's form of the intent, without the fields that the shop has no use for.
func (p *paymentIntent) MarshalJSON() ([]byte, error) {
	type fields paymentIntent
	var received int64
	if p.Status == succeeded {
		received = p.Amount
	}
	return json.Marshal(struct {
		*fields
		Object           string    `json:"object"`
		AmountReceived   int64     `json:"amount_received"`
		LastPaymentError *apiError `json:"last_payment_error"`
		Livemode         bool      `json:"livemode"`
	}{(*fields)(p), "payment_intent", received, p.declined(), false})
}

// refund is an amount that went back.
type refund struct {
	ID            string `db:"id" json:"id"`
	Object        string `db:"object" json:"object"`
	Status        string `db:"status" json:"status"`
	PaymentIntent string `db:"payment_intent_id" json:"payment_intent"`
	Charge        string `db:"charge_id" json:"charge"`
	Amount        int64  `db:"amount" json:"amount"`
	Currency      string `db:"currency" json:"currency"`
	Created       int64  `db:"created" json:"created"` // Unix time
}

// declineCode returns what the simulated bank says to a charge: nothing, or the reason of its decline.
func declineCode(method string) (code string, known bool) {
	switch method {
	case "pm_card_visa":
		return "", true
	case "pm_card_chargeDeclined":
		return "generic_decline", true
	case "pm_card_chargeDeclinedInsufficientFunds":
		return "insufficient_funds", true
	}
	return "", false
}

func newID(prefix string) string { return prefix + "_" + rand.Text() }
