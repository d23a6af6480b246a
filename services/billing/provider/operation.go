package provider

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
)

// operation does what a request asks for, in a transaction. It returns the object to answer with, or an
// *apiError: both are answers, and what it wrote is kept. Any other error rolls it back. The id is that of
// the path, if it has one.
type operation func(ctx context.Context, tx *sqlx.Tx, id string, params url.Values) (any, error)

func createIntent(ctx context.Context, tx *sqlx.Tx, _ string, params url.Values) (any, error) {
	amount, err := positive(params, "amount")
	if err != nil {
		return nil, err
	}
	currency, method := params.Get("currency"), params.Get("payment_method")
	switch {
	case len(currency) != 3 || strings.Trim(currency, "abcdefghijklmnopqrstuvwxyz") != "":
		return nil, malformed("", "currency", "Invalid currency: '%s': want three lower-case letters.", currency)
	case method == "":
		return nil, malformed("parameter_missing", "payment_method", "Missing required param: payment_method.")
	case params.Has("confirm") && params.Get("confirm") != "false":
		return nil, malformed("", "confirm", "confirm=true is not simulated: create the PaymentIntent, then confirm it.")
	}
	if _, known := declineCode(method); !known {
		return nil, refused("resource_missing", "payment_method", "No such PaymentMethod: '%s'", method)
	}
	noted := map[string]string{}
	for param := range params {
		if name, ok := strings.CutPrefix(param, "metadata["); ok {
			noted[strings.TrimSuffix(name, "]")] = params.Get(param)
		}
	}
	metadata, err := json.Marshal(noted)
	if err != nil {
		return nil, err
	}
	p := &paymentIntent{
		ID: newID("pi"), Status: requiresConfirmation, Amount: amount, Currency: currency,
		PaymentMethod: &method, Metadata: metadata, Created: time.Now().Unix(),
	}
	return p, addIntent(ctx, tx, p)
}

func getIntent(ctx context.Context, tx *sqlx.Tx, id string, _ url.Values) (any, error) {
	return findIntent(ctx, tx, id)
}

func confirmIntent(ctx context.Context, tx *sqlx.Tx, id string, _ url.Values) (any, error) {
	p, err := lockIntent(ctx, tx, id)
	if err != nil {
		return nil, err
	}
	captured, err := p.confirm()
	if err != nil {
		return nil, err
	}
	if err := saveIntent(ctx, tx, p); err != nil {
		return nil, err
	}
	if captured {
		return p, addCharge(ctx, tx, id)
	}
	declined := p.declined()
	declined.PaymentIntent = p
	return nil, declined
}

func cancelIntent(ctx context.Context, tx *sqlx.Tx, id string, _ url.Values) (any, error) {
	p, err := lockIntent(ctx, tx, id)
	if err != nil {
		return nil, err
	}
	if err := p.cancel(); err != nil {
		return nil, err
	}
	return p, saveIntent(ctx, tx, p)
}

func createRefund(ctx context.Context, tx *sqlx.Tx, _ string, params url.Values) (any, error) {
	var amount int64
	if params.Has("amount") {
		var err error
		if amount, err = positive(params, "amount"); err != nil {
			return nil, err
		}
	}
	p, err := lockIntent(ctx, tx, params.Get("payment_intent"))
	if err != nil {
		return nil, err
	}
	earlier, err := findRefunds(ctx, tx, p.ID)
	if err != nil {
		return nil, err
	}
	if err := p.refundable(amount, earlier); err != nil {
		return nil, err
	}
	id := newID("re")
	if err := addRefund(ctx, tx, id, p.ID); err != nil {
		return nil, err
	}
	return findRefund(ctx, tx, id)
}

func getRefund(ctx context.Context, tx *sqlx.Tx, id string, _ url.Values) (any, error) {
	return findRefund(ctx, tx, id)
}

// listRefunds ignores the limit, for an intent has one refund at most.
func listRefunds(ctx context.Context, tx *sqlx.Tx, _ string, params url.Values) (any, error) {
	p, err := findIntent(ctx, tx, params.Get("payment_intent"))
	if err != nil {
		return nil, err
	}
	refunds, err := findRefunds(ctx, tx, p.ID)
	return map[string]any{"object": "list", "url": "/v1/refunds", "has_more": false, "data": refunds}, err
}

// positive returns an amount, which is required.
func positive(params url.Values, name string) (int64, error) {
	if !params.Has(name) {
		return 0, malformed("parameter_missing", name, "Missing required param: %s.", name)
	}
	n, err := strconv.ParseInt(params.Get(name), 10, 64)
	if err != nil || n < 1 {
		return 0, malformed("parameter_invalid_integer", name, "Invalid positive integer: %s", params.Get(name))
	}
	return n, nil
}
