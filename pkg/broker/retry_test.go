package broker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/broker"
	"onceshop/pkg/broker/brokertest"
	"onceshop/pkg/events"
	"onceshop/pkg/fault"
)

// on returns handlers of a placed order.
func on(handle func(ctx context.Context, event events.OrderPlaced) error) broker.Handlers {
	return broker.NewHandlers(broker.On(handle))
}

// depth returns how many messages wait in the queue.
func depth(t testing.TB, url, queue string) int {
	t.Helper()
	depths, err := broker.Depth(url, queue)
	require.NoError(t, err)
	return depths[queue]
}

func awaitDepth(t testing.TB, url, queue string, want int) {
	t.Helper()
	require.Eventually(t, func() bool { return depth(t, url, queue) == want }, 20*time.Second, 20*time.Millisecond,
		"%d messages in %s", want, queue)
}

// failing starts a publisher, and a consumer that parks a message once, for 10 ms, and whose handler ends as
// end does. It returns the broker's URL.
func failing(t testing.TB, end func() error) (url string) {
	t.Helper()
	url = brokertest.VHost(t)
	startPublisher(t, broker.PublisherConfig{URL: url})
	startConsumer(t, broker.ConsumerConfig{
		URL: url, RetryDelays: []time.Duration{10 * time.Millisecond},
		Handlers: on(func(context.Context, events.OrderPlaced) error { return end() }),
	})
	return url
}

func notToday() error { return errors.New("not today") }

func TestFailingMessagesDoNotStopTheNext(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	startPublisher(t, broker.PublisherConfig{URL: url})
	handled := make(chan string, 1)
	startConsumer(t, broker.ConsumerConfig{
		URL: url, Concurrency: 8, RetryDelays: []time.Duration{time.Minute},
		Handlers: on(func(_ context.Context, event events.OrderPlaced) error {
			if event.Customer == "fails" {
				return errors.New("not today")
			}
			handled <- event.Customer
			return nil
		}),
	})
	ch := channel(t, url)
	for range 8 {
		deliver(t, ch, func(p *amqp.Publishing) {
			p.Body = []byte(strings.Replace(string(p.Body), `"customer":"ada"`, `"customer":"fails"`, 1))
		})
	}
	deliver(t, ch, nil)
	select {
	case customer := <-handled:
		require.Equal(t, "ada", customer)
	case <-time.After(20 * time.Second):
		require.Fail(t, "the ninth message is not handled")
	}
	awaitDepth(t, url, "billing.orders.retry.1m", 8)
}

func TestParkedMessageSurvivesARestartOfItsConsumer(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	startPublisher(t, broker.PublisherConfig{URL: url})
	cfg := broker.ConsumerConfig{
		URL: url, RetryDelays: []time.Duration{4 * time.Second},
		Handlers: on(func(context.Context, events.OrderPlaced) error { return errors.New("not today") }),
	}
	stop := startConsumer(t, cfg)
	deliver(t, channel(t, url), nil)
	awaitDepth(t, url, "billing.orders.retry.4s", 1)
	require.NoError(t, stop())

	var handled atomic.Int32
	cfg.Handlers = on(func(context.Context, events.OrderPlaced) error { handled.Add(1); return nil })
	stop = startConsumer(t, cfg)
	require.Zero(t, handled.Load(), "it waits")
	require.Eventually(t, func() bool { return handled.Load() == 1 }, 20*time.Second, 10*time.Millisecond)
	require.NoError(t, stop())
	require.EqualValues(t, 1, handled.Load())
	require.Zero(t, depth(t, url, "billing.orders")+depth(t, url, "billing.orders.dead-letters"))
}

// An outage that lasts for more deliveries than the broker allows.
func TestOutageCountsNoDelivery(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	startPublisher(t, broker.PublisherConfig{URL: url})
	var calls, handled atomic.Int32
	const messages = 3
	cfg := broker.ConsumerConfig{
		URL: url, RetryDelays: []time.Duration{10 * time.Millisecond, 20 * time.Millisecond},
		Handlers: on(func(context.Context, events.OrderPlaced) error {
			if calls.Add(1) < messages*150 {
				return fault.AsOutage(errors.New("database away"))
			}
			handled.Add(1)
			return nil
		}),
	}
	cfg.KeepInHand(time.Nanosecond)
	startConsumer(t, cfg)
	ch := channel(t, url)
	for range messages {
		deliver(t, ch, nil)
	}
	require.Eventually(t, func() bool { return handled.Load() == messages }, time.Minute, 10*time.Millisecond)
	require.Zero(t, depth(t, url, "billing.orders.dead-letters"))
}

// A connection that breaks whenever the message is handled, as for a statement that crashes the server.
func TestConnectionThatBreaksOffAgainAndAgainIsTheMessagesDoing(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	startPublisher(t, broker.PublisherConfig{URL: url})
	var calls atomic.Int32
	startConsumer(t, broker.ConsumerConfig{
		URL: url, RetryDelays: []time.Duration{},
		Handlers: on(func(context.Context, events.OrderPlaced) error { calls.Add(1); return io.ErrUnexpectedEOF }),
	})
	ch := channel(t, url)
	deliver(t, ch, nil)
	require.Eventually(t, func() bool { return depth(t, url, deadLetters) == 1 }, 2*time.Minute, 100*time.Millisecond)
	require.EqualValues(t, 12, calls.Load(), "nine outages, three tries")
	require.Equal(t, "unexpected EOF", nextDeadLetter(t, ch).Headers[broker.LastError])
}

