package broker

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/broker/brokertest"
)

// A close while a message is being handled waits for it, and the broker learns of the ack.
func TestSubscriberCloseWaitsForTheMessageInHand(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	conn, err := dial(url, t.Name())
	require.NoError(t, err)
	defer conn.cut()
	ch, err := conn.Channel()
	require.NoError(t, err)
	_, err = ch.QueueDeclare("work", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	require.NoError(t, ch.QueueBind("work", "work", "amq.direct", false, nil))
	require.NoError(t, ch.Publish("amq.direct", "work", false, false, amqp.Publishing{MessageId: "1"}))

	sub, err := dialSubscriber(context.Background(), url, t.Name(), 4, watermill.NopLogger{})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	messages, err := sub.Subscribe(ctx, "work")
	require.NoError(t, err)
	msg := <-messages
	closed := make(chan error, 1)
	go func() { closed <- sub.Close() }()
	stop()
	select {
	case err := <-closed:
		require.Fail(t, "closed while a message was being handled", err)
	case <-time.After(200 * time.Millisecond):
	}
	require.NoError(t, msg.Context().Err(), "the handler may finish")
	<-Stopping(msg.Context())
	msg.Ack()
	require.NoError(t, <-closed)
	_, open := <-messages
	require.False(t, open)
	_, redelivered, err := ch.Get("work", true)
	require.NoError(t, err)
	require.False(t, redelivered)
}
