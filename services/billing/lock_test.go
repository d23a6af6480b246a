package billing

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/events"
)

const waitForLock = `
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`

// awaitBlocked waits until a statement waits for a lock.
func (w *world) awaitBlocked(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		var blocked int
		require.NoError(t, w.db.GetContext(t.Context(), &blocked, waitForLock))
		return blocked > 0
	}, 4*time.Second, 5*time.Millisecond) // less than the limit of a lock
}

// A cancellation meets the transaction that records the charge.
func TestCancellationWaitsForAnOutcomeThatIsBeingRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	event := placed(visa)
	w.receive(t, event)
	w.network.set(func(n *network) { n.plan = []mishap{fine, lost, unreached} })
	p, err := lease(t.Context(), w.db, leaseLimit)
	require.NoError(t, err)
	w.executor.settle(t.Context(), p) // it is charged, and nobody knows
	require.Equal(t, Confirming, w.paymentOf(t, event.Order).status)

	delivered := make(chan error, 1)
	_, err = w.executor.record(t.Context(), p.id, func(p *Payment) (events.Event, int64) {
		go func() { delivered <- w.deliver(t.Context(), uuid.NewString(), cancelled(event.Order)) }()
		w.awaitBlocked(t)
		return p.resolved(intent{id: p.intentID, status: intentSucceeded})
	})
	require.NoError(t, err)
	require.NoError(t, <-delivered)
	met := w.paymentOf(t, event.Order)
	require.Equal(t, Captured, met.status)
	require.True(t, met.cancelWanted)
	require.NoError(t, w.settleAll(t.Context()))
	w.requireBooks(t, event.Order, back)
}

// The executor has the payment as it was before the cancellation.
func TestNoteThatFindsACancellationAsksForNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	event := placed(visa)
	w.receive(t, event)
	p, err := w.executor.take(t.Context(), create, w.paymentOf(t, event.Order))
	require.NoError(t, err)
	require.Equal(t, confirm, next(p))
	w.receive(t, cancelled(event.Order))
	met := w.during("/confirm", func() error { return nil })
	p, err = w.executor.take(t.Context(), confirm, p)
	require.NoError(t, err)
	require.Empty(t, met, "it was charged")
	require.Equal(t, void, next(p))
	require.NoError(t, w.settleAll(t.Context()))
	w.requireBooks(t, event.Order, voided)
}
