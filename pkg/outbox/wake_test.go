package outbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"onceshop/pkg/outbox"
)

// With a poll of an hour, nothing but the writer's call wakes the relay.
func TestCommitWakesTheRelayOfItsProcess(t *testing.T) {
	t.Parallel()
	s := declared(t, nil)
	s.start(t, outbox.RelayConfig{Poll: time.Hour})
	wakes(t, s, s)
}

// The other outbox has no active relay, as in a process that stands by.
func TestCommitElsewhereWakesTheActiveRelay(t *testing.T) {
	t.Parallel()
	s := declared(t, nil)
	s.start(t, outbox.RelayConfig{Poll: time.Hour})
	elsewhere := *s
	var err error
	elsewhere.box, err = outbox.New(s.db, "/onceshop/orders")
	require.NoError(t, err)
	wakes(t, s, &elsewhere)
}

// wakes requires that each commit of the writer is published at once.
func wakes(t *testing.T, s, writer *shop) {
	t.Helper()
	s.write(t, "a", 0, 1)
	s.awaitEmpty(t) // the relay is active, and reads a last time before it sleeps
	for n := 1; n < 20; n++ {
		writer.write(t, "a", n, n+1)
		require.Eventually(t, func() bool { return s.pending(t) == 0 }, 10*time.Second, time.Millisecond)
	}
	require.Equal(t, run("a", 0, 20), s.take(t))
}
