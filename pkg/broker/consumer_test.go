package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/broker"
	"onceshop/pkg/broker/brokertest"
	"onceshop/pkg/events"
	"onceshop/pkg/fault"
)

// startConsumer runs billing's consumer of orders' events and returns it once it consumes. The function
// returned stops it and returns Run's error.
func startConsumer(t testing.TB, cfg broker.ConsumerConfig) (stop func() error) {
	t.Helper()
	cfg.Service, cfg.Source = "billing", "orders"
	consumer, err := broker.NewConsumer(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- consumer.Run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { _ = stop() })
	require.Eventually(t, func() bool { return consumer.Ready() == nil }, 20*time.Second, 10*time.Millisecond)
	return stop
}

func placed(id string) events.OrderPlaced {
	return events.OrderPlaced{Order: events.Order{OrderID: id, Version: 1, Customer: "ada", Status: "placed", Lines: []events.OrderLine{}}}
}

// deliver sends an order's event straight to the exchange, as a producer without this package would.
func deliver(t testing.TB, ch *amqp.Channel, change func(*amqp.Publishing)) {
	t.Helper()
	body, err := json.Marshal(placed(uuid.NewString()))
	require.NoError(t, err)
	msg := amqp.Publishing{MessageId: uuid.NewString(), Type: events.OrderPlacedV1, Body: body, DeliveryMode: amqp.Persistent}
	if change != nil {
		change(&msg)
	}
	require.NoError(t, ch.Publish("orders", events.OrderPlacedV1, false, false, msg))
}

// nextDeadLetter waits for a message in the consumer's dead letters.
func nextDeadLetter(t testing.TB, ch *amqp.Channel) amqp.Delivery {
	t.Helper()
	var letter amqp.Delivery
	require.Eventually(t, func() bool {
		got, ok, err := ch.Get("billing.orders.dead-letters", true)
		require.NoError(t, err)
		letter = got
		return ok
	}, 20*time.Second, 20*time.Millisecond)
	return letter
}

func TestConsumerSetsPoisonAside(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	startPublisher(t, broker.PublisherConfig{URL: url})
	handled := make(chan events.OrderPlaced, 1)
	startConsumer(t, broker.ConsumerConfig{URL: url, Handlers: broker.NewHandlers(
		broker.On(func(_ context.Context, event events.OrderPlaced) error { handled <- event; return nil }))})
	ch := channel(t, url)
	for _, poison := range []struct {
		reason string
		change func(*amqp.Publishing)
	}{
		{"no id", func(p *amqp.Publishing) { p.MessageId = "" }},
		{"no type", func(p *amqp.Publishing) { p.Type = "" }},
		{"invalid character", func(p *amqp.Publishing) { p.Body = []byte("<order/>") }},
		{`missing field \"customer\"`, func(p *amqp.Publishing) { p.Body = []byte(`{"order_id":"1","version":1}`) }},
		{"no handler for this version", func(p *amqp.Publishing) { p.Type = "orders.order_placed.v2" }},
	} {
		deliver(t, ch, poison.change)
		letter := nextDeadLetter(t, ch)
		require.Contains(t, fmt.Sprintf("%q", letter.Headers[broker.LastError]), poison.reason)
		require.Equal(t, "billing.orders", letter.Headers[broker.OriginQueue])
		require.Equal(t, "1", letter.Headers[broker.Attempts])
	}
	deliver(t, ch, nil)
	<-handled // those behind it are handled
	_, ok, err := ch.Get("billing.orders.dead-letters", true)
	require.NoError(t, err)
	require.False(t, ok)
}

// While a version of a service replaces another one, both take from the queue.
func TestEventOfANewerVersionWaitsForIt(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	startPublisher(t, broker.PublisherConfig{URL: url})
	cancelled := make(chan events.OrderCancelled, 1)
	known := broker.On(func(context.Context, events.OrderPlaced) error { return nil })
	older := broker.ConsumerConfig{URL: url, RetryDelays: []time.Duration{time.Second}, Handlers: broker.NewHandlers(known)}
	newer := older
	newer.Handlers = broker.NewHandlers(known, broker.On(func(_ context.Context, event events.OrderCancelled) error { cancelled <- event; return nil }))
	require.NoError(t, startConsumer(t, newer)())
	stop := startConsumer(t, older) // it was away, and comes back later
	ch := channel(t, url)
	event := events.OrderCancelled{Order: placed(uuid.NewString()).Order}
	body, err := json.Marshal(event)
	require.NoError(t, err)
	require.NoError(t, ch.Publish("orders", events.OrderCancelledV1, false, false,
		amqp.Publishing{MessageId: uuid.NewString(), Type: events.OrderCancelledV1, Body: body, DeliveryMode: amqp.Persistent}))
	awaitDepth(t, url, "billing.orders.retry.1s", 1)
	require.NoError(t, stop())
	startConsumer(t, newer)
	require.Equal(t, event.OrderID, (<-cancelled).OrderID)
}

func TestQueueThatIsDeletedIsDeclaredAgain(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	startPublisher(t, broker.PublisherConfig{URL: url})
	handled := make(chan struct{}, 1000)
	startConsumer(t, broker.ConsumerConfig{URL: url, Handlers: broker.NewHandlers(
		broker.On(func(context.Context, events.OrderPlaced) error { handled <- struct{}{}; return nil }))})
	ch := channel(t, url)
	_, err := ch.QueueDelete("billing.orders", false, false, false)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		deliver(t, ch, nil)
		return len(handled) > 0
	}, time.Minute, 100*time.Millisecond)
}

