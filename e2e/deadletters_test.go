package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/cmd/shop/setup"
	"onceshop/e2e/harness"
	"onceshop/pkg/events"
)

const (
	billingQueue = "billing.orders"
	billingDead  = "billing.orders.dead-letters"
)

func placedBy(customer string) events.OrderPlaced {
	return events.OrderPlaced{Order: events.Order{
		OrderID: uuid.NewString(), Version: 1, Customer: customer, Status: "placed", Lines: []events.OrderLine{},
		Total: events.Money{Amount: 1999, Currency: "EUR"}, PaymentMethod: "pm_card_visa", PlacedAt: time.Now().UTC(),
	}}
}

const (
	lockAccount = `INSERT INTO accounts (customer, currency, balance) VALUES ('ada', 'EUR', 0)`
	owed        = `SELECT coalesce(sum(balance), 0) FROM accounts WHERE customer = 'ada'`
	paid        = `SELECT count(*) FROM payments WHERE status = 'captured'`
	waiting     = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%accounts%'`
	idle        = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction' AND application_name <> 'test'`
)

// A peer that vanishes says nothing to either server: its sockets stay open, its transaction and the
// message that it has in hand too, until the servers lose patience. When it comes back it has missed it all.
func TestPeerThatVanishesInMidTransaction(t *testing.T) {
	t.Parallel()
	t.Run("its network is gone", func(t *testing.T) {
		t.Parallel()
		s := harness.New(t, harness.Stack(t), binaries)
		var proxies []*harness.Proxy
		for name, of := range map[string]func(string) (string, error){"DATABASE_URL": s.DatabaseURL, "AMQP_URL": s.AMQPURL} {
			url, err := of(setup.Billing)
			require.NoError(t, err)
			proxy, proxied := harness.NewProxy(t, url)
			s.Set(setup.Billing, name+"="+proxied)
			proxies = append(proxies, proxy)
		}
		s.StartEach()
		vanishes(t, s, func() {
			for _, proxy := range proxies {
				proxy.Silence()
			}
		}, func() {
			for _, proxy := range proxies {
				proxy.Unsilence()
			}
		})
	})
	t.Run("it stands still", func(t *testing.T) {
		t.Parallel()
		s := harness.Started(t, harness.Stack(t), binaries)
		vanishes(t, s,
			func() { require.NoError(t, s.Signal(setup.Billing, syscall.SIGSTOP)) },
			func() { require.NoError(t, s.Signal(setup.Billing, syscall.SIGCONT)) })
	})
}

// vanishes lets billing vanish in mid-transaction, and come back once a replica has done its work.
func vanishes(t *testing.T, s *harness.Shop, vanish, comeBack func()) {
	t.Helper()
	db := database(t, s, setup.Billing)
	lock, err := db.Beginx()
	require.NoError(t, err)
	_, err = lock.Exec(lockAccount)
	require.NoError(t, err)
	publish(t, operator(t, s), "orders", message(t, placedBy("ada")))
	s.Until("billing is in mid-transaction", func() bool { return number(t, db, waiting) == 1 })
	vanish()
	vanished := time.Now()
	require.NoError(t, lock.Rollback())
	s.Until("nobody ends its transaction", func() bool { return number(t, db, idle) == 1 })

	replica := s.Replica(binaries)
	require.NoError(t, replica.Start(setup.Billing))
	s.Until("the order is paid", func() bool { return number(t, db, paid) == 1 })
	require.Less(t, time.Since(vanished), time.Minute)
	comeBack()
	require.NoError(t, s.Await(s.Context(), setup.Billing))
	for _, billing := range []interface {
		Stop(context.Context, string) error
	}{s, replica} {
		require.NoError(t, billing.Stop(s.Context(), setup.Billing), "it finishes what it has in hand")
	}
	require.Zero(t, number(t, db, owed), "what was owed once was paid once")
	require.Zero(t, depth(t, s, billingQueue))
	require.Zero(t, depth(t, s, billingDead))
}

