package billing

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/events"
)

// How an order can end.
var (
	paid    = books{status: Captured, charges: 1, told: []string{events.PaymentCapturedV1}}
	voided  = books{status: Voided}
	refused = books{status: Declined, told: []string{events.PaymentDeclinedV1}}
	back    = books{status: Refunded, charges: 1, refunds: 1, told: []string{events.PaymentCapturedV1, events.PaymentRefundedV1}}
)

func TestOrderEndsPaidDeclinedVoidedOrRefunded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, test := range []struct {
		name, method string
		play         func(t *testing.T, event events.OrderPlaced)
		want         books
	}{
		{"paid", visa, func(t *testing.T, e events.OrderPlaced) { w.receive(t, e) }, paid},
		{"declined", refusedCard, func(t *testing.T, e events.OrderPlaced) {
			w.receive(t, e)
			require.NoError(t, w.settleAll(t.Context()))
			w.receive(t, rejected(e.Order))
		}, refused},
		{"payment method unknown to the provider", unknownCard, func(t *testing.T, e events.OrderPlaced) {
			w.receive(t, e)
			require.NoError(t, w.settleAll(t.Context()))
			p := w.paymentOf(t, e.Order)
			require.Equal(t, []string{"", "resource_missing"}, []string{p.intentID, p.declineCode})
			w.receive(t, rejected(e.Order))
		}, refused},
		{"cancelled before it was placed, as billing hears of it", visa, func(t *testing.T, e events.OrderPlaced) {
			w.receive(t, cancelled(e.Order))
			require.NoError(t, w.settleAll(t.Context()))
			w.receive(t, e)
		}, voided},
		{"cancelled before the charge", visa, func(t *testing.T, e events.OrderPlaced) { w.receive(t, e, cancelled(e.Order)) }, voided},
		{"cancelled after the charge", visa, func(t *testing.T, e events.OrderPlaced) {
			w.receive(t, e)
			require.NoError(t, w.settleAll(t.Context()))
			w.receive(t, cancelled(e.Order))
		}, back},
	} {
		t.Run(test.name, func(t *testing.T) { // not parallel: settleAll takes whatever is due
			event := placed(test.method)
			test.play(t, event)
			require.NoError(t, w.settleAll(t.Context()))
			w.requireBooks(t, event.Order, test.want)
		})
	}
}

// during calls fn once, while the first request whose path ends so is under way, and hands over what it returns.
func (w *world) during(path string, fn func() error) <-chan error {
	result := make(chan error, 1)
	var met atomic.Bool
	w.network.set(func(n *network) {
		n.meeting = func(r *http.Request) {
			if strings.HasSuffix(r.URL.Path, path) && met.CompareAndSwap(false, true) {
				result <- fn()
			}
		}
	})
	return result
}

func TestOrderCancelledWhileItIsChargedIsRefunded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	event := placed(visa)
	w.receive(t, event)
	met := w.during("/confirm", func() error { return w.deliver(t.Context(), uuid.NewString(), cancelled(event.Order)) })
	require.NoError(t, w.settleAll(t.Context()))
	require.NoError(t, <-met)
	w.requireBooks(t, event.Order, back)
}

func TestOrderCancelledWhileItsIntentIsMadeIsNeverCharged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	event := placed(visa)
	w.receive(t, event)
	met := w.during("/payment_intents", func() error { return w.deliver(t.Context(), uuid.NewString(), cancelled(event.Order)) })
	require.NoError(t, w.settleAll(t.Context()))
	require.NoError(t, <-met)
	w.requireBooks(t, event.Order, voided)
}

func TestChargeIsNotedBeforeItIsMade(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	event := placed(visa)
	w.receive(t, event)
	var noted Status
	met := w.during("/confirm", func() error {
		return w.db.GetContext(t.Context(), &noted, `SELECT status FROM payments`)
	})
	require.NoError(t, w.settleAll(t.Context()))
	require.NoError(t, <-met)
	require.Equal(t, Confirming, noted)
}

func TestRepeatedMessageHasOneEffect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	event := placed(visa)
	for _, step := range []struct {
		message events.Event
		want    books
	}{{event, paid}, {cancelled(event.Order), back}} {
		id := uuid.NewString()
		for range 3 {
			require.NoError(t, w.deliver(t.Context(), id, step.message))
			require.NoError(t, w.settleAll(t.Context()))
			w.requireBooks(t, event.Order, step.want)
		}
	}
}

// One executor is stopped for longer than its lease while it asks to charge; another takes the payment over.
func TestTwoExecutorsOnOnePaymentChargeOnce(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/payment_intents", "/confirm"} {
		t.Run("the first is stopped before "+path, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			event := placed(visa)
			w.receive(t, event)
			met := w.during(path, func() error { return w.settleAll(t.Context()) })
			require.NoError(t, w.settleAll(t.Context()))
			require.NoError(t, <-met)
			w.requireBooks(t, event.Order, paid)
		})
	}
}

func TestTwoExecutorsOnOneRefundGiveBackOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	event := placed(visa)
	w.receive(t, event)
	require.NoError(t, w.settleAll(t.Context()))
	w.receive(t, cancelled(event.Order))
	met := w.during("/refunds", func() error { return w.settleAll(t.Context()) })
	require.NoError(t, w.settleAll(t.Context()))
	require.NoError(t, <-met)
	w.requireBooks(t, event.Order, back)
}

// run runs executors until the function returned is called, which waits for them.
func (w *world) run(t *testing.T, n int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for range n {
		running.Go(func() { _ = w.executor.Run(ctx) })
	}
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(stop)
	return stop
}

func TestExecutorsWhoseLeasesEndTooEarlyChargeOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var orders []events.Order
	for i := range 20 {
		event := placed(visa)
		orders = append(orders, event.Order)
		w.receive(t, event)
		if i%2 == 0 {
			w.receive(t, cancelled(event.Order))
		}
	}
	stop := w.run(t, 2)
	require.Eventually(t, func() bool {
		done, err := w.db.ExecContext(t.Context(), allDue) // ends all leases
		require.NoError(t, err)
		due, err := done.RowsAffected()
		require.NoError(t, err)
		return due == 0
	}, settledSoon, pollInterval)
	stop()
	for i, order := range orders {
		if i%2 == 0 {
			w.requireBooks(t, order, voided)
		} else {
			w.requireBooks(t, order, paid)
		}
	}
}

func TestDeadExecutorsPaymentIsTakenUpWhenItsLeaseEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	event := placed(visa)
	w.receive(t, event)
	const short = 200 * time.Millisecond
	leased, err := lease(t.Context(), w.db, short)
	require.NoError(t, err)
	require.Equal(t, event.OrderID, leased.orderID)
	before := time.Now()
	var again *Payment
	require.Eventually(t, func() bool {
		again, err = lease(t.Context(), w.db, time.Minute)
		require.NoError(t, err)
		return again != nil
	}, settledSoon, pollInterval)
	require.Equal(t, leased.id, again.id)
	require.WithinRange(t, time.Now(), before.Add(short/2), before.Add(settledSoon))
	none, err := lease(t.Context(), w.db, time.Minute)
	require.NoError(t, err)
	require.Nil(t, none, "it is leased")
}
