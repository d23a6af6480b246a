package outbox_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/broker"
	"onceshop/pkg/events"
)

// newPublisher is watermill-amqp's publisher with confirms.
func (s *shop) newPublisher(b *testing.B, channels int) *wamqp.Publisher {
	b.Helper()
	config := wamqp.NewDurablePubSubConfig(s.amqpURL, nil)
	config.Marshaler = broker.Marshaler{}
	config.Exchange.GenerateName = func(string) string { return "orders" }
	config.Publish.GenerateRoutingKey = func(topic string) string { return topic }
	config.Publish.ConfirmDelivery = true
	config.Publish.ChannelPoolSize = channels
	config.TopologyBuilder = nothing{}
	publisher, err := wamqp.NewPublisher(config, watermill.NopLogger{})
	require.NoError(b, err)
	b.Cleanup(func() { _ = publisher.Close() })
	return publisher
}

// sendPooled publishes from as many goroutines as there are channels, each waiting for its confirm.
func sendPooled(b *testing.B, rows int) time.Duration {
	const channels = 64
	s := newBench(b)
	publisher := s.newPublisher(b, channels)
	started := time.Now()
	var senders sync.WaitGroup
	for sender := range channels {
		senders.Go(func() {
			for i := sender; i < rows; i += channels {
				require.NoError(b, publisher.Publish(events.OrderPlacedV1, eventMessage(fmt.Sprint("key-", i%1000))))
			}
		})
	}
	senders.Wait()
	return time.Since(started)
}

// forward runs Watermill's forwarder from watermill-sql's table to watermill-amqp's publisher.
func forward(b *testing.B, rows int) time.Duration {
	s := newBench(b)
	subscriber, err := wsql.NewSubscriber(s.db.DB, wsql.SubscriberConfig{
		ConsumerGroup: "forwarder", SchemaAdapter: wsql.DefaultPostgreSQLSchema{},
		OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true,
		PollInterval: 10 * time.Millisecond,
	}, watermill.NopLogger{})
	require.NoError(b, err)
	require.NoError(b, subscriber.SubscribeInitialize("forwarded"))
	s.fillForwarder(b, rows)
	forwarding, err := forwarder.NewForwarder(subscriber, s.newPublisher(b, 1), watermill.NopLogger{},
		forwarder.Config{ForwarderTopic: "forwarded"})
	require.NoError(b, err)
	started := time.Now()
	var running sync.WaitGroup
	running.Go(func() { _ = forwarding.Run(context.Background()) })
	s.awaitDepth(b, rows)
	took := time.Since(started)
	require.NoError(b, forwarding.Close())
	running.Wait()
	return took
}

// fillForwarder writes messages for the forwarder, a thousand in a transaction.
func (s *shop) fillForwarder(b *testing.B, rows int) {
	b.Helper()
	for from := 0; from < rows; from += 1000 {
		tx, err := s.db.Begin()
		require.NoError(b, err)
		inner, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: wsql.DefaultPostgreSQLSchema{}}, watermill.NopLogger{})
		require.NoError(b, err)
		messages := make([]*message.Message, 1000)
		for i := range messages {
			messages[i] = eventMessage(fmt.Sprint("key-", i))
		}
		publisher := forwarder.NewPublisher(inner, forwarder.PublisherConfig{ForwarderTopic: "forwarded"})
		require.NoError(b, publisher.Publish(events.OrderPlacedV1, messages...))
		require.NoError(b, tx.Commit())
	}
}

// nothing declares nothing: the topology is there.
type nothing struct{}

func (nothing) BuildTopology(*amqp.Channel, string, string, wamqp.Config, watermill.LoggerAdapter) error {
	return nil
}

func (nothing) ExchangeDeclare(*amqp.Channel, string, wamqp.Config) error { return nil }
