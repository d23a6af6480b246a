package billing

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"onceshop/pkg/events"
)

// books are what billing and the provider have of one order in the end.
type books struct {
	status   Status
	charges  int
	refunds  int
	balance  int64
	told     []string // the names of billing's events
	versions []int64  // of these
	due      bool     // there is something left to do
}

const (
	countCharges = `SELECT count(*) FROM charges WHERE order_id = $1`
	countRefunds = `SELECT count(*) FROM refunds WHERE order_id = $1`
	readBalance  = `SELECT coalesce(sum(balance), 0) FROM accounts WHERE customer = $1`
	readStatus   = `SELECT coalesce(max(status), ''), coalesce(bool_or(due_at IS NOT NULL), false) FROM payments WHERE order_id = $1`
	readTold     = `
SELECT topic, payload FROM outbox WHERE key = (SELECT id::text FROM payments WHERE order_id = $1) ORDER BY id`
)

func (w *world) booksOf(ctx context.Context, order events.Order) (books, error) {
	var b books
	if err := w.provider.GetContext(ctx, &b.charges, countCharges, order.OrderID); err != nil {
		return b, err
	}
	if err := w.provider.GetContext(ctx, &b.refunds, countRefunds, order.OrderID); err != nil {
		return b, err
	}
	if err := w.db.GetContext(ctx, &b.balance, readBalance, order.Customer); err != nil {
		return b, err
	}
	if err := w.db.QueryRowContext(ctx, readStatus, order.OrderID).Scan(&b.status, &b.due); err != nil {
		return b, err
	}
	var told []struct {
		Topic   string
		Payload []byte
	}
	if err := w.db.SelectContext(ctx, &told, readTold, order.OrderID); err != nil {
		return b, err
	}
	for _, event := range told {
		var state events.Payment
		if err := json.Unmarshal(event.Payload, &state); err != nil {
			return b, err
		}
		b.told, b.versions = append(b.told, event.Topic), append(b.versions, state.Version)
	}
	return b, nil
}

// requireBooks requires how an order ended. The versions are not compared.
func (w *world) requireBooks(t *testing.T, order events.Order, want books) {
	t.Helper()
	got, err := w.booksOf(t.Context(), order)
	require.NoError(t, err)
	require.IsIncreasing(t, append([]int64{0}, got.versions...))
	got.versions = nil
	require.Equal(t, want, got)
}

func (w *world) paymentOf(t *testing.T, order events.Order) *Payment {
	t.Helper()
	p, err := onePayment(t.Context(), w.db, readByOrder, order.OrderID)
	require.NoError(t, err)
	return p
}
