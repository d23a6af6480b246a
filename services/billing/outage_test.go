package billing

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func (w *world) attempts(t *testing.T) (n int) {
	t.Helper()
	require.NoError(t, w.db.GetContext(t.Context(), &n, `SELECT max(attempts) FROM payments`))
	return n
}

func TestPaymentWaitsWhileTheProviderIsDownAndIsThenDone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.network.set(func(n *network) { n.down = true })
	event := placed(visa)
	w.receive(t, event)
	stop := w.run(t, 1)
	require.Eventually(t, func() bool { return w.attempts(t) >= 2 }, settledSoon, pollInterval)
	require.Equal(t, New, w.paymentOf(t, event.Order).status)
	w.network.set(func(n *network) { n.down = false })
	require.Eventually(t, func() bool { return w.paymentOf(t, event.Order).status == Captured }, settledSoon, pollInterval)
	stop()
	w.requireBooks(t, event.Order, paid)
	require.Zero(t, w.attempts(t), "a call that works ends the pauses")
}

// The pauses are 0.5, 1, 2 … 60 seconds, each times 0.5 to 1.5.
func TestPausesGrowWithEachFailedCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	event := placed(visa)
	w.receive(t, event)
	id := w.paymentOf(t, event.Order).id
	now := func() (at time.Time) {
		require.NoError(t, w.db.GetContext(t.Context(), &at, `SELECT clock_timestamp()`))
		return at
	}
	for i, pause := range []time.Duration{500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000, 60000, 60000, 60000} {
		pause *= time.Millisecond
		earliest := now().Add(pause / 2)
		require.NoError(t, postpone(t.Context(), w.db, id))
		latest := now().Add(pause + pause/2)
		var due time.Time
		require.NoError(t, w.db.GetContext(t.Context(), &due, `SELECT due_at FROM payments`))
		require.WithinRange(t, due, earliest, latest, "pause %d", i)
		require.Equal(t, i+1, w.attempts(t))
	}
}

func TestSettledPaymentIsNotPostponed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	event := placed(visa)
	w.receive(t, event)
	require.NoError(t, w.settleAll(t.Context()))
	require.NoError(t, postpone(t.Context(), w.db, w.paymentOf(t, event.Order).id))
	w.requireBooks(t, event.Order, paid) // with nothing due
}

func TestCallUnderWayIsRecordedWhenTheServiceStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	event := placed(visa)
	w.receive(t, event)
	ctx, stop := context.WithCancel(t.Context())
	met := w.during("/confirm", func() error { stop(); return nil })
	require.NoError(t, w.executor.Run(ctx))
	require.NoError(t, <-met)
	w.requireBooks(t, event.Order, paid)
}

func TestAnswerThatIsLostIsAskedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, what := range []mishap{unreached, broken, lost, late} {
		for request := range 3 { // to create, to confirm, to ask
			t.Run(fmt.Sprintf("%s request %d", what, request+1), func(t *testing.T) { // not parallel: one plan for all
				event := placed(visa)
				w.receive(t, event)
				plan := []mishap{fine, fine, fine}
				plan[request] = what
				if request == 2 {
					plan[1] = lost
				}
				w.network.set(func(n *network) { n.plan = plan })
				require.NoError(t, w.settleAll(t.Context()))
				w.network.arrive()
				w.requireBooks(t, event.Order, paid)
			})
		}
	}
}

func TestRefundWhoseAnswerIsLostIsFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, what := range []mishap{unreached, broken, lost, late} {
		t.Run(string(what), func(t *testing.T) { // not parallel: one plan for all
			event := placed(visa)
			w.receive(t, event)
			require.NoError(t, w.settleAll(t.Context()))
			w.receive(t, cancelled(event.Order))
			w.network.set(func(n *network) { n.plan = []mishap{what} })
			require.NoError(t, w.settleAll(t.Context()))
			w.network.arrive()
			w.requireBooks(t, event.Order, back)
		})
	}
}

// Keys expire after a day, so a repetition of a request whose answer was lost may be a new one.
func TestExpiredKeysDoNotRepeatAnEffect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	event := placed(visa)
	w.receive(t, event)
	settle := func(plan ...mishap) {
		w.network.set(func(n *network) { n.plan = plan })
		p, err := lease(t.Context(), w.db, 0)
		require.NoError(t, err)
		w.executor.settle(t.Context(), p)
		for _, statement := range []string{allDue, `UPDATE payments SET attempts = 0`} {
			_, err = w.db.ExecContext(t.Context(), statement)
			require.NoError(t, err)
		}
		require.NoError(t, w.keysExpire(t.Context()))
	}
	settle(lost)                  // to create
	settle(fine, lost, unreached) // to create, to charge, to ask
	settle()
	w.receive(t, cancelled(event.Order))
	settle(lost, unreached) // to refund, to look for the refund
	settle()
	w.requireBooks(t, event.Order, back)
}

// A wrong key, too many requests and a server's errors pass; they are no declines.
func TestPassingRefusalIsNoDecline(t *testing.T) {
	t.Parallel()
	for status, final := range map[int]bool{400: true, 402: true, 404: true, 401: false, 403: false, 409: false, 429: false, 500: false, 503: false} {
		require.Equal(t, final, isFinal(status), http.StatusText(status))
	}
}
