package billing

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/stripe/stripe-go/v85"
)

// providerTimeout bounds one call of the provider. It is well below the lease of a payment.
const providerTimeout = 4 * time.Second

// intentStatus is what became of an intent to pay, of Stripe's statuses those that we act on.
type intentStatus string

const (
	intentUnconfirmed intentStatus = "unconfirmed" // nothing was charged yet, and can be
	intentPending     intentStatus = "pending"     // undecided: ask again
	intentSucceeded   intentStatus = "succeeded"
	intentDeclined    intentStatus = "declined" // final: the card is detached
	intentCanceled    intentStatus = "canceled"
)

type intent struct {
	id          string
	status      intentStatus
	declineCode string
}

// provider is Stripe, or the simulation that stands in for it. Any error means that the outcome is unknown:
// whoever asked for something reads by id what became of it. Stripe's answers to repeated idempotency keys
// are not relied on, because keys expire, and an error of the server is replayed for a day.
type provider struct {
	client *stripe.Client
}

func newProvider(url, key string) *provider {
	backend := stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
		URL:               stripe.String(strings.TrimSuffix(url, "/")),
		HTTPClient:        &http.Client{Timeout: providerTimeout},
		MaxNetworkRetries: new(int64(0)), // the executor decides when to call again, and what
		LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull},
		EnableTelemetry:   new(false),
	})
	return &provider{stripe.NewClient(key, stripe.WithBackends(&stripe.Backends{API: backend}))}
}

// create makes an intent to pay, which moves nothing. A repetition returns the same intent while the key
// is known, and otherwise a second one that nobody ever confirms. A request that the provider will never
// take, such as for an unknown payment method, is a declined intent without an id, and no error.
func (p *provider) create(ctx context.Context, payment *Payment) (intent, error) {
	params := &stripe.PaymentIntentCreateParams{
		Amount:             &payment.amount.Amount,
		Currency:           stripe.String(strings.ToLower(payment.amount.Currency)),
		PaymentMethod:      stripe.String(payment.method),
		PaymentMethodTypes: stripe.StringSlice([]string{"card"}),
	}
	params.SetIdempotencyKey("payment-" + payment.id)
	params.AddMetadata("order_id", payment.orderID)
	params.AddMetadata("payment_id", payment.id)
	created, err := p.client.V1PaymentIntents.Create(ctx, params)
	if refused, ok := errors.AsType[*stripe.Error](err); ok && isFinal(refused.HTTPStatusCode) {
		return intent{status: intentDeclined, declineCode: string(refused.Code)}, nil
	}
	if err != nil {
		return intent{}, fmt.Errorf("create payment intent of order %s: %w", payment.orderID, err)
	}
	return intentOf(created), nil
}

// isFinal tells a refusal from what may pass: a server's error, too many requests, a key that is wrong or
// in use.
func isFinal(status int) bool {
	return status == http.StatusBadRequest || status == http.StatusPaymentRequired || status == http.StatusNotFound
}

// confirm charges the card. A second confirm is refused by the intent's status.
func (p *provider) confirm(ctx context.Context, id string) (intent, error) {
	confirmed, err := p.client.V1PaymentIntents.Confirm(ctx, id, &stripe.PaymentIntentConfirmParams{})
	if err != nil {
		return intent{}, fmt.Errorf("confirm payment intent %s: %w", id, err)
	}
	return intentOf(confirmed), nil
}

// cancel makes sure that the intent is never confirmed. It is refused if it was.
func (p *provider) cancel(ctx context.Context, id string) (intent, error) {
	canceled, err := p.client.V1PaymentIntents.Cancel(ctx, id, &stripe.PaymentIntentCancelParams{})
	if err != nil {
		return intent{}, fmt.Errorf("cancel payment intent %s: %w", id, err)
	}
	return intentOf(canceled), nil
}

// read returns what became of the intent.
func (p *provider) read(ctx context.Context, id string) (intent, error) {
	found, err := p.client.V1PaymentIntents.Retrieve(ctx, id, &stripe.PaymentIntentRetrieveParams{})
	if err != nil {
		return intent{}, fmt.Errorf("read payment intent %s: %w", id, err)
	}
	return intentOf(found), nil
}

func intentOf(found *stripe.PaymentIntent) intent {
	result := intent{id: found.ID, status: intentPending}
	switch found.Status {
	case stripe.PaymentIntentStatusRequiresConfirmation:
		result.status = intentUnconfirmed
	case stripe.PaymentIntentStatusSucceeded:
		result.status = intentSucceeded
	case stripe.PaymentIntentStatusCanceled:
		result.status = intentCanceled
	case stripe.PaymentIntentStatusRequiresPaymentMethod:
		result.status = intentDeclined
		if found.LastPaymentError != nil {
			result.declineCode = string(found.LastPaymentError.DeclineCode)
		}
	}
	return result
}

// errNoRefund means that the provider has no refund of the intent that succeeded.
var errNoRefund = errors.New("no refund yet")

// refund gives the captured amount back in full. A second refund is refused, because nothing is left.
func (p *provider) refund(ctx context.Context, payment *Payment) (string, error) {
	params := &stripe.RefundCreateParams{PaymentIntent: stripe.String(payment.intentID)}
	params.SetIdempotencyKey("refund-" + payment.id)
	made, err := p.client.V1Refunds.Create(ctx, params)
	if err != nil {
		return "", fmt.Errorf("refund payment intent %s: %w", payment.intentID, err)
	}
	return succeeded(made)
}

// findRefund returns the refund of the intent that succeeded.
func (p *provider) findRefund(ctx context.Context, intentID string) (string, error) {
	params := &stripe.RefundListParams{PaymentIntent: stripe.String(intentID)}
	for found, err := range p.client.V1Refunds.List(ctx, params).All(ctx) {
		if err != nil {
			return "", fmt.Errorf("read refunds of payment intent %s: %w", intentID, err)
		}
		if id, err := succeeded(found); err == nil {
			return id, nil
		}
	}
	return "", errNoRefund
}

func succeeded(found *stripe.Refund) (string, error) {
	if found.Status != stripe.RefundStatusSucceeded {
		return "", fmt.Errorf("%w: refund %s is %s", errNoRefund, found.ID, found.Status)
	}
	return found.ID, nil
}
