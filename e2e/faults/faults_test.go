//go:build faults

// Package faults restarts and stops whole servers under a shop's load. It runs by `make test-faults`, on
// instances of its own, one test after the other.
package faults

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"onceshop/e2e/harness"
)

var (
	servers  *harness.Private
	binaries string
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if binaries, err = harness.Build(); err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(binaries) }()
	if servers, err = harness.NewPrivate(); err != nil {
		return 1, err
	}
	defer func() { _ = servers.Down() }()
	return m.Run(), nil
}

func TestRabbitMQRestarted(t *testing.T) {
	whileOrdering(t, false, func() { require.NoError(t, servers.Restart("rabbitmq")) })
}

func TestPostgreSQLRestarted(t *testing.T) {
	whileOrdering(t, true, func() { require.NoError(t, servers.Restart("postgres")) })
}

func TestRabbitMQStoppedForAMinute(t *testing.T) {
	whileOrdering(t, false, func() { stopForAMinute(t, "rabbitmq") })
}

func TestPostgreSQLStoppedForAMinute(t *testing.T) {
	whileOrdering(t, true, func() { stopForAMinute(t, "postgres") })
}

func stopForAMinute(t *testing.T, server string) {
	t.Helper()
	require.NoError(t, servers.Stop(server))
	<-time.After(time.Minute)
	require.NoError(t, servers.Start(server))
}

// whileOrdering lets clients order before, while and after something happens. Clients that are not patient
// fail at the first order that is not taken.
func whileOrdering(t *testing.T, patient bool, happen func()) {
	t.Helper()
	s := harness.Started(t, servers.Stack, binaries)
	const orders = 300
	told := s.Story(orders, patient)
	ordering := make(chan error, 1)
	go func() { ordering <- told.Order(s.Context()) }()
	s.Until("orders are placed", func() bool { return told.Placed() >= orders/3 })
	happen()
	require.NoError(t, <-ordering)
	after := s.Story(orders/3, false)
	require.NoError(t, after.Order(s.Context()))
	s.AwaitEnd(orders + orders/3)
	s.Audit()
}
