package e2e

import (
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/cmd/shop/setup"
	"onceshop/e2e/harness"
	"onceshop/pkg/broker"
	"onceshop/pkg/events"
	"onceshop/pkg/postgres"
)

const (
	billingQueue = "billing.orders"
	billingDead  = "billing.orders.dead-letters"
)

// asService opens a service's database as the service itself, to be in its way.
func asService(t *testing.T, s *harness.Shop, service string) *sqlx.DB {
	t.Helper()
	url, err := s.DatabaseURL(service)
	require.NoError(t, err)
	db, err := postgres.Open(postgres.Config{URL: url, MaxConnections: 2, ApplicationName: "test", IdleLimit: 10 * time.Minute})
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func depth(t *testing.T, s *harness.Shop, queue string) int {
	t.Helper()
	url, err := s.AMQPURL(setup.Operator)
	require.NoError(t, err)
	depths, err := broker.Depth(url, queue)
	require.NoError(t, err)
	return depths[queue]
}

func placedBy(customer string) events.OrderPlaced {
	return events.OrderPlaced{Order: events.Order{
		OrderID: uuid.NewString(), Version: 1, Customer: customer, Status: "placed", Lines: []events.OrderLine{},
		Total: events.Money{Amount: 1999, Currency: "EUR"}, PaymentMethod: "pm_card_visa", PlacedAt: time.Now().UTC(),
	}}
}

const (
	lockAccount = `INSERT INTO accounts (customer, currency, balance) VALUES ('ada', 'EUR', 0)`
	countOwed   = `SELECT count(*) FROM accounts WHERE customer = 'ada' AND balance <> 0`
	waiting     = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%accounts%'`
	idle        = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction' AND application_name <> 'test'`
)

func number(t *testing.T, db *sqlx.DB, query string) (n int) {
	t.Helper()
	require.NoError(t, db.Get(&n, query))
	return n
}

// A peer that vanishes says nothing to either server: its sockets stay open, its transaction and the
// message that it has in hand too, until the servers lose patience.
func TestPeerThatVanishesInMidTransaction(t *testing.T) {
	t.Parallel()
	s := harness.Started(t, harness.Stack(t), binaries)
	db := asService(t, s, setup.Billing)
	lock, err := db.Beginx()
	require.NoError(t, err)
	_, err = lock.Exec(lockAccount)
	require.NoError(t, err)
	publish(t, s, "orders", message(t, placedBy("ada")))
	s.Until("billing is in mid-transaction", func() bool { return number(t, db, waiting) == 1 })
	require.NoError(t, s.Signal(setup.Billing, syscall.SIGSTOP))
	vanished := time.Now()
	require.NoError(t, lock.Rollback())
	s.Until("nobody ends its transaction", func() bool { return number(t, db, idle) == 1 })

	replica := s.Replica(binaries)
	require.NoError(t, replica.Start(setup.Billing))
	s.Until("the message is handled", func() bool { return number(t, db, countOwed) == 1 })
	require.Less(t, time.Since(vanished), time.Minute)
	require.Zero(t, depth(t, s, billingDead))
	s.Until("the order is paid", func() bool {
		return number(t, db, `SELECT count(*) FROM payments WHERE status = 'captured'`) == 1
	})
}

// The client library takes headers nested in each other for a broken connection beyond some depth, so
// whoever is handed such a message loses its connection. The broker stops that.
func TestHeadersThatBreakTheConnectionStopNobody(t *testing.T) {
	t.Parallel()
	s := harness.Started(t, harness.Stack(t), binaries)
	deep := amqp.Table{}
	for range 40 {
		deep = amqp.Table{"deeper": deep}
	}
	msg := message(t, placedBy("ada"))
	msg.Headers = amqp.Table{"deep": deep}
	publish(t, s, "orders", msg)
	url, err := s.AMQPURL(setup.Operator)
	require.NoError(t, err)
	for _, queue := range []string{billingDead, "catalog-view.orders.dead-letters"} {
		s.Until("it is in "+queue, func() bool { return depth(t, s, queue) == 1 })
		conn, err := amqp.Dial(url)
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		ch, err := conn.Channel()
		require.NoError(t, err)
		_, err = ch.QueuePurge(queue, false)
		require.NoError(t, err)
	}
	require.NoError(t, s.Story(10, false).Order(s.Context()))
	s.AwaitEnd(10)
	s.Audit()
}

func TestMessageThatFailsIsParkedAndHandledLater(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Stack(t), binaries)
	s.Set(setup.Billing, "RETRY_DELAYS=5s")
	s.StartEach()
	db := asService(t, s, setup.Billing)
	park(t, s, db, "5s")
	require.NoError(t, s.Stop(s.Context(), setup.Billing))
	require.NoError(t, s.Start(setup.Billing))
	s.Until("the message is handled", func() bool { return number(t, db, countOwed) == 1 })
	require.Zero(t, depth(t, s, billingDead))
}

// park has a message fail at billing, and then takes what makes it fail out of the way.
func park(t *testing.T, s *harness.Shop, db *sqlx.DB, delay string) {
	t.Helper()
	_, err := db.Exec(`ALTER TABLE accounts RENAME TO elsewhere`)
	require.NoError(t, err)
	publish(t, s, "orders", message(t, placedBy("ada")))
	s.Until("the message is parked", func() bool { return depth(t, s, billingQueue+".retry."+delay) == 1 })
	_, err = db.Exec(`ALTER TABLE elsewhere RENAME TO accounts`)
	require.NoError(t, err)
}