func TestStopLimitMustOutlastAHandler(t *testing.T) {
	t.Parallel()
	_, err := broker.NewConsumer(broker.ConsumerConfig{
		URL: "amqp://localhost", Service: "billing", Source: "orders", StopLimit: 15 * time.Second,
		Handlers: broker.NewHandlers(broker.On(func(context.Context, events.OrderPlaced) error { return nil })),
	})
	require.ErrorContains(t, err, "StopLimit 15s must be more than HandlerLimit 15s")
}

func TestConsumerRetriesByClass(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	startPublisher(t, broker.PublisherConfig{URL: url})
	var calls atomic.Int32
	var outcome atomic.Pointer[error]
	fail := func(err error) { calls.Store(0); outcome.Store(&err) }
	stop := startConsumer(t, broker.ConsumerConfig{
		URL: url, RetryDelays: []time.Duration{time.Second, 2 * time.Second},
		Handlers: broker.NewHandlers(broker.On(func(context.Context, events.OrderPlaced) error {
			calls.Add(1)
			return *outcome.Load()
		})),
	})
	ch := channel(t, url)

	fail(fault.AsPermanent(errors.New("rule broken")))
	deliver(t, ch, nil)
	require.Equal(t, "rule broken", nextDeadLetter(t, ch).Headers[broker.LastError])
	require.EqualValues(t, 1, calls.Load())

	// Three deliveries of three tries each: from the queue, after a second, after two more.
	fail(errors.New("lock timeout"))
	started := time.Now()
	deliver(t, ch, nil)
	letter := nextDeadLetter(t, ch)
	require.Equal(t, "lock timeout", letter.Headers[broker.LastError])
	require.Equal(t, "3", letter.Headers[broker.Attempts])
	require.EqualValues(t, 9, calls.Load())
	require.GreaterOrEqual(t, time.Since(started), 3*time.Second)

	// An outage is waited out, and counts nothing.
	fail(fault.AsOutage(errors.New("database away")))
	deliver(t, ch, nil)
	require.Eventually(t, func() bool { return calls.Load() > 5 }, 20*time.Second, 10*time.Millisecond)
	fail(nil)
	require.Eventually(t, func() bool { return calls.Load() == 1 }, 20*time.Second, 10*time.Millisecond)
	require.NoError(t, stop())
	require.EqualValues(t, 1, calls.Load())
	for _, queue := range []string{"billing.orders", "billing.orders.retry.1s", "billing.orders.retry.2s", deadLetters} {
		require.Zero(t, depth(t, url, queue), queue)
	}
}

func TestEachTryHasItsOwnTime(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	startPublisher(t, broker.PublisherConfig{URL: url})
	var calls atomic.Int32
	second := make(chan error, 1)
	startConsumer(t, broker.ConsumerConfig{
		URL: url, HandlerLimit: 100 * time.Millisecond,
		Handlers: broker.NewHandlers(broker.On(func(ctx context.Context, _ events.OrderPlaced) error {
			if calls.Add(1) == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			second <- ctx.Err()
			return nil
		})),
	})
	deliver(t, channel(t, url), nil)
	require.NoError(t, <-second)
}

func TestConsumerStopHandlesNothingTwice(t *testing.T) {
	t.Parallel()
	for name, takes := range map[string]time.Duration{"a handler that takes a while": time.Millisecond, "a handler that does nothing": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stopUnderLoad(t, 3000, 50, takes)
		})
	}
}

// stopUnderLoad stops and starts a consumer while it has messages to handle, which take some time each.
func stopUnderLoad(t *testing.T, messages, stops int, takes time.Duration) {
	t.Helper()
	url := brokertest.VHost(t)
	startPublisher(t, broker.PublisherConfig{URL: url})
	var mu sync.Mutex
	begun, finished := map[string]int{}, 0
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(begun) }
	cfg := broker.ConsumerConfig{URL: url, Handlers: broker.NewHandlers(broker.On(func(ctx context.Context, event events.OrderPlaced) error {
		mu.Lock()
		begun[event.OrderID]++
		mu.Unlock()
		if takes > 0 {
			select {
			case <-time.After(takes):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		mu.Lock()
		finished++
		mu.Unlock()
		return nil
	}))}
	stop := startConsumer(t, cfg)
	ch := channel(t, url)
	for range messages {
		deliver(t, ch, nil)
	}
	for range stops {
		target := count() + messages/(2*stops)
		require.Eventually(t, func() bool { return count() >= min(target, messages) }, 30*time.Second, time.Millisecond)
		require.NoError(t, stop())
		require.Equal(t, count(), finished, "each handler that began has finished")
		stop = startConsumer(t, cfg)
	}
	require.Eventually(t, func() bool { return count() == messages }, time.Minute, 10*time.Millisecond)
	require.NoError(t, stop())
	for id, times := range begun {
		require.Equal(t, 1, times, id)
	}
}

func TestConsumerRefusesAQueueWithOtherArguments(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	startPublisher(t, broker.PublisherConfig{URL: url})
	_, err := channel(t, url).QueueDeclare("billing.orders", true, false, false, false, nil)
	require.NoError(t, err)
	consumer, err := broker.NewConsumer(broker.ConsumerConfig{
		URL: url, Service: "billing", Source: "orders",
		Handlers: broker.NewHandlers(broker.On(func(context.Context, events.OrderPlaced) error { return nil })),
	})
	require.NoError(t, err)
	require.ErrorContains(t, consumer.Run(context.Background()), "queue billing.orders exists with other arguments")
}