// Once a connection broke off too often, other errors still are what they are.
func TestServerThatIsAwayAfterItBrokeOffIsAnOutage(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	startPublisher(t, broker.PublisherConfig{URL: url})
	var calls atomic.Int32
	handled := make(chan struct{})
	startConsumer(t, broker.ConsumerConfig{
		URL: url, RetryDelays: []time.Duration{},
		Handlers: on(func(context.Context, events.OrderPlaced) error {
			switch n := calls.Add(1); {
			case n <= 10:
				return io.ErrUnexpectedEOF
			case n <= 14:
				return &net.OpError{Op: "dial", Err: errors.New("connection refused")}
			}
			close(handled)
			return nil
		}),
	})
	deliver(t, channel(t, url), nil)
	select {
	case <-handled:
	case <-time.After(2 * time.Minute):
		require.Fail(t, "not handled")
	}
	require.Zero(t, depth(t, url, deadLetters))
}

// The retry queue takes nothing, so the message is not to be acked.
func TestMessageIsNotAckedBeforeItIsParked(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	startPublisher(t, broker.PublisherConfig{URL: url})
	registry := prometheus.NewRegistry()
	cfg := broker.ConsumerConfig{
		URL: url, RetryDelays: []time.Duration{time.Minute}, Metrics: broker.NewMetrics(registry),
		Handlers: on(func(context.Context, events.OrderPlaced) error { return errors.New("not today") }),
	}
	stop := startConsumer(t, cfg)
	ch := channel(t, url)
	require.NoError(t, ch.QueueUnbind("billing.orders.retry.1m", "billing.orders.retry.1m", "billing.queues", nil))
	deliver(t, ch, nil)
	require.Eventually(t, func() bool { return metric(t, registry, "consumer_failures_total") == 3 }, 20*time.Second, time.Millisecond)
	require.NoError(t, stop())
	awaitDepth(t, url, "billing.orders", 1)
	require.Zero(t, depth(t, url, "billing.orders.retry.1m")+metric(t, registry, "consumer_set_aside_total"))

	cfg.Metrics = nil
	startConsumer(t, cfg) // which binds it
	awaitDepth(t, url, "billing.orders.retry.1m", 1)
}

func TestMessageThatFailsAtTheStopIsGivenBack(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	startPublisher(t, broker.PublisherConfig{URL: url})
	begun := make(chan struct{})
	stop := startConsumer(t, broker.ConsumerConfig{
		URL: url, RetryDelays: []time.Duration{time.Minute},
		Handlers: on(func(ctx context.Context, _ events.OrderPlaced) error {
			close(begun)
			<-broker.Stopping(ctx)
			return fault.AsPermanent(errors.New("for want of time"))
		}),
	})
	deliver(t, channel(t, url), nil)
	<-begun
	require.NoError(t, stop())
	awaitDepth(t, url, "billing.orders", 1)
	require.Zero(t, depth(t, url, deadLetters)+depth(t, url, "billing.orders.retry.1m"))
}

// Headers that a frame holds, and not as the text that they become.
func TestManyHeadersDoNotHideHowOftenAMessageFailed(t *testing.T) {
	t.Parallel()
	ch := channel(t, failing(t, func() error { return errors.New(strings.Repeat("not today ", 100)) }))
	deliver(t, ch, func(p *amqp.Publishing) {
		p.Headers = amqp.Table{}
		for n := range 8000 { // the client library reads 8,192
			p.Headers[fmt.Sprintf("%09d", n)] = nil
		}
	})
	letter := nextDeadLetter(t, ch)
	require.Equal(t, "2", letter.Headers[broker.Attempts])
	require.Contains(t, letter.Headers[broker.LastError], "not today")
	require.Equal(t, "billing.orders", letter.Headers[broker.OriginQueue])
	require.Greater(t, len(letter.Headers), 5000, "what fits is kept")
}

func TestTypeThatNobodyHandlesEndsInTheDeadLetters(t *testing.T) {
	t.Parallel()
	ch := channel(t, failing(t, notToday))
	deliver(t, ch, func(p *amqp.Publishing) { p.Type = "orders.something_else.v1" })
	letter := nextDeadLetter(t, ch)
	require.Equal(t, `"orders.something_else.v1": no handler for this type`, letter.Headers[broker.LastError])
	require.Equal(t, "2", letter.Headers[broker.Attempts])
}

func TestPanicIsAFailureLikeOthers(t *testing.T) {
	t.Parallel()
	ch := channel(t, failing(t, func() error { panic("no idea") }))
	deliver(t, ch, nil)
	letter := nextDeadLetter(t, ch)
	require.Contains(t, letter.Headers[broker.LastError], "the handler panicked: no idea")
	require.Contains(t, letter.Headers[broker.LastError], "retry_test.go", "it says where")
	require.Equal(t, "2", letter.Headers[broker.Attempts])
}

// Anybody may have sent the message.
func TestAttemptsThatNobodyCountedAreNone(t *testing.T) {
	t.Parallel()
	ch := channel(t, failing(t, notToday))
	for _, attempts := range []any{"-7", "9223372036854775807", int64(-1), amqp.Table{}, "many"} {
		deliver(t, ch, func(p *amqp.Publishing) { p.Headers = amqp.Table{broker.Attempts: attempts} })
		require.Equal(t, "2", nextDeadLetter(t, ch).Headers[broker.Attempts])
	}
}
