package inbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/broker"
	"onceshop/pkg/events"
	"onceshop/pkg/inbox"
	"onceshop/pkg/postgres"
)

// consumerProcess consumes orders' events until SIGTERM: it adds an order's total to the account of the
// order's id, and commits nothing twice. An order of the customer "sample" waits, with its claim in hand,
// until another process waits for that claim. It prints what is committed and then acks it; with
// CONSUMER_HANGS it doesn't.
func consumerProcess() error {
	db, err := postgres.Open(postgres.Config{URL: os.Getenv("CONSUMER_DATABASE_URL"), MaxConnections: 20})
	if err != nil {
		return err
	}
	box, err := inbox.New(inbox.Config{Consumer: "test", InTx: inTx(db), Registerer: prometheus.NewRegistry()})
	if err != nil {
		return err
	}
	consumer, err := broker.NewConsumer(broker.ConsumerConfig{
		URL: os.Getenv("CONSUMER_AMQP_URL"), Service: os.Getenv("CONSUMER_SERVICE"), Source: "orders", Concurrency: 8,
		Handlers: broker.NewHandlers(broker.On(func(ctx context.Context, order events.OrderPlaced) error {
			return deposit(ctx, db, order.Order)
		})),
		Middleware: []message.HandlerMiddleware{announce, box.Middleware},
		Logger:     slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return consumer.Run(ctx)
}

func deposit(ctx context.Context, db *sqlx.DB, order events.Order) error {
	tx := inbox.Tx(ctx)
	if order.Customer == "sample" {
		if err := untilWaitedFor(ctx, db, tx); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO samples VALUES ($1)`, order.OrderID); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, `UPDATE accounts SET balance = balance + $1 WHERE id = $2`, order.Total.Amount, order.OrderID)
	return err
}

// untilWaitedFor returns when another session waits for a lock that tx holds.
func untilWaitedFor(ctx context.Context, db *sqlx.DB, tx *sqlx.Tx) error {
	var pid int
	if err := tx.GetContext(ctx, &pid, `SELECT pg_backend_pid()`); err != nil {
		return err
	}
	for waitedFor := false; !waitedFor; time.Sleep(time.Millisecond) {
		const query = `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND $1 = ANY (pg_blocking_pids(pid)))`
		if err := db.GetContext(ctx, &waitedFor, query, pid); err != nil {
			return err
		}
	}
	return nil
}

// announce stands outside of the inbox: what it has printed is committed, and not acked yet.
func announce(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		_, err := next(msg)
		if err == nil {
			fmt.Println("committed", msg.UUID)
		}
		if os.Getenv("CONSUMER_HANGS") != "" {
			select {}
		}
		return nil, err
	}
}

func TestTwoProcessesWithTwoQueuesHaveOneEffect(t *testing.T) {
	t.Parallel()
	const messages, every = 1000, 50
	b := newBank(t)
	processes := map[string]*consumer{"one.orders": b.start(t, "one"), "two.orders": b.start(t, "two")}
	published := make([]*message.Message, messages)
	for i := range published {
		customer := "ada"
		if i%every == 0 {
			customer = "sample"
		}
		published[i] = b.order(t, customer)
	}
	require.NoError(t, b.publisher.Publish("", published...))
	for queue, process := range processes {
		for range messages {
			process.line(t)
		}
		process.stop(t)
		require.Zero(t, b.ready(t, queue), "given back")
		require.Zero(t, b.ready(t, queue+".dead-letters"))
	}
	require.Zero(t, b.wrong(t))
	var samples int
	require.NoError(t, b.db.Get(&samples, `SELECT count(*) FROM samples`))
	require.Equal(t, messages/every, samples, "held while the other one waited")
}

func TestKilledAfterCommitHasOneEffect(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	process := b.start(t, "one", "CONSUMER_HANGS=yes")
	msg := b.order(t, "ada")
	require.NoError(t, b.publisher.Publish("", msg))
	require.Equal(t, "committed "+msg.UUID+"\n", process.line(t))
	require.Zero(t, b.wrong(t))
	require.NoError(t, process.Process.Kill())
	require.Error(t, process.Wait())
	eventually(t, "it is in the queue again", func() bool { return b.ready(t, "one.orders") == 1 })

	process = b.start(t, "one")
	require.Equal(t, "committed "+msg.UUID+"\n", process.line(t), "it comes again")
	process.stop(t)
	require.Zero(t, b.ready(t, "one.orders"))
	require.Zero(t, b.ready(t, "one.orders.dead-letters"))
	require.Zero(t, b.wrong(t))
}

// startConsumer runs a consumer of one.orders in this process until the test ends.
func (b *bank) startConsumer(t *testing.T) {
	t.Helper()
	box, err := inbox.New(inbox.Config{Consumer: "test", InTx: inTx(b.db)})
	require.NoError(t, err)
	consumer, err := broker.NewConsumer(broker.ConsumerConfig{
		URL: b.amqpURL, Service: "one", Source: "orders", Middleware: []message.HandlerMiddleware{box.Middleware},
		Handlers: broker.NewHandlers(broker.On(func(ctx context.Context, order events.OrderPlaced) error {
			return deposit(ctx, b.db, order.Order)
		})),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = consumer.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	eventually(t, "it consumes", func() bool { return consumer.Ready() == nil })
}

// letter waits for a dead letter, and removes it.
func (b *bank) letter(t *testing.T) (letter amqp.Delivery) {
	t.Helper()
	eventually(t, "a dead letter", func() bool {
		got, ok, err := b.ch.Get("one.orders.dead-letters", true)
		require.NoError(t, err)
		letter = got
		return ok
	})
	return letter
}

func TestConsumerSetsAsideWhatTheInboxRefuses(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	b.startConsumer(t)
	msg := b.order(t, "ada")
	require.NoError(t, b.publisher.Publish("", msg))
	eventually(t, "it is handled", func() bool { return b.wrong(t) == 0 })

	other := b.order(t, "ada")
	other.UUID = msg.UUID
	require.NoError(t, b.publisher.Publish("", other))
	letter := b.letter(t)
	require.Equal(t, msg.UUID, letter.MessageId)
	require.Equal(t, "1", letter.Headers[broker.Attempts])
	require.Contains(t, letter.Headers[broker.LastError], inbox.ErrConflict.Error())

	old := b.order(t, "ada")
	old.Metadata.Set(events.Time, time.Now().Add(-inbox.DefaultWindow).UTC().Format(time.RFC3339))
	require.NoError(t, b.publisher.Publish("", old))
	letter = b.letter(t)
	require.Equal(t, "1", letter.Headers[broker.Attempts])
	require.Contains(t, letter.Headers[broker.LastError], inbox.ErrTooOld.Error())
	require.Equal(t, 2, b.wrong(t), "neither had an effect")

	letter.Headers[events.Force] = "it was never handled"
	for range 2 {
		require.NoError(t, b.ch.Publish("one.queues", "one.orders", true, false, amqp.Publishing{
			Headers: letter.Headers, MessageId: letter.MessageId, Type: letter.Type, Timestamp: letter.Timestamp, Body: letter.Body,
		}))
	}
	eventually(t, "it is handled", func() bool { return b.wrong(t) == 1 })
	require.NoError(t, b.publisher.Publish("", b.order(t, "ada")))
	eventually(t, "so are those behind it", func() bool { return b.wrong(t) == 1 && b.ready(t, "one.orders") == 0 })
}
