// Package e2e tests whole shops of real processes while things go wrong.
package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"onceshop/cmd/shop/setup"
	"onceshop/cmd/shop/story"
	"onceshop/e2e/harness"
	"onceshop/pkg/events"
)

func TestRepeatedOrderIsChargedOnce(t *testing.T) {
	t.Parallel()
	s := harness.Started(t, harness.Stack(t), binaries)
	ch := operator(t, s)
	placed := listen(t, ch, "orders", events.OrderPlacedV1)
	require.NoError(t, s.Story(1, false).Order(s.Context()))
	s.AwaitEnd(1)
	// The very message that was handled, twenty times more.
	msg := <-placed
	for range 20 {
		publish(t, ch, "orders", amqp.Publishing{
			MessageId: msg.MessageId, Type: msg.Type, Timestamp: msg.Timestamp, CorrelationId: msg.CorrelationId,
			Headers: msg.Headers, DeliveryMode: amqp.Persistent, Body: msg.Body,
		})
	}
	s.Audit()
	require.Equal(t, 1, number(t, database(t, s, setup.Billing), `SELECT count(*) FROM payments`))
}

func TestLateVersionsDoNotOverwriteLaterOnes(t *testing.T) {
	t.Parallel()
	s := harness.Started(t, harness.Stack(t), binaries)
	view, ch := database(t, s, setup.CatalogView), operator(t, s)
	for _, version := range []int64{3, 1, 2, 3} {
		publish(t, ch, "orders", message(t, events.ProductChanged{Product: events.Product{
			SKU: "tea", Version: version, Name: fmt.Sprintf("version %d", version), Price: events.Money{Amount: 100, Currency: "EUR"},
		}}))
	}
	// A message behind them that does show.
	publish(t, ch, "orders", message(t, events.ProductChanged{Product: events.Product{SKU: "last", Version: 1, Price: events.Money{Currency: "EUR"}}}))
	s.Until("the last message is shown", func() bool {
		var n int
		return view.Get(&n, `SELECT count(*) FROM product_view WHERE sku = 'last'`) == nil && n == 1
	})
	s.Until("version 3 is shown", func() bool {
		var name string
		return view.Get(&name, `SELECT name FROM product_view WHERE sku = 'tea'`) == nil && name == "version 3"
	})
}

func TestBillingKilledTenTimes(t *testing.T) {
	t.Parallel()
	s := harness.Started(t, harness.Stack(t), binaries)
	killWhile(t, s, 400, func() string { return setup.Billing })
}

func TestAnyServiceKilledTenTimes(t *testing.T) {
	t.Parallel()
	s := harness.Started(t, harness.Stack(t), binaries)
	killWhile(t, s, 300, func() string { return setup.Services()[rand.N(len(setup.Services()))] })
}

// killWhile lets clients order while ten times a service is killed and started again.
func killWhile(t *testing.T, s *harness.Shop, orders int, pick func() string) {
	t.Helper()
	told := s.Story(orders, true)
	ordering := make(chan error, 1)
	go func() { ordering <- told.Order(s.Context()) }()
	for kill := 1; kill <= 10; kill++ {
		s.Until("orders are placed", func() bool { return told.Placed() >= kill*orders/12 })
		<-time.After(rand.N(200 * time.Millisecond)) // at a random moment
		service := pick()
		require.NoError(t, s.Kill(service))
		require.NoError(t, s.Start(service))
	}
	require.NoError(t, <-ordering)
	s.AwaitEnd(orders)
	s.Audit()
}

func TestServicesStartInAnyOrder(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Stack(t), binaries)
	told := story.New(story.Config{URL: s.URL(setup.Orders), Orders: 50, Patient: true})
	ordering := make(chan error, 1)
	go func() {
		err := told.PutUpProducts(s.Context())
		ordering <- errors.Join(err, told.Order(s.Context()))
	}()
	order := setup.Services()
	rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	// Orders goes first half of the time, so that it takes orders long before anybody can hear of them.
	t.Logf("order of start: %v", order)
	for _, service := range order {
		require.NoError(t, s.Start(service))
		<-time.After(rand.N(2 * time.Second))
	}
	require.NoError(t, <-ordering)
	s.AwaitEnd(50)
	s.Audit()
}

