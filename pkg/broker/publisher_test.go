package broker_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/broker"
	"onceshop/pkg/broker/brokertest"
	"onceshop/pkg/events"
	"onceshop/pkg/fault"
)

// startPublisher runs a publisher of orders until the test ends, and returns it connected.
func startPublisher(t testing.TB, cfg broker.PublisherConfig) *broker.Publisher {
	t.Helper()
	cfg.Service = "orders"
	publisher, err := broker.NewPublisher(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = publisher.Run(ctx) })
	t.Cleanup(func() { cancel(); done.Wait() })
	await(t, publisher)
	return publisher
}

func await(t testing.TB, publisher *broker.Publisher) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	require.NoError(t, publisher.Await(ctx))
}

// channel returns a plain AMQP channel for what a test does behind the package's back.
func channel(t testing.TB, url string) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	require.NoError(t, err)
	return ch
}

func newMessage(name string) *message.Message {
	msg := message.NewMessage(uuid.NewString(), []byte(`{}`))
	msg.Metadata.Set(events.Type, name)
	return msg
}

func TestPublisherConfirmsWhatAQueueTook(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	publisher := startPublisher(t, broker.PublisherConfig{URL: url, MaxInFlight: 16})
	ch := channel(t, url)
	_, err := ch.QueueDeclare("taken", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	require.NoError(t, ch.QueueBind("taken", events.OrderPlacedV1, "orders", false, nil))

	var messages []*message.Message
	for range 500 {
		messages = append(messages, newMessage(events.OrderPlacedV1))
	}
	require.NoError(t, publisher.Publish("", messages...))

	queue, err := ch.QueueDeclarePassive("taken", true, false, false, false, nil)
	require.NoError(t, err)
	require.Equal(t, 500, queue.Messages)
}

func TestPublisherKeepsWhatNoQueueTakes(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	publisher := startPublisher(t, broker.PublisherConfig{URL: url})
	require.NoError(t, publisher.Publish("", newMessage(events.OrderPlacedV1)))
	_, ok, err := channel(t, url).Get(broker.Unrouted("orders"), true)
	require.NoError(t, err)
	require.True(t, ok, "the event is in orders.unrouted")
}

func TestPublisherTellsEachFailureApart(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	publisher := startPublisher(t, broker.PublisherConfig{URL: url})
	ch := channel(t, url)

	full := amqp.Table{"x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish"}
	_, err := ch.QueueDeclare("full", true, false, false, false, full)
	require.NoError(t, err)
	require.NoError(t, ch.QueueBind("full", events.OrderPlacedV1, "orders", false, nil))
	require.Eventually(t, func() bool {
		return publisher.Publish("", newMessage(events.OrderPlacedV1)) != nil
	}, 10*time.Second, time.Millisecond)
	require.ErrorIs(t, publisher.Publish("", newMessage(events.OrderPlacedV1)), broker.ErrNacked)

	require.NoError(t, ch.ExchangeDelete("orders.unrouted", false, false))
	require.ErrorIs(t, publisher.Publish("", newMessage(events.OrderConfirmedV1)), broker.ErrReturned)

	require.ErrorIs(t, publisher.Publish("", newMessage("nobody.knows.v1")), broker.ErrChannel)
	require.ErrorContains(t, publisher.Publish("", newMessage("")), "type of 0 bytes")
	require.Eventually(t, func() bool {
		err := publisher.Publish("", newMessage("orders."+fmt.Sprint(time.Now().UnixNano())))
		return fault.ClassOf(err) != fault.Outage
	}, 10*time.Second, 50*time.Millisecond, "it connects again after a channel that died")
}

func TestPublisherWaitsForItsConsumers(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	publisher, err := broker.NewPublisher(broker.PublisherConfig{URL: url, Service: "orders", RequiredQueues: []string{"billing.orders"}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = publisher.Run(ctx) })
	defer func() { cancel(); done.Wait() }()

	short, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	require.Error(t, publisher.Await(short), "not ready while no consumer has declared its queue")
	require.Equal(t, fault.Outage, fault.ClassOf(publisher.Publish("", newMessage(events.OrderPlacedV1))))

	consumer, err := broker.NewConsumer(broker.ConsumerConfig{
		URL: url, Service: "billing", Source: "orders",
		Handlers: broker.NewHandlers(broker.On(func(context.Context, events.OrderPlaced) error { return nil })),
	})
	require.NoError(t, err)
	done.Go(func() { _ = consumer.Run(ctx) })
	await(t, publisher)
}
