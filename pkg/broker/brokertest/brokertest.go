// Package brokertest gives each test a virtual host of its own on the real broker, so that tests run side
// by side and leave nothing behind.
package brokertest

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/broker/management"
	"onceshop/pkg/stack"
)

// VHost returns the AMQP URL of a new virtual host, for the administrator, who may do everything. It is
// gone when the test ends, whoever is still connected. Without a broker the test fails and says how to
// start one.
func VHost(t testing.TB) string {
	t.Helper()
	found, err := stack.Find()
	require.NoError(t, err)
	api, err := management.New(found.AMQPAPI)
	require.NoError(t, err)
	name := "test-" + uuid.NewString()
	require.NoError(t, api.PutVHost(name), "RabbitMQ does not answer: run `make stack`")
	t.Cleanup(func() { require.NoError(t, api.DeleteVHost(name)) })
	require.NoError(t, api.Permit(name, "guest", ".*", ".*", ".*"))
	url, err := found.VHost(name, "", "")
	require.NoError(t, err)
	return url
}
