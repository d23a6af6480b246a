package orders

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/events"
	"onceshop/pkg/fault"
)

func TestAllOfBillingsEventsAreHandled(t *testing.T) {
	t.Parallel()
	require.ElementsMatch(t, events.Names("billing"), slices.Collect(maps.Keys((&Service{}).handlers())))
}

// permutations returns the items in all orders.
func permutations[T any](items []T) [][]T {
	if len(items) == 0 {
		return [][]T{nil}
	}
	var all [][]T
	for i := range items {
		for _, rest := range permutations(slices.Concat(items[:i], items[i+1:])) {
			all = append(all, append([]T{items[i]}, rest...))
		}
	}
	return all
}

// A payment is captured and perhaps refunded, or it is declined, which is final. So these are all sets of
// events that an order can get from billing; a refund means that the order was cancelled.
func TestPaymentEventsEndTheSameInAnyOrder(t *testing.T) {
	t.Parallel()
	s := newService(t)
	captured := func(id string) error {
		return s.onPaymentCaptured(t.Context(), events.PaymentCaptured{Payment: paymentOf(id, 5)})
	}
	declined := func(id string) error {
		return s.onPaymentDeclined(t.Context(), events.PaymentDeclined{Payment: paymentOf(id, 3)})
	}
	refunded := func(id string) error {
		return s.onPaymentRefunded(t.Context(), events.PaymentRefunded{Payment: paymentOf(id, 6)})
	}
	cancel := func(id string) error { _, err := s.CancelOrder(t.Context(), id, "why not"); return err }
	nothing := func(string) error { return nil }
	const before, after = events.OrderPlacedV1, events.OrderCancelledV1

	for _, test := range []struct {
		name   string
		first  func(string) error
		events []func(string) error
		status Status
		told   []string
		held   int64
	}{
		{"captured", nothing, []func(string) error{captured, captured}, Confirmed, []string{before, events.OrderConfirmedV1}, 1},
		{"declined", nothing, []func(string) error{declined, declined}, Rejected, []string{before, events.OrderRejectedV1}, 0},
		{"cancelled, then captured and refunded", cancel, []func(string) error{captured, captured, refunded, refunded}, Cancelled, []string{before, after}, 0},
		{"cancelled, then declined", cancel, []func(string) error{declined, declined}, Cancelled, []string{before, after}, 0},
		// Not from a sound billing: the version keeps an older decline from undoing what is paid.
		{"captured, then an older decline", captured, []func(string) error{captured, declined, declined, refunded}, Confirmed, []string{before, events.OrderConfirmedV1}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for _, sequence := range permutations(test.events) {
				sku := uuid.NewString()
				stocked(t, s, 1, sku)
				id := place(t, s, sku)
				require.NoError(t, test.first(id))
				for _, deliver := range sequence {
					require.NoError(t, deliver(id))
				}
				o := stored(t, s, id)
				require.Equal(t, test.status, o.status)
				require.Equal(t, test.told, names(t, s, id))
				require.Equal(t, 1-test.held, stock(t, s, sku))
			}
		})
	}
}

func TestLatePaymentDoesNotReviveACancelledOrder(t *testing.T) {
	t.Parallel()
	s := newService(t)
	stocked(t, s, 10, "mug")
	id := place(t, s, "mug")
	_, err := s.CancelOrder(t.Context(), id, "why not")
	require.NoError(t, err)
	before := everything(t, s)
	require.NoError(t, s.onPaymentCaptured(t.Context(), events.PaymentCaptured{Payment: paymentOf(id, 4)}))
	require.Equal(t, before, everything(t, s))
}

func TestPaymentOfAnUnknownOrderIsPermanent(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, id := range []string{uuid.NewString(), "no uuid"} {
		require.Equal(t, fault.Permanent, fault.ClassOf(s.onPaymentCaptured(t.Context(), events.PaymentCaptured{Payment: paymentOf(id, 4)})))
		require.Equal(t, fault.Permanent, fault.ClassOf(s.onPaymentDeclined(t.Context(), events.PaymentDeclined{Payment: paymentOf(id, 4)})))
	}
}

func TestOverdueOrderIsCancelledUnlessItWasConfirmed(t *testing.T) {
	t.Parallel()
	s := newService(t)
	stocked(t, s, 10, "mug")
	late, paid, recent := place(t, s, "mug"), place(t, s, "mug"), place(t, s, "mug")
	require.NoError(t, s.ConfirmOrder(t.Context(), paymentOf(paid, 4)))
	_, err := s.db.ExecContext(t.Context(), `UPDATE orders SET placed_at = placed_at - interval '1 hour' WHERE id <> $1`, recent)
	require.NoError(t, err)

	ctx, stop := context.WithCancel(t.Context())
	swept := make(chan error, 1)
	go func() { swept <- s.CancelOverdue(ctx, 30*time.Minute) }()
	require.Eventually(t, func() bool { return stored(t, s, late).status == Cancelled }, 4*sweepEvery, 20*time.Millisecond)
	stop()
	require.NoError(t, <-swept)
	require.Equal(t, Confirmed, stored(t, s, paid).status)
	require.Equal(t, Placed, stored(t, s, recent).status)
	require.EqualValues(t, 8, stock(t, s, "mug"))
	audit(t, s)
}

func TestSweeperLeavesAnOrderThatWasConfirmedMeanwhile(t *testing.T) {
	t.Parallel()
	s := newService(t)
	stocked(t, s, 10, "mug")
	id := place(t, s, "mug")
	found, err := overdue(t.Context(), s.db, time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Equal(t, []string{id}, found)
	require.NoError(t, s.ConfirmOrder(t.Context(), paymentOf(id, 4)))
	before := everything(t, s)
	require.NoError(t, s.cancelIfPlaced(t.Context(), id, "not paid in time"))
	require.Equal(t, before, everything(t, s))
	found, err = overdue(t.Context(), s.db, time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Empty(t, found)
}
