package outbox_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/outbox"
)

// gathered returns the registry's values by name; of the histogram, the count.
func gathered(t testing.TB, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		m := family.GetMetric()[0]
		values[family.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return values
}

func TestMetricsShowWhatWaitsAndWhatIsHeld(t *testing.T) {
	t.Parallel()
	s := declared(t, nil)
	s.writeAll(t, typed(unknown, "a", 0), newMessage("a", 1), newMessage("a", 2))
	_, err := s.db.Exec(`UPDATE outbox SET created_at = now() - interval '1 hour' WHERE id = (SELECT min(id) FROM outbox)`)
	require.NoError(t, err)
	long, err := s.db.Beginx()
	require.NoError(t, err)
	defer func() { _ = long.Rollback() }()
	_, err = long.Exec(`SELECT 1`)
	require.NoError(t, err)

	registry := prometheus.NewRegistry()
	stop := s.start(t, outbox.RelayConfig{Tries: 1, Registerer: registry})
	s.write(t, "b", 0, 30)
	s.awaitHeld(t, "a")
	require.Eventually(t, func() bool { return s.pending(t) == 3 }, 30*time.Second, 10*time.Millisecond)
	var seen map[string]float64
	require.Eventually(t, func() bool {
		seen = gathered(t, registry)
		return seen["outbox_held_keys"] == 1 && seen["outbox_pending"] == 3 && seen["outbox_dead_rows"] > 0
	}, 30*time.Second, 50*time.Millisecond, "gauges are read every few seconds")
	require.InDelta(t, 1, seen["outbox_relay_active"], 0)
	require.InDelta(t, 30, seen["outbox_published_total"], 0)
	require.InDelta(t, 30, seen["outbox_publish_seconds"], 0)
	require.InDelta(t, 3600, seen["outbox_oldest_seconds"], 60)
	require.Greater(t, seen["outbox_oldest_transaction_seconds"], 0.5)
	require.Less(t, seen["outbox_oldest_transaction_seconds"], 60.0)

	stop()
	seen = gathered(t, registry)
	for _, name := range []string{"outbox_relay_active", "outbox_pending", "outbox_oldest_seconds", "outbox_held_keys", "outbox_oldest_transaction_seconds"} {
		require.Zero(t, seen[name], "%s of a relay that stands by", name)
	}
}
