package broker

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/broker/brokertest"
	"onceshop/pkg/events"
	"onceshop/pkg/fault"
)

// connected returns a session of orders, and runs it until the test ends.
func connected(t *testing.T) *session {
	t.Helper()
	publisher, err := NewPublisher(PublisherConfig{URL: brokertest.VHost(t), Service: "orders"})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	s, err := publisher.connect(ctx)
	require.NoError(t, err)
	var running sync.WaitGroup
	running.Go(func() { s.end(s.run(ctx)) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return s
}

func within(t *testing.T, results <-chan error) error {
	t.Helper()
	select {
	case err := <-results:
		return err
	case <-time.After(20 * time.Second):
		require.Fail(t, "no result")
		return nil
	}
}

// The broker closes the channel on one message. Those that were under way with it may be the cause; one
// that comes too late for that session is not, though nobody has replaced the session yet.
func TestMessageThatCameTooLateForItsSessionIsNotSuspect(t *testing.T) {
	t.Parallel()
	s := connected(t)
	guilty := make(chan error, 1)
	s.send("nobody", "nobody.knows.v1", amqp.Publishing{MessageId: "guilty"}, func(err error) { guilty <- err })
	require.ErrorIs(t, within(t, guilty), ErrChannel)
	late := make(chan error, 1)
	s.send("orders", events.OrderPlacedV1, amqp.Publishing{MessageId: "late"}, func(err error) { late <- err })
	require.Equal(t, fault.Outage, fault.ClassOf(within(t, late)))
}

// The sender may find the channel closed, and cut the connection, before the session's loop sees why.
func TestChannelExceptionIsKnownThoughTheConnectionIsCut(t *testing.T) {
	t.Parallel()
	for range 20 {
		s := connected(t)
		guilty := make(chan error, 1)
		s.send("nobody", "nobody.knows.v1", amqp.Publishing{MessageId: "guilty"}, func(err error) { guilty <- err })
		for n := 0; ; n++ {
			late := make(chan error, 1)
			s.send("orders", events.OrderPlacedV1, amqp.Publishing{MessageId: fmt.Sprint(n)}, func(err error) { late <- err })
			if len(guilty) > 0 {
				break
			}
		}
		require.ErrorIs(t, within(t, guilty), ErrChannel)
	}
}
