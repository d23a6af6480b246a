package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/broker"
	"onceshop/pkg/broker/brokertest"
	"onceshop/pkg/events"
	"onceshop/pkg/outbox"
	"onceshop/pkg/postgres/postgrestest"
)

// shop is a database with an outbox and a vhost in which one queue takes all of orders' events.
type shop struct {
	db          *sqlx.DB
	databaseURL string
	amqpURL     string
	box         *outbox.Outbox
	ch          *amqp.Channel
}

const queue = "all.orders"

func newShop(t testing.TB) *shop {
	t.Helper()
	s := &shop{databaseURL: postgrestest.URL(t, outbox.Migrations()), amqpURL: brokertest.VHost(t)}
	s.db = postgrestest.Open(t, s.databaseURL)
	var err error
	s.box, err = outbox.New(s.db, "/onceshop/orders")
	require.NoError(t, err)
	conn, err := amqp.Dial(s.amqpURL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	s.ch, err = conn.Channel()
	require.NoError(t, err)
	return s
}

// declare makes the queue with extra arguments and binds all of orders' events to it. The publisher must
// have declared the exchange before.
func (s *shop) declare(t testing.TB, arguments amqp.Table) {
	t.Helper()
	all := amqp.Table{"x-queue-type": "quorum"}
	maps.Copy(all, arguments)
	_, err := s.ch.QueueDeclare(queue, true, false, false, false, all)
	require.NoError(t, err)
	require.NoError(t, s.ch.QueueBind(queue, "orders.#", "orders", false, nil))
}

// start runs a relay with its publisher until the function returned is called, or the test ends.
func (s *shop) start(t testing.TB, cfg outbox.RelayConfig) (stop func()) {
	t.Helper()
	publisher, err := broker.NewPublisher(broker.PublisherConfig{URL: s.amqpURL, Service: "orders"})
	require.NoError(t, err)
	cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	cfg.Outbox, cfg.URL, cfg.Publisher = s.box, s.databaseURL, publisher
	relay, err := outbox.NewRelay(cfg)
	require.NoError(t, err)
	publishing, endPublishing := context.WithCancel(context.Background())
	relaying, endRelaying := context.WithCancel(context.Background())
	var publishers, relays sync.WaitGroup
	publishers.Go(func() { _ = publisher.Run(publishing) })
	relays.Go(func() { _ = relay.Run(relaying) })
	stop = sync.OnceFunc(func() {
		endRelaying()
		relays.Wait()
		endPublishing()
		publishers.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// write commits messages, each with the text "<key>/<n>" as its body, in a transaction each.
func (s *shop) write(t testing.TB, key string, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		require.NoError(t, s.box.InTx(context.Background(), func(tx *sqlx.Tx) error {
			return outbox.PublishMessagesTx(context.Background(), tx, newMessage(key, n))
		}))
	}
}

func newMessage(key string, n int) *message.Message {
	msg := message.NewMessage(uuid.NewString(), fmt.Appendf(nil, "%s/%d", key, n))
	msg.Metadata.Set(events.Type, events.OrderPlacedV1)
	msg.Metadata.Set(events.Subject, key)
	return msg
}

// pending returns how many rows the outbox has.
func (s *shop) pending(t testing.TB) (rows int) {
	t.Helper()
	require.NoError(t, s.db.Get(&rows, `SELECT count(*) FROM outbox`))
	return rows
}

func (s *shop) awaitEmpty(t testing.TB) {
	t.Helper()
	require.Eventually(t, func() bool { return s.pending(t) == 0 }, 30*time.Second, 10*time.Millisecond)
}

// take empties the queue and returns the bodies in their order.
func (s *shop) take(t testing.TB) (bodies []string) {
	t.Helper()
	for {
		msg, ok, err := s.ch.Get(queue, true)
		require.NoError(t, err)
		if !ok {
			return bodies
		}
		bodies = append(bodies, string(msg.Body))
	}
}

func TestRelayPublishesWhatWasCommitted(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.start(t, outbox.RelayConfig{BatchSize: 10})
	s.awaitTopology(t)
	s.declare(t, nil)
	s.write(t, "a", 0, 50)
	broken := errors.New("changed its mind")
	require.ErrorIs(t, s.box.InTx(context.Background(), func(tx *sqlx.Tx) error {
		require.NoError(t, outbox.PublishMessagesTx(context.Background(), tx, newMessage("a", 99)))
		return broken
	}), broken)
	s.awaitEmpty(t)
	var want []string
	for n := range 50 {
		want = append(want, fmt.Sprintf("a/%d", n))
	}
	require.Equal(t, want, s.take(t))
}

// awaitTopology waits until the publisher has declared the exchange.
func (s *shop) awaitTopology(t testing.TB) {
	t.Helper()
	require.Eventually(t, func() bool {
		conn, err := amqp.Dial(s.amqpURL)
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		ch, err := conn.Channel()
		require.NoError(t, err)
		return ch.ExchangeDeclarePassive("orders", "topic", true, false, false, false, nil) == nil
	}, 20*time.Second, 50*time.Millisecond)
}

func TestRelaysStandBy(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	stopFirst := s.start(t, outbox.RelayConfig{})
	s.awaitTopology(t)
	s.declare(t, nil)
	s.start(t, outbox.RelayConfig{})
	s.write(t, "a", 0, 10)
	s.awaitEmpty(t)
	stopFirst()
	s.write(t, "a", 10, 20)
	s.awaitEmpty(t)
	require.Len(t, s.take(t), 20)
}
