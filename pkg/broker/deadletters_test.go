package broker_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/broker"
	"onceshop/pkg/broker/brokertest"
	"onceshop/pkg/events"
	"onceshop/pkg/fault"
	"onceshop/pkg/inbox"
	"onceshop/pkg/postgres"
	"onceshop/pkg/postgres/postgrestest"
)

const deadLetters = "billing.orders.dead-letters"

// metric returns the sum of a counter, a gauge, or a histogram's count, over all labels whose values are
// among those given, or over all.
func metric(t testing.TB, registry *prometheus.Registry, name string, values ...string) int {
	t.Helper()
	sum := 0.0
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			found := len(values) == 0
			for _, label := range m.GetLabel() {
				for _, value := range values {
					found = found || label.GetValue() == value
				}
			}
			if found {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return int(sum)
}

func open(t *testing.T, url, queue string) *broker.Letters {
	t.Helper()
	letters, err := broker.OpenLetters(url, queue)
	require.NoError(t, err)
	return letters
}

func next(t *testing.T, letters *broker.Letters) *broker.Letter {
	t.Helper()
	letter, err := letters.Next()
	require.NoError(t, err)
	require.NotNil(t, letter)
	return letter
}

// redriveAll redrives what is in the consumer's dead letters and returns how many that are.
func redriveAll(t *testing.T, url string) (n int) {
	t.Helper()
	letters := open(t, url, deadLetters)
	for {
		letter, err := letters.Next()
		require.NoError(t, err)
		if letter == nil {
			require.NoError(t, letters.Close())
			return n
		}
		require.NoError(t, letters.Redrive(context.Background(), letter, ""))
		n++
	}
}

func TestReadingLettersLeavesThem(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	startPublisher(t, broker.PublisherConfig{URL: url})
	registry := prometheus.NewRegistry()
	startConsumer(t, broker.ConsumerConfig{
		URL: url, Metrics: broker.NewMetrics(registry), RetryDelays: []time.Duration{10 * time.Millisecond},
		Handlers: on(func(context.Context, events.OrderPlaced) error { return errors.New("not today") }),
	})
	occurred := time.Now().UTC().Truncate(time.Second)
	for range 3 {
		deliver(t, channel(t, url), func(p *amqp.Publishing) { p.Timestamp = occurred })
	}
	awaitDepth(t, url, deadLetters, 3)
	for range 2 {
		letters := open(t, url, "billing.orders")
		for range 3 {
			letter := next(t, letters)
			require.Equal(t, []any{deadLetters, events.OrderPlacedV1, occurred, 2, "not today"},
				[]any{letter.Queue, letter.Type, letter.Occurred, letter.Attempts, letter.Reason})
			first, err := time.Parse(time.RFC3339, letter.FirstFailure)
			require.NoError(t, err)
			last, err := time.Parse(time.RFC3339, letter.LastFailure)
			require.NoError(t, err)
			require.Less(t, first, last)
			require.Equal(t, []any{"billing.orders", "billing"}, []any{letter.Headers[broker.OriginQueue], letter.Headers[broker.HandledBy]})
		}
		letter, err := letters.Next()
		require.NoError(t, err)
		require.Nil(t, letter)
		require.NoError(t, letters.Close())
		awaitDepth(t, url, deadLetters, 3)
	}
	require.Eventually(t, func() bool { return metric(t, registry, "consumer_dead_letters") == 3 }, 20*time.Second, 20*time.Millisecond)
	require.Equal(t, 3, metric(t, registry, "consumer_set_aside_total", deadLetters))
	require.Equal(t, 3, metric(t, registry, "consumer_set_aside_total", "billing.orders.retry.10ms"))
	require.Equal(t, 18, metric(t, registry, "consumer_failures_total", "transient"))
}

func TestRedriveHandlesOnceHoweverOftenItIsDone(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	startPublisher(t, broker.PublisherConfig{URL: url})
	db := postgrestest.New(t, inbox.Migrations())
	_, err := db.Exec(`CREATE TABLE counter AS SELECT 0 AS n`)
	require.NoError(t, err)
	registry := prometheus.NewRegistry()
	box, err := inbox.New(inbox.Config{
		Consumer: "billing.orders", Registerer: registry,
		InTx: func(ctx context.Context, fn func(*sqlx.Tx) error) error { return postgres.InTx(ctx, db, fn) },
	})
	require.NoError(t, err)
	var fixed atomic.Bool
	startConsumer(t, broker.ConsumerConfig{
		URL: url, Middleware: []message.HandlerMiddleware{box.Middleware},
		Handlers: on(func(ctx context.Context, _ events.OrderPlaced) error {
			if _, err := inbox.Tx(ctx).ExecContext(ctx, `UPDATE counter SET n = n + 1`); err != nil || fixed.Load() {
				return err
			}
			return fault.AsPermanent(errors.New("a bug"))
		}),
	})
	deliver(t, channel(t, url), func(p *amqp.Publishing) { p.Timestamp = time.Now() })
	awaitDepth(t, url, deadLetters, 1)
	results := func(result string) func() bool {
		return func() bool { return metric(t, registry, "inbox_messages_total", result) == 1 }
	}

	fixed.Store(true)
	letters := open(t, url, deadLetters)
	letters.KillAfterConfirm()
	require.Error(t, letters.Redrive(context.Background(), next(t, letters), ""))
	require.Eventually(t, results("handled"), 20*time.Second, 10*time.Millisecond)
	awaitDepth(t, url, deadLetters, 1) // the original is still there

	require.Equal(t, 1, redriveAll(t, url))
	require.Eventually(t, results("duplicate"), 20*time.Second, 10*time.Millisecond)
	require.Zero(t, redriveAll(t, url))
	var n int
	require.NoError(t, db.Get(&n, `SELECT n FROM counter`))
	require.Equal(t, 1, n)
	require.True(t, results("handled")())
}

func TestRedriveBeginsTheScheduleAnew(t *testing.T) {
	t.Parallel()
	url := failing(t, notToday)
	deliver(t, channel(t, url), func(p *amqp.Publishing) { p.Headers = amqp.Table{"mine": int32(7)} })
	awaitDepth(t, url, deadLetters, 1)
	letters := open(t, url, deadLetters)
	require.NoError(t, letters.Redrive(context.Background(), next(t, letters), "I looked"))
	awaitDepth(t, url, deadLetters, 1)
	letter, err := letters.Next()
	require.NoError(t, err)
	require.Nil(t, letter, "it fails again, and is not met again")
	require.NoError(t, letters.Close())
	awaitDepth(t, url, deadLetters, 1)
	again := nextDeadLetter(t, channel(t, url)).Headers
	require.Equal(t, []any{"2", "7", "I looked"}, []any{again[broker.Attempts], again["mine"], again[events.Force]})
}

func TestRedriveThatIsNotTakenLeavesTheLetter(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	startPublisher(t, broker.PublisherConfig{URL: url})
	stop := startConsumer(t, broker.ConsumerConfig{
		URL: url, Handlers: on(func(context.Context, events.OrderPlaced) error { return fault.AsPermanent(errors.New("a bug")) }),
	})
	ch := channel(t, url)
	deliver(t, ch, nil)
	awaitDepth(t, url, deadLetters, 1)
	require.NoError(t, stop())
	_, err := ch.QueueDelete("billing.orders", false, false, false)
	require.NoError(t, err)
	letters := open(t, url, deadLetters)
	require.ErrorIs(t, letters.Redrive(context.Background(), next(t, letters), ""), broker.ErrReturned)
	require.NoError(t, letters.Close())
	awaitDepth(t, url, deadLetters, 1)

	letters = open(t, url, deadLetters)
	require.NoError(t, letters.Drop(next(t, letters)))
	require.NoError(t, letters.Close())
	awaitDepth(t, url, deadLetters, 0)
	_, err = broker.OpenLetters(url, "nobody.orders")
	require.ErrorIs(t, err, broker.ErrNoQueue)
}

func TestUnroutedEventsAreReplayed(t *testing.T) {
	t.Parallel()
	url := brokertest.VHost(t)
	publisher := startPublisher(t, broker.PublisherConfig{URL: url})
	msg := newMessage(events.OrderPlacedV1)
	msg.Payload = []byte(`{"order_id":"1","version":1,"customer":"ada","status":"placed","lines":[],"total":{"amount":1,"currency":"EUR"},"payment_method":"","placed_at":"2026-01-02T03:04:05Z"}`)
	require.NoError(t, publisher.Publish("", msg))
	handled := make(chan string, 1)
	startConsumer(t, broker.ConsumerConfig{
		URL: url, Handlers: on(func(_ context.Context, event events.OrderPlaced) error { handled <- event.OrderID; return nil }),
	})
	letters := open(t, url, "orders.unrouted")
	letter := next(t, letters)
	require.Equal(t, "no queue was bound", letter.Reason)
	require.NoError(t, letters.Redrive(context.Background(), letter, ""))
	require.NoError(t, letters.Close())
	require.Equal(t, "1", <-handled)
	awaitDepth(t, url, "orders.unrouted", 0)
}

func TestLetterIsTooOldOnceAnInboxMayHaveForgottenIt(t *testing.T) {
	t.Parallel()
	ago := func(d time.Duration) *broker.Letter { return &broker.Letter{Occurred: time.Now().Add(-d)} }
	require.NoError(t, ago(59*time.Minute).TooOld(time.Hour))
	require.ErrorIs(t, ago(61*time.Minute).TooOld(time.Hour), broker.ErrTooOld)
	require.ErrorContains(t, ago(61*time.Minute).TooOld(time.Hour), "it occurred 1h1m0s ago")
	require.ErrorContains(t, (&broker.Letter{}).TooOld(time.Hour), "does not say when")
}
