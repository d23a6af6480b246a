package catalogview

import (
	"encoding/json"
	"flag"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"onceshop/pkg/events"
	"onceshop/pkg/postgres/postgrestest"
)

// TestMain lowers the number of checks of a property, each of which takes a real database; -rapid.checks sets
// another.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "60"); err != nil {
		panic(err)
	}
	m.Run()
}

// newService returns the view on a database of its own.
func newService(t *testing.T) *Service {
	t.Helper()
	db := postgrestest.New(t, schema())
	db.SetMaxOpenConns(15) // the server's are for all tests
	return &Service{db: db, stale: prometheus.NewCounter(prometheus.CounterOpts{Name: "stale"})}
}

func productAt(version int64, removed bool) events.Product {
	return events.Product{
		SKU: "mug", Version: version, Name: "a mug", Price: events.Money{Amount: 100, Currency: "EUR"}, Stock: 10 * version, Removed: removed,
	}
}

func orderAt(version int64, status string, lines ...events.OrderLine) events.Order {
	return events.Order{
		OrderID: uuid.NewString(), Version: version, Customer: "ada", Status: status, Lines: lines, PaymentMethod: "pm_card_visa",
		Total: events.Money{Amount: 100, Currency: "EUR"}, PlacedAt: time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC),
	}
}

func line(sku string, quantity int64) events.OrderLine {
	return events.OrderLine{SKU: sku, Name: "a " + sku, Quantity: quantity, UnitPrice: events.Money{Amount: 100, Currency: "EUR"}}
}

// get asks the API, and decodes the answer into v.
func get(t *testing.T, s *Service, path string, v any) *httptest.ResponseRecorder {
	t.Helper()
	handler, err := s.handler(slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	response := httptest.NewRecorder()
	handler.ServeHTTP(response, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	require.NoError(t, json.Unmarshal(response.Body.Bytes(), v), "%s", response.Body)
	return response
}

// staleSeen returns how many events changed nothing.
func staleSeen(t *testing.T, s *Service) int {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(s.stale)
	found, err := registry.Gather()
	require.NoError(t, err)
	return int(found[0].GetMetric()[0].GetCounter().GetValue())
}
