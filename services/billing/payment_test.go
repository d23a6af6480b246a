package billing

import (
	"testing"

	"github.com/stretchr/testify/require"

	"onceshop/pkg/events"
)

var statuses = []Status{New, Created, Confirming, Captured, Declined, Voided, Refunded}

func TestNextStepFollowsFromThePaymentAlone(t *testing.T) {
	t.Parallel()
	for status, steps := range map[Status]struct{ wanted, cancelled step }{
		New:        {create, create}, // a cancelled one is voided at once, so there is none
		Created:    {confirm, void},
		Confirming: {resolve, resolve},
		Captured:   {nothing, refund},
		Declined:   {nothing, nothing},
		Voided:     {nothing, nothing},
		Refunded:   {nothing, nothing},
	} {
		require.Equal(t, steps.wanted, next(&Payment{status: status}), status)
		require.Equal(t, steps.cancelled, next(&Payment{status: status, cancelWanted: true}), status)
	}
}

// paymentIn returns a payment at version 3.
func paymentIn(status Status, cancelWanted bool) *Payment {
	return &Payment{
		id: "p", version: 3, orderID: "o", customer: "ada", amount: events.Money{Amount: 1999, Currency: "EUR"},
		method: visa, status: status, cancelWanted: cancelWanted, intentID: "pi_1",
	}
}

// A transition is what a call makes of a payment in one status; in any other it changes nothing.
type transition struct {
	after        Status
	event        string
	owed         int64
	cancelWanted bool
}

func TestPaymentMovesAlongItsStateMachineOnly(t *testing.T) {
	t.Parallel()
	resolved := func(found intentStatus) func(*Payment) (events.Event, int64) {
		return func(p *Payment) (events.Event, int64) {
			return p.resolved(intent{id: "pi_1", status: found, declineCode: "no"})
		}
	}
	created := func(found intentStatus) func(*Payment) (events.Event, int64) {
		return func(p *Payment) (events.Event, int64) {
			return p.created(intent{id: "pi_2", status: found, declineCode: "no"}), 0
		}
	}
	confirming := func(p *Payment) (events.Event, int64) { p.confirming(); return nil, 0 }
	refunded := func(p *Payment) (events.Event, int64) { return p.refunded("re_1") }
	wantCancel := func(p *Payment) (events.Event, int64) { p.wantCancel(); return nil, 0 }
	captures := transition{Captured, events.PaymentCapturedV1, -1999, false}
	declines := transition{Declined, events.PaymentDeclinedV1, 0, false}

	for _, test := range []struct {
		name      string
		call      func(*Payment) (events.Event, int64)
		wanted    map[Status]transition
		cancelled map[Status]transition // what happens when a cancellation is wanted
	}{
		{"created", created(intentUnconfirmed), map[Status]transition{New: {after: Created}}, map[Status]transition{New: {after: Created}}},
		{"creation refused", created(intentDeclined), map[Status]transition{New: declines}, map[Status]transition{New: declines}},
		{"confirming", confirming, map[Status]transition{Created: {after: Confirming}}, nil},
		{"succeeded", resolved(intentSucceeded), map[Status]transition{Created: captures, Confirming: captures}, map[Status]transition{Created: captures, Confirming: captures}},
		{"declined", resolved(intentDeclined), map[Status]transition{Created: declines, Confirming: declines}, map[Status]transition{Created: declines, Confirming: declines}},
		{"canceled", resolved(intentCanceled), map[Status]transition{Created: {after: Voided}, Confirming: {after: Voided}}, map[Status]transition{Created: {after: Voided}, Confirming: {after: Voided}}},
		{"unconfirmed", resolved(intentUnconfirmed), map[Status]transition{Confirming: {after: Created}}, map[Status]transition{Confirming: {after: Created}}},
		{"pending", resolved(intentPending), nil, nil},
		{"refunded", refunded, map[Status]transition{Captured: {Refunded, events.PaymentRefundedV1, 1999, false}}, map[Status]transition{Captured: {Refunded, events.PaymentRefundedV1, 1999, false}}},
		{"cancelled", wantCancel, map[Status]transition{
			New: {after: Voided, cancelWanted: true}, Created: {after: Created, cancelWanted: true},
			Confirming: {after: Confirming, cancelWanted: true}, Captured: {after: Captured, cancelWanted: true},
			Declined: {after: Declined, cancelWanted: true}, Voided: {after: Voided, cancelWanted: true},
			Refunded: {after: Refunded, cancelWanted: true},
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for _, status := range statuses {
				requireTransition(t, paymentIn(status, false), test.call, test.wanted)
				requireTransition(t, paymentIn(status, true), test.call, test.cancelled)
			}
		})
	}
}

func requireTransition(t *testing.T, p *Payment, call func(*Payment) (events.Event, int64), moves map[Status]transition) {
	t.Helper()
	before := *p
	event, owed := call(p)
	move, ok := moves[before.status]
	if !ok {
		require.Equal(t, before, *p, "%s, cancellation wanted: %t", before.status, before.cancelWanted)
		require.Nil(t, event)
		require.Zero(t, owed)
		return
	}
	require.Equal(t, move.after, p.status)
	require.Equal(t, before.version+1, p.version, "a change raises the version by one")
	require.Equal(t, move.owed, owed)
	wanted := before.cancelWanted || move.cancelWanted
	require.Equal(t, wanted, p.cancelWanted)
	if move.event == "" {
		require.Nil(t, event)
		return
	}
	require.Equal(t, move.event, event.Name())
	_, version := event.Aggregate()
	require.Equal(t, p.version, version, "the event carries the version of the change")
}

func TestPaymentKeepsWhatTheProviderSaid(t *testing.T) {
	t.Parallel()
	p := paymentIn(New, false)
	p.created(intent{id: "pi_2", status: intentUnconfirmed})
	require.Equal(t, "pi_2", p.intentID)

	p = paymentIn(Confirming, false)
	event, _ := p.resolved(intent{status: intentDeclined, declineCode: "insufficient_funds"})
	require.Equal(t, events.PaymentDeclined{Payment: events.Payment{
		PaymentID: "p", Version: 4, OrderID: "o", Customer: "ada", Amount: events.Money{Amount: 1999, Currency: "EUR"},
		Status: "declined", DeclineCode: "insufficient_funds",
	}}, event)

	p = paymentIn(Captured, true)
	p.refunded("re_1")
	require.Equal(t, "re_1", p.refundID)
}
