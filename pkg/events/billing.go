package events

// Events published by billing.
const (
	PaymentCapturedV1 = "billing.payment_captured.v1"
	PaymentDeclinedV1 = "billing.payment_declined.v1"
	PaymentRefundedV1 = "billing.payment_refunded.v1"
)

// Payment is the whole state of a payment. There is one per order.
type Payment struct {
	PaymentID   string `json:"payment_id"`
	Version     int64  `json:"version"`
	OrderID     string `json:"order_id"`
	Customer    string `json:"customer"`
	Amount      Money  `json:"amount"`
	Status      string `json:"status"`                 // captured, declined or refunded
	DeclineCode string `json:"decline_code,omitempty"` // the provider's code for a decline
}

// Aggregate returns the payment's id and version.
func (p Payment) Aggregate() (string, int64) { return p.PaymentID, p.Version }

// PaymentCaptured says that the customer's card was charged the amount.
type PaymentCaptured struct{ Payment }

// Name returns PaymentCapturedV1.
func (PaymentCaptured) Name() string { return PaymentCapturedV1 }

// PaymentDeclined says that the card was refused and nothing was charged.
type PaymentDeclined struct{ Payment }

// Name returns PaymentDeclinedV1.
func (PaymentDeclined) Name() string { return PaymentDeclinedV1 }

// PaymentRefunded says that a captured amount went back in full.
type PaymentRefunded struct{ Payment }

// Name returns PaymentRefundedV1.
func (PaymentRefunded) Name() string { return PaymentRefundedV1 }