func TestBrokerOutOfReach(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Stack(t), binaries)
	var proxies []*harness.Proxy
	for _, service := range []string{setup.Orders, setup.Billing, setup.CatalogView} {
		url, err := s.AMQPURL(service)
		require.NoError(t, err)
		proxy, proxied := harness.NewProxy(t, url)
		s.Set(service, "AMQP_URL="+proxied)
		proxies = append(proxies, proxy)
	}
	s.StartEach()
	orderWhile(t, s, proxies, false)
}

func TestDatabaseOutOfReach(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Stack(t), binaries)
	var proxies []*harness.Proxy
	for _, service := range setup.Services() {
		url, err := s.DatabaseURL(service)
		require.NoError(t, err)
		proxy, proxied := harness.NewProxy(t, url)
		s.Set(service, "DATABASE_URL="+proxied)
		proxies = append(proxies, proxy)
	}
	s.StartEach()
	orderWhile(t, s, proxies, true)
}

// outage is how long a server is out of reach.
const outage = 10 * time.Second

// orderWhile lets clients order before, while and after a server is out of reach. Clients that are not
// patient fail at the first order that is not taken.
func orderWhile(t *testing.T, s *harness.Shop, proxies []*harness.Proxy, patient bool) {
	t.Helper()
	before := s.Story(50, patient)
	require.NoError(t, before.Order(s.Context()))
	for _, proxy := range proxies {
		proxy.Cut()
	}
	until := time.After(outage)
	during := story.New(story.Config{URL: s.URL(setup.Orders), Orders: 50, Patient: patient})
	ordering := make(chan error, 1)
	go func() { ordering <- during.Order(s.Context()) }()
	if !patient {
		require.NoError(t, <-ordering, "orders are taken all the same")
	}
	<-until
	for _, proxy := range proxies {
		proxy.Mend()
	}
	if patient {
		require.NoError(t, <-ordering)
	}
	s.AwaitEnd(100)
	s.Audit()
}

func TestServicesWaitForTheirServers(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Stack(t), binaries)
	var proxies []*harness.Proxy
	for _, service := range setup.Services() {
		for name, of := range map[string]func(string) (string, error){"DATABASE_URL": s.DatabaseURL, "AMQP_URL": s.AMQPURL} {
			url, err := of(service)
			require.NoError(t, err)
			proxy, proxied := harness.NewProxy(t, url)
			proxy.Cut()
			proxies = append(proxies, proxy)
			s.Set(service, name+"="+proxied)
		}
		require.NoError(t, s.Start(service))
	}
	for _, service := range setup.Services() {
		s.Until(service+" lives and is not ready", func() bool {
			return status(t, s.AdminURL(service)+"/healthz") == http.StatusOK &&
				status(t, s.AdminURL(service)+"/readyz") == http.StatusServiceUnavailable
		})
	}
	for _, proxy := range proxies {
		proxy.Mend()
	}
	for _, service := range setup.Services() {
		require.NoError(t, s.Await(s.Context(), service))
	}
	require.NoError(t, s.Story(10, false).Order(s.Context()))
	s.AwaitEnd(10)
	s.Audit()
}

func TestPoisonIsSetAside(t *testing.T) {
	t.Parallel()
	s := harness.Started(t, harness.Stack(t), binaries)
	ch := operator(t, s)
	publish(t, ch, "orders", amqp.Publishing{MessageId: uuid.NewString(), Type: events.OrderPlacedV1, Body: []byte("no JSON")})
	require.NoError(t, s.Story(10, false).Order(s.Context()))
	s.AwaitEnd(10)
	for _, queue := range []string{"billing.orders.dead-letters", "catalog-view.orders.dead-letters"} {
		letter, ok, err := ch.Get(queue, true)
		require.NoError(t, err)
		require.True(t, ok, queue)
		require.Contains(t, letter.Headers["shop-error"], "invalid character")
	}
	s.Audit() // with the dead letters taken, all is well
}

func TestServicesStopInOrderUnderLoad(t *testing.T) {
	t.Parallel()
	s := harness.Started(t, harness.Stack(t), binaries)
	told := s.Story(200, true)
	ordering := make(chan error, 1)
	go func() { ordering <- told.Order(s.Context()) }()
	for i, service := range setup.Services() {
		s.Until("orders are placed", func() bool { return told.Placed() >= (i+1)*30 })
		require.NoError(t, s.Stop(s.Context(), service), "it exits with 0")
		require.NoError(t, s.Start(service))
	}
	require.NoError(t, <-ordering)
	s.AwaitEnd(200)
	s.Audit()
}
