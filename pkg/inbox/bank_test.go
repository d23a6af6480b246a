package inbox_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"sync"
	"syscall"
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
	"onceshop/pkg/inbox"
	"onceshop/pkg/outbox"
	"onceshop/pkg/postgres/postgrestest"
)

// bank is a database with accounts, a virtual host, and a publisher of orders' events.
type bank struct {
	databaseURL, amqpURL string
	db                   *sqlx.DB
	publisher            *broker.Publisher
	ch                   *amqp.Channel
}

func newBank(t testing.TB) *bank {
	t.Helper()
	b := &bank{databaseURL: postgrestest.URL(t, inbox.Migrations()), amqpURL: brokertest.VHost(t)}
	b.db = postgrestest.Open(t, b.databaseURL)
	_, err := b.db.Exec(`CREATE TABLE accounts (id text PRIMARY KEY, balance int NOT NULL DEFAULT 0); CREATE TABLE samples (id text)`)
	require.NoError(t, err)
	b.publisher, err = broker.NewPublisher(broker.PublisherConfig{URL: b.amqpURL, Service: "orders"})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = b.publisher.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	require.NoError(t, b.publisher.Await(ctx))
	conn, err := amqp.Dial(b.amqpURL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	b.ch, err = conn.Channel()
	require.NoError(t, err)
	return b
}

// order returns a message of an order over 1 for an account of its own, which is made.
func (b *bank) order(t testing.TB, customer string) *message.Message {
	t.Helper()
	order := orderOf(customer)
	_, err := b.db.Exec(`INSERT INTO accounts VALUES ($1)`, order.OrderID)
	require.NoError(t, err)
	return messageOf(t, order)
}

func orderOf(customer string) events.Order {
	return events.Order{
		OrderID: uuid.NewString(), Version: 1, Customer: customer, Status: "placed", Lines: []events.OrderLine{},
		Total: events.Money{Amount: 1, Currency: "EUR"}, PlacedAt: time.Now().UTC(), PaymentMethod: "any",
	}
}

func messageOf(t testing.TB, order events.Order) *message.Message {
	t.Helper()
	msg, err := outbox.NewMessage(context.Background(), "/onceshop/orders", events.OrderPlaced{Order: order})
	require.NoError(t, err)
	return msg
}

// wrong returns how many accounts have not had exactly one effect.
func (b *bank) wrong(t testing.TB) (n int) {
	t.Helper()
	require.NoError(t, b.db.Get(&n, `SELECT count(*) FROM accounts WHERE balance <> 1`))
	return n
}

// ready returns how many messages wait in the service's queue.
func (b *bank) ready(t testing.TB, queue string) int {
	t.Helper()
	state, err := b.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(t, err)
	return state.Messages
}

// consumer is a consumerProcess.
type consumer struct {
	*exec.Cmd
	stdout *bufio.Reader
}

// start starts a process that consumes the queue <service>.orders, and waits until the queue is bound.
func (b *bank) start(t testing.TB, service string, settings ...string) *consumer {
	t.Helper()
	c := &consumer{Cmd: exec.Command(os.Args[0])}
	c.Env = append(os.Environ(), append(settings, "CONSUMER_SERVICE="+service, "CONSUMER_DATABASE_URL="+b.databaseURL, "CONSUMER_AMQP_URL="+b.amqpURL)...)
	c.Stderr = t.Output()
	stdout, err := c.StdoutPipe()
	require.NoError(t, err)
	c.stdout = bufio.NewReader(stdout)
	require.NoError(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	eventually(t, "the queue is bound", func() bool {
		conn, err := amqp.Dial(b.amqpURL)
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		ch, err := conn.Channel()
		require.NoError(t, err)
		return ch.ExchangeDeclarePassive(service+".orders.bound", "fanout", true, false, false, false, nil) == nil
	})
	return c
}

// line returns the next line that the process prints.
func (c *consumer) line(t testing.TB) string {
	t.Helper()
	hurry := time.AfterFunc(patience, func() { _ = c.Process.Kill() })
	text, err := c.stdout.ReadString('\n')
	require.True(t, hurry.Stop(), "nothing is printed")
	require.NoError(t, err)
	return text
}

// stop lets the process ack what it handles, and waits for its end.
func (c *consumer) stop(t testing.TB) {
	t.Helper()
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	require.NoError(t, c.Wait())
}