// The client library takes headers that are nested too deep, or too many, for a broken connection, so whoever
// is handed such a message loses its connection. The broker stops that.
func TestHeadersThatBreakTheConnectionStopNobody(t *testing.T) {
	t.Parallel()
	s := harness.Started(t, harness.Stack(t), binaries)
	deep := amqp.Table{}
	for range 40 {
		deep = amqp.Table{"deeper": deep}
	}
	many := amqp.Table{}
	for n := range 8193 {
		many[fmt.Sprint(n)] = nil
	}
	ch := operator(t, s)
	for _, headers := range []amqp.Table{{"deep": deep}, many} {
		msg := message(t, placedBy("ada"))
		msg.Headers = headers
		publish(t, ch, "orders", msg)
	}
	for _, queue := range []string{billingDead, "catalog-view.orders.dead-letters"} {
		s.Until("both are in "+queue, func() bool { return depth(t, s, queue) == 2 })
		_, err := ch.QueuePurge(queue, false)
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
	db := database(t, s, setup.Billing)
	fails(t, db)
	publish(t, operator(t, s), "orders", message(t, placedBy("ada")))
	s.Until("the message is parked", func() bool { return depth(t, s, billingQueue+".retry.5s") == 1 })
	works(t, db)
	require.NoError(t, s.Stop(s.Context(), setup.Billing))
	require.NoError(t, s.Start(setup.Billing))
	s.Until("the order is paid", func() bool { return number(t, db, paid) == 1 })
	require.Zero(t, number(t, db, owed), "what was owed once was paid once")
	require.Zero(t, depth(t, s, billingDead))
}

// fails has billing's handlers fail until works is called.
func fails(t *testing.T, db *sqlx.DB) {
	t.Helper()
	_, err := db.Exec(`ALTER TABLE accounts RENAME TO elsewhere`)
	require.NoError(t, err)
}

func works(t *testing.T, db *sqlx.DB) {
	t.Helper()
	_, err := db.Exec(`ALTER TABLE elsewhere RENAME TO accounts`)
	require.NoError(t, err)
}

// The tool is killed when its copy of a dead letter was handled and the confirm has not come yet: copy and
// original are both there.
func TestRedriveThatIsKilledHasOneEffect(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Stack(t), binaries)
	s.Set(setup.Billing, "RETRY_DELAYS=100ms")
	s.StartEach()
	db := database(t, s, setup.Billing)
	fails(t, db)
	require.NoError(t, s.Story(1, false).Order(s.Context()))
	s.Until("it is a dead letter", func() bool { return depth(t, s, billingDead) == 1 })
	works(t, db)

	proxy, proxied := harness.NewProxy(t, s.Stack.AMQPURL)
	proxy.Slow(time.Second)
	redrive := []string{"dead-letters", "redrive", "--queue", billingQueue}
	killed := command(s, redrive...)
	killed.Env = append(killed.Env, "STACK_DATABASE_URL="+s.Stack.DatabaseURL, "STACK_AMQP_API="+s.Stack.AMQPAPI, "STACK_AMQP_URL="+proxied)
	require.NoError(t, killed.Start())
	s.Until("the letter is on its way", func() bool { return depth(t, s, billingDead) == 0 })
	proxy.Slow(time.Minute) // the letter arrives, and no confirm
	s.Until("the copy is handled", func() bool { return number(t, db, `SELECT count(*) FROM inbox`) == 1 })
	require.NoError(t, killed.Process.Kill())
	require.Error(t, killed.Wait())
	s.Until("the original is back", func() bool { return depth(t, s, billingDead) == 1 })

	for _, letters := range []int{1, 0} {
		out, complaints, err := tool(s, redrive...)
		require.NoError(t, err, complaints)
		require.Equal(t, letters, strings.Count(out, "redriven: "+billingDead))
	}
	s.Until("it is turned away", func() bool {
		return strings.Contains(metrics(t, s, setup.Billing), `inbox_messages_total{consumer="billing.orders",result="duplicate"} 1`)
	})
	s.AwaitEnd(1)
	s.Audit()
}

// Billing's database is away for many times as long as a message that fails would be tried.
func TestLongOutageMakesNoDeadLetters(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Stack(t), binaries)
	url, err := s.DatabaseURL(setup.Billing)
	require.NoError(t, err)
	proxy, proxied := harness.NewProxy(t, url)
	s.Set(setup.Billing, "DATABASE_URL="+proxied, "RETRY_DELAYS=100ms,200ms")
	s.StartEach()
	const orders = 100
	told := s.Story(orders, false)
	ordering := make(chan error, 1)
	go func() { ordering <- told.Order(s.Context()) }()
	s.Until("orders are placed", func() bool { return told.Placed() >= orders/4 })
	proxy.Cut()
	require.NoError(t, <-ordering)
	setAside := []string{billingDead, billingQueue + ".retry.100ms", billingQueue + ".retry.200ms"}
	require.Never(t, func() bool {
		return slices.ContainsFunc(setAside, func(queue string) bool { return depth(t, s, queue) != 0 })
	}, 20*time.Second, 200*time.Millisecond, "messages were set aside")
	proxy.Mend()
	s.AwaitEnd(orders)
	s.Audit()
}
