package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"onceshop/cmd/shop/setup"
	"onceshop/e2e/harness"
	"onceshop/pkg/events"
	"onceshop/pkg/postgres"
)

type heldKey struct {
	Service   string  `json:"service"`
	Key       string  `json:"key"`
	Topic     string  `json:"topic"`
	MessageID string  `json:"message_id"`
	NextTry   *string `json:"next_try"`
	Waiting   int     `json:"waiting"`
}

func listHeld(t *testing.T, s *harness.Shop) (held []heldKey) {
	t.Helper()
	out, complaints, err := tool(s, "outbox", "list", "--json")
	require.NoError(t, err, complaints)
	require.NoError(t, json.Unmarshal([]byte(out), &held))
	return held
}

// The events of changed products find no queue and no alternate exchange. Their keys are held until the
// last try, and then until an operator redrives or drops them.
func TestOperatorReleasesHeldKeys(t *testing.T) {
	t.Parallel()
	s := harness.Started(t, harness.Stack(t), binaries)
	out, _, err := tool(s, "outbox", "list")
	require.NoError(t, err)
	require.Equal(t, "No key is held: the broker takes every message.\n", out)

	ch := operator(t, s)
	s.Until("the publisher has declared what is taken away now", func() bool {
		log, err := os.ReadFile(s.Log(setup.Orders))
		require.NoError(t, err)
		return strings.Count(string(log), `"publisher":"orders"`) == 2 // the relay's and the consumer's
	})
	require.NoError(t, ch.ExchangeDelete("orders.unrouted", false, false))
	require.NoError(t, ch.QueueUnbind("catalog-view.orders", events.ProductChangedV1, "orders", nil))
	s.Story(1, false)
	orders := database(t, s, setup.Orders)
	s.Until("the last try is over", func() bool {
		_, err := orders.Exec(`UPDATE outbox_held SET attempts = 9, next_try = now() WHERE next_try IS NOT NULL`)
		require.NoError(t, err)
		var n int
		require.NoError(t, orders.Get(&n, `SELECT count(*) FROM outbox_held WHERE next_try IS NULL`))
		return n == 5
	})
	held := listHeld(t, s)
	require.Len(t, held, 5)
	for _, h := range held {
		require.Equal(t, heldKey{"orders", h.Key, events.ProductChangedV1, h.MessageID, nil, 1}, h)
	}
	s.Until("the metrics say so", func() bool {
		text := metrics(t, s, setup.Orders)
		return strings.Contains(text, "\noutbox_held_keys 5\n") && strings.Contains(text, "\noutbox_pending 5\n")
	})
	out, _, err = tool(s, "outbox", "list")
	require.NoError(t, err)
	require.Contains(t, out, "no queue takes it")
	require.Contains(t, out, "next: none")

	require.NoError(t, ch.QueueBind("catalog-view.orders", events.ProductChangedV1, "orders", false, nil))
	dropped, complaints, err := tool(s, "outbox", "drop", held[0].Key)
	require.NoError(t, err, complaints)
	var kept heldKey
	require.NoError(t, json.Unmarshal([]byte(dropped), &kept))
	require.Equal(t, held[0].MessageID, kept.MessageID)
	for _, h := range held[1:] {
		_, complaints, err = tool(s, "outbox", "redrive", h.Key)
		require.NoError(t, err, complaints)
	}
	view := database(t, s, setup.CatalogView)
	s.Until("what was redriven is shown", func() bool {
		var shown []string
		require.NoError(t, view.Select(&shown, `SELECT sku FROM product_view`))
		require.NotContains(t, shown, held[0].Key)
		return len(shown) == 4
	})
	s.Until("nothing is held", func() bool { return len(listHeld(t, s)) == 0 })

	for _, verb := range []string{"redrive", "drop"} {
		_, complaints, err = tool(s, "outbox", verb, held[0].Key)
		require.Error(t, err)
		require.Equal(t, "shop: "+held[0].Key+": the key is not held, so there is nothing to do; `shop outbox list` shows those that are\n", complaints)
	}
	_, complaints, err = tool(s, "outbox", "list", "--service", "catalog-view")
	require.Error(t, err)
	require.Contains(t, complaints, "only orders and billing have an outbox")
}

// Both services with an outbox show what it does, and see transactions of other roles.
func TestServicesShowTheirOutbox(t *testing.T) {
	t.Parallel()
	s := harness.Started(t, harness.Stack(t), binaries)
	admin, err := s.Stack.Database(s.Database(setup.Orders), "", "")
	require.NoError(t, err)
	db, err := postgres.Open(postgres.Config{URL: admin, MaxConnections: 1})
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	tx, err := db.Beginx()
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	_, err = tx.Exec(`SELECT 1`)
	require.NoError(t, err)

	require.NoError(t, s.Story(10, false).Order(s.Context()))
	s.AwaitEnd(10)
	for _, service := range []string{setup.Orders, setup.Billing} {
		s.Until(service+" has published", func() bool {
			text := metrics(t, s, service)
			return strings.Contains(text, "\noutbox_relay_active 1\n") && strings.Contains(text, "\noutbox_pending 0\n") &&
				strings.Contains(text, "\noutbox_held_keys 0\n") && !strings.Contains(text, "\noutbox_published_total 0\n")
		})
	}
	s.Until("another role's transaction is seen", func() bool {
		return !strings.Contains(metrics(t, s, setup.Orders), "\noutbox_oldest_transaction_seconds 0")
	})
}
