package catalogview

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/events"
	"onceshop/pkg/postgres/postgrestest"
)

const waitForLock = `
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`

// awaitBlocked waits until that many statements wait for a lock.
func awaitBlocked(t *testing.T, db *sqlx.DB, want int) {
	t.Helper()
	require.Eventually(t, func() bool {
		var blocked int
		require.NoError(t, db.GetContext(t.Context(), &blocked, waitForLock))
		return blocked == want
	}, 4*time.Second, 5*time.Millisecond) // less than the limit of a lock
}

// Two versions wait for the order's row; what the second takes off the best sellers must be what the first
// put there, and not what it might have read before.
func TestVersionsOfAnOrderThatMeetCountOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	versions := []events.Order{
		orderAt(2, "confirmed", line("mug", 2)), orderAt(3, "confirmed", line("mug", 30)), orderAt(4, "confirmed", line("mug", 400)),
	}
	for i := range versions {
		versions[i].OrderID = versions[0].OrderID
	}
	require.NoError(t, s.onOrder(t.Context(), versions[0]))
	blocker, err := s.db.BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	_, err = blocker.ExecContext(t.Context(), `SELECT FROM order_view FOR UPDATE`)
	require.NoError(t, err)
	handled := make(chan error, 2)
	for i, version := range versions[1:] {
		go func() { handled <- s.onOrder(t.Context(), version) }()
		awaitBlocked(t, s.db, i+1)
	}
	require.NoError(t, blocker.Rollback())
	require.NoError(t, <-handled)
	require.NoError(t, <-handled)
	best, err := bestSellers(t.Context(), s.db, 10)
	require.NoError(t, err)
	require.Equal(t, []BestSeller{{"mug", "", 400}}, best)
}

func TestOrdersOfTheSameProductsNeverWaitInACircle(t *testing.T) {
	t.Parallel()
	url := postgrestest.URL(t, schema())
	db := postgrestest.Open(t, url)
	s := &Service{db: db, stale: prometheus.NewCounter(prometheus.CounterOpts{Name: "stale"})}
	var calls []func(context.Context) error
	for range 100 {
		var lines []events.OrderLine
		for sku := range 6 {
			lines = append(lines, line(fmt.Sprint("sku-", sku), 1))
		}
		o := orderAt(2, "confirmed", lines...)
		calls = append(calls, func(ctx context.Context) error { return s.onOrder(ctx, o) })
	}
	require.NoError(t, sideBySide(calls, 15))
	best, err := bestSellers(t.Context(), db, 10)
	require.NoError(t, err)
	require.Len(t, best, 6)
	for _, each := range best {
		require.EqualValues(t, 100, each.Quantity)
	}
	require.NoError(t, db.Close())
	require.Zero(t, postgrestest.Deadlocks(t, url))
}
