//go:build faults

package faults

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"onceshop/cmd/shop/setup"
	"onceshop/e2e/harness"
	"onceshop/pkg/postgres"
)

// RabbitMQ raises a memory alarm: it no longer reads from connections that publish. Orders are taken all
// the same, publishes time out, and all goes on once the alarm is over.
func TestRabbitMQBlocksPublishers(t *testing.T) {
	s := harness.Started(t, servers.Stack, binaries)
	const orders = 100
	require.NoError(t, s.Story(orders, false).Order(s.Context()))
	s.AwaitEnd(orders)

	watermark := func(settings ...string) {
		_, err := servers.RabbitMQCtl(append([]string{"set_vm_memory_high_watermark"}, settings...)...)
		require.NoError(t, err)
	}
	watermark("absolute", "1")
	t.Cleanup(func() { watermark("0.4") })
	s.Until("the alarm is on", func() bool {
		out, err := servers.RabbitMQCtl("eval", "rabbit_alarm:get_alarms().")
		return err == nil && strings.Contains(out, "memory")
	})
	require.NoError(t, s.Story(orders, false).Order(s.Context()), "orders are taken all the same")
	s.Until("a publish times out", func() bool {
		log, err := os.ReadFile(s.Log(setup.Orders))
		require.NoError(t, err)
		return strings.Contains(string(log), "no confirm within")
	})
	url, err := s.AuditURL(setup.Orders)
	require.NoError(t, err)
	db, err := postgres.Open(postgres.Config{URL: url, MaxConnections: 1})
	require.NoError(t, err)
	defer func() { _ = db.Close() }()
	var waiting, held int
	require.NoError(t, db.Get(&waiting, `SELECT count(*) FROM outbox`))
	require.GreaterOrEqual(t, waiting, orders, "what can't be published waits")
	require.NoError(t, db.Get(&held, `SELECT count(*) FROM outbox_held`))
	require.Zero(t, held, "no message is at fault")

	watermark("0.4")
	s.AwaitEnd(2 * orders)
	s.Audit()
}
