// Package brokertest gives each test a virtual host of its own on the real broker, so that tests run side
// by side and leave nothing behind.
package brokertest

import (
	"errors"
	"fmt"
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
	url, remove, err := Create()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, remove()) })
	return url
}

// Create is VHost for those without a testing.TB, such as an Example. The function returned removes the
// virtual host.
func Create() (url string, remove func() error, err error) {
	found, err := stack.Find()
	if err != nil {
		return "", nil, err
	}
	api, err := management.New(found.AMQPAPI)
	if err != nil {
		return "", nil, err
	}
	name := "test-" + uuid.NewString()
	if err := api.PutVHost(name); err != nil {
		return "", nil, fmt.Errorf("RabbitMQ does not answer: run `make stack`: %w", err)
	}
	remove = func() error { return api.DeleteVHost(name) }
	if err = api.Permit(name, "guest", ".*", ".*", ".*"); err == nil {
		url, err = found.VHost(name, "", "")
	}
	if err != nil {
		return "", nil, errors.Join(err, remove())
	}
	return url, remove, nil
}
