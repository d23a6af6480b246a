//go:build faults

package faults

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"onceshop/cmd/shop/setup"
	"onceshop/e2e/harness"
	"onceshop/pkg/broker"
	"onceshop/pkg/postgres"
)

// A message is parked for two minutes, in which every service is killed and both servers are restarted.
func TestParkedMessageSurvivesRestarts(t *testing.T) {
	s := harness.New(t, servers.Stack, binaries)
	s.Set(setup.Billing, "RETRY_DELAYS=2m")
	s.StartEach()
	url, err := s.DatabaseURL(setup.Billing)
	require.NoError(t, err)
	db, err := postgres.Open(postgres.Config{URL: url, MaxConnections: 1})
	require.NoError(t, err)
	defer func() { _ = db.Close() }()
	amqp, err := s.AMQPURL(setup.Operator)
	require.NoError(t, err)
	parked := func() int {
		depths, err := broker.Depth(amqp, "billing.orders.retry.2m")
		require.NoError(t, err)
		return depths["billing.orders.retry.2m"]
	}

	_, err = db.Exec(`ALTER TABLE accounts RENAME TO elsewhere`)
	require.NoError(t, err)
	require.NoError(t, s.Story(1, false).Order(s.Context()))
	s.Until("the message is parked", func() bool { return parked() == 1 })
	since := time.Now()
	_, err = db.Exec(`ALTER TABLE elsewhere RENAME TO accounts`)
	require.NoError(t, err)
	for _, service := range setup.Services() {
		require.NoError(t, s.Kill(service))
	}
	for _, server := range []string{"rabbitmq", "postgres"} {
		require.NoError(t, servers.Restart(server))
	}
	require.Equal(t, 1, parked())
	s.StartEach()
	s.AwaitEnd(1)
	require.GreaterOrEqual(t, time.Since(since), 2*time.Minute)
	s.Audit() // which counts dead letters
}
