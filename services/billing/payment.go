package billing

import "onceshop/pkg/events"

// Status of a payment, as far as we know of it:
//
//	new → created → confirming → captured → refunded
//	  ├────────│──────────┼────▶ declined
//	  └────────┴──────────┴────▶ voided
//
// created means that the provider has an intent to pay, which moves nothing. confirming means that we may
// have asked the provider to charge the card, and have to ask it what became of that.
type Status string

// The statuses.
const (
	New        Status = "new"
	Created    Status = "created"
	Confirming Status = "confirming"
	Captured   Status = "captured"
	Declined   Status = "declined"
	Voided     Status = "voided"
	Refunded   Status = "refunded"
)

// Payment is the charge of one order. Every change raises its version by one.
type Payment struct {
	id           string
	version      int64
	orderID      string
	customer     string
	amount       events.Money
	method       string
	status       Status
	cancelWanted bool
	intentID     string
	refundID     string
	declineCode  string
}

// step is what is to be done next about a payment, at the provider.
type step string

const (
	nothing step = "nothing"
	create  step = "create"  // an intent to pay; harmless to repeat
	confirm step = "confirm" // the intent, which charges the card
	resolve step = "resolve" // ask the provider what became of a confirm
	void    step = "void"    // the intent
	refund  step = "refund"  // the captured amount, in full
)

// next decides what is to be done about a payment. It depends on the payment alone, so that whoever holds
// the row's lock, at whatever moment, comes to the same end: an order that is cancelled before, during or
// after the charge ends voided or refunded.
func next(p *Payment) step {
	switch p.status {
	case New:
		return create
	case Created:
		if p.cancelWanted {
			return void
		}
		return confirm
	case Confirming:
		return resolve
	case Captured:
		if p.cancelWanted {
			return refund
		}
	}
	return nothing
}

// wantCancel notes that the order is cancelled. A payment of which the provider knows nothing is voided at
// once; for any other, next says what follows. It says whether anything changed.
func (p *Payment) wantCancel() bool {
	if p.cancelWanted {
		return false
	}
	p.cancelWanted = true
	if p.status == New {
		p.status = Voided
	}
	p.version++
	return true
}

// created notes the provider's intent, or that it refuses to make one. It has no effect unless the payment
// is new.
func (p *Payment) created(made intent) events.Event {
	if p.status != New {
		return nil
	}
	p.version++
	if made.status == intentDeclined {
		p.status, p.declineCode = Declined, made.declineCode
		return events.PaymentDeclined{Payment: p.state()}
	}
	p.intentID, p.status = made.id, Created
	return nil
}

// confirming notes, before the provider is asked, that it may be about to charge the card. It says whether
// to ask: not if the payment has moved on, or its cancellation is wanted.
func (p *Payment) confirming() bool {
	if p.status != Created || p.cancelWanted {
		return false
	}
	p.status = Confirming
	p.version++
	return true
}

// resolved notes what the provider says of the intent. It returns the event that follows, if one does, and
// what the customer's account changes by. A status that the payment knows of already changes nothing.
func (p *Payment) resolved(found intent) (events.Event, int64) {
	if p.status != Created && p.status != Confirming {
		return nil, 0
	}
	switch found.status {
	case intentSucceeded:
		p.status = Captured
		p.version++
		return events.PaymentCaptured{Payment: p.state()}, -p.amount.Amount
	case intentDeclined:
		p.status, p.declineCode = Declined, found.declineCode
		p.version++
		return events.PaymentDeclined{Payment: p.state()}, 0
	case intentCanceled:
		p.status = Voided
		p.version++
	case intentUnconfirmed:
		if p.status == Confirming { // the confirm never arrived
			p.status = Created
			p.version++
		}
	}
	return nil, 0
}

// refunded notes that the provider gave the amount back. It returns the event, and what the customer's
// account changes by; nothing unless the payment is captured.
func (p *Payment) refunded(refundID string) (events.Event, int64) {
	if p.status != Captured {
		return nil, 0
	}
	p.status, p.refundID = Refunded, refundID
	p.version++
	return events.PaymentRefunded{Payment: p.state()}, p.amount.Amount
}

// state is the payment as others see it.
func (p *Payment) state() events.Payment {
	return events.Payment{
		PaymentID: p.id, Version: p.version, OrderID: p.orderID, Customer: p.customer, Amount: p.amount,
		Status: string(p.status), DeclineCode: p.declineCode,
	}
}
