package orders

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/events"
	"onceshop/pkg/outbox"
	"onceshop/pkg/postgres"
	"onceshop/pkg/postgres/postgrestest"
)

const visa = "pm_card_visa"

func euros(amount int64) events.Money { return events.Money{Amount: amount, Currency: "EUR"} }

// newService returns the service on a database of its own.
func newService(t *testing.T) *Service {
	t.Helper()
	return serviceAt(t, postgrestest.URL(t))
}

// serviceAt returns the service on the database at url.
func serviceAt(t *testing.T, url string) *Service {
	t.Helper()
	db := postgrestest.Open(t, url)
	require.NoError(t, postgres.Migrate(t.Context(), db, outbox.Migrations(), schema()))
	db.SetMaxOpenConns(20) // the server's are for all tests
	box, err := outbox.New(db, "/onceshop/orders")
	require.NoError(t, err)
	return &Service{db: db, box: box, logger: slog.New(slog.DiscardHandler)}
}

func newHandler(t *testing.T, s *Service) http.Handler {
	t.Helper()
	handler, err := s.handler(s.logger)
	require.NoError(t, err)
	return handler
}

// stocked creates products at one euro with that much in stock.
func stocked(t *testing.T, s *Service, stock int64, skus ...string) {
	t.Helper()
	for _, sku := range skus {
		_, err := s.CreateProduct(t.Context(), sku, "a "+sku, euros(100), stock)
		require.NoError(t, err)
	}
}

// place places an order for one of each product and returns its id.
func place(t *testing.T, s *Service, skus ...string) string {
	t.Helper()
	lines := make([]Line, len(skus))
	for i, sku := range skus {
		lines[i] = Line{SKU: sku, Quantity: 1}
	}
	placed, err := s.PlaceOrder(t.Context(), "ada", visa, lines)
	require.NoError(t, err)
	return placed.id
}

// stored returns the order as the database has it.
func stored(t *testing.T, s *Service, id string) *Order {
	t.Helper()
	found, err := oneOrder(t.Context(), s.db, readOrder, id)
	require.NoError(t, err)
	return found
}

func stock(t *testing.T, s *Service, sku string) (n int64) {
	t.Helper()
	require.NoError(t, s.db.GetContext(t.Context(), &n, `SELECT stock FROM products WHERE sku = $1`, sku))
	return n
}

func paymentOf(orderID string, version int64) events.Payment {
	return events.Payment{PaymentID: uuid.NewString(), OrderID: orderID, Version: version, Customer: "ada", Amount: euros(100)}
}

// names returns the names of the events written about the aggregate, in their order.
func names(t *testing.T, s *Service, id string) []string {
	t.Helper()
	topics := []string{}
	require.NoError(t, s.db.SelectContext(t.Context(), &topics, `SELECT topic FROM outbox WHERE key = $1 ORDER BY id`, id))
	return topics
}

const unbalanced = `
SELECT sku FROM products p
WHERE stock + (SELECT coalesce(sum(l.quantity), 0) FROM order_lines l JOIN orders o ON o.id = l.order_id
               WHERE l.sku = p.sku AND o.status IN ('placed', 'confirmed')) <> received`

const latest = `SELECT sku AS id, version FROM products UNION ALL SELECT id::text, version FROM orders`

// audit requires that each product's stock and what orders hold of it are all that it ever received, and
// that each aggregate's events have its versions from 1 to the last, in the order of the outbox.
func audit(t *testing.T, s *Service) {
	t.Helper()
	var wrong []string
	require.NoError(t, s.db.SelectContext(t.Context(), &wrong, unbalanced))
	require.Empty(t, wrong, "stock and held are not what was received")

	var aggregates []struct {
		ID      string
		Version int64
	}
	require.NoError(t, s.db.SelectContext(t.Context(), &aggregates, latest))
	for _, aggregate := range aggregates {
		var bodies [][]byte
		require.NoError(t, s.db.SelectContext(t.Context(), &bodies,
			`SELECT payload FROM outbox WHERE key = $1 ORDER BY id`, aggregate.ID))
		for i, body := range bodies {
			var state struct{ Version int64 }
			require.NoError(t, json.Unmarshal(body, &state))
			require.EqualValues(t, i+1, state.Version, "event %d of %s", i+1, aggregate.ID)
		}
		require.EqualValues(t, len(bodies), aggregate.Version, "events of %s", aggregate.ID)
	}
}
