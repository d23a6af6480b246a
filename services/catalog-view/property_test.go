package catalogview

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"onceshop/pkg/events"
)

var statuses = []string{"placed", "confirmed", "rejected", "cancelled"}

// histories draws a few products and orders with all their versions. The SKUs begin with the prefix.
func histories(t *rapid.T, prefix string) (products []events.Product, orders []events.Order) {
	skus := []string{prefix + "a", prefix + "b", prefix + "c"}
	for _, sku := range skus {
		for version := range rapid.Int64Range(0, 5).Draw(t, "versions of "+sku) {
			products = append(products, events.Product{
				SKU: sku, Version: version + 1, Name: fmt.Sprintf("%s, version %d", sku, version+1), Stock: rapid.Int64Range(0, 9).Draw(t, "stock"),
				Price: events.Money{Amount: 100 + version, Currency: "EUR"}, Removed: rapid.Bool().Draw(t, "removed"),
			})
		}
	}
	for range rapid.IntRange(0, 3).Draw(t, "orders") {
		id := uuid.NewString()
		for version := range rapid.Int64Range(1, 4).Draw(t, "versions") {
			o := orderAt(version+1, rapid.SampledFrom(statuses).Draw(t, "status"))
			o.OrderID, o.Lines, o.Reason = id, []events.OrderLine{}, fmt.Sprintf("version %d", version+1)
			for _, sku := range skus {
				if quantity := rapid.Int64Range(0, 4).Draw(t, "quantity"); quantity > 0 {
					o.Lines = append(o.Lines, line(sku, quantity))
				}
			}
			o.Total.Amount = 100 * (version + 1)
			orders = append(orders, o)
		}
	}
	return products, orders
}

// shuffled draws an order of delivery in which each item comes once, twice or three times.
func shuffled[T any](t *rapid.T, items []T) []T {
	var deliveries []T
	for _, item := range items {
		for range rapid.IntRange(1, 3).Draw(t, "times") {
			deliveries = append(deliveries, item)
		}
	}
	return rapid.Permutation(deliveries).Draw(t, "deliveries")
}

// newest returns the last version of each, by id.
func newest[T any](items []T, aggregate func(T) (string, int64)) map[string]T {
	last := map[string]T{}
	for _, item := range items {
		id, version := aggregate(item)
		if known, ok := last[id]; ok {
			if _, than := aggregate(known); version < than {
				continue
			}
		}
		last[id] = item
	}
	return last
}

// requireNewest requires that the view shows the last versions, and what they sell.
func requireNewest(t *rapid.T, s *Service, prefix string, sold []events.Product, placed []events.Order) {
	ctx := context.Background()
	for sku, want := range newest(sold, events.Product.Aggregate) {
		got, err := product(ctx, s.db, sku)
		if want.Removed {
			require.ErrorIs(t, err, errNotFound)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	sales := map[string]int64{}
	for id, want := range newest(placed, events.Order.Aggregate) {
		got, err := order(ctx, s.db, id)
		require.NoError(t, err)
		require.Equal(t, Order{
			OrderID: id, Version: want.Version, Customer: want.Customer, Status: want.Status, Lines: want.Lines,
			Total: want.Total, Reason: want.Reason, PlacedAt: want.PlacedAt,
		}, got)
		if want.Status == "confirmed" {
			for _, line := range want.Lines {
				sales[line.SKU] += line.Quantity
			}
		}
	}
	best, err := bestSellers(ctx, s.db, 1000)
	require.NoError(t, err)
	got := map[string]int64{}
	for _, each := range best {
		if strings.HasPrefix(each.SKU, prefix) {
			got[each.SKU] = each.Quantity
		}
	}
	require.Equal(t, sales, got)
}

func TestAnyOrderAndRepetitionEndsInTheSameView(t *testing.T) {
	t.Parallel()
	s := newService(t)
	rapid.Check(t, func(t *rapid.T) {
		prefix := uuid.NewString()
		sold, placed := histories(t, prefix)
		for _, p := range shuffled(t, sold) {
			require.NoError(t, s.onProduct(context.Background(), p))
		}
		for _, o := range shuffled(t, placed) {
			require.NoError(t, s.onOrder(context.Background(), o))
		}
		requireNewest(t, s, prefix, sold, placed)
	})
}

// Consumers of one queue work side by side, so versions of one aggregate meet in the database.
func TestDeliveriesAtOnceEndInTheSameView(t *testing.T) {
	t.Parallel()
	s := newService(t)
	rapid.Check(t, func(t *rapid.T) {
		prefix := uuid.NewString()
		sold, placed := histories(t, prefix)
		var calls []func(context.Context) error
		for _, p := range shuffled(t, sold) {
			calls = append(calls, func(ctx context.Context) error { return s.onProduct(ctx, p) })
		}
		for _, o := range shuffled(t, placed) {
			calls = append(calls, func(ctx context.Context) error { return s.onOrder(ctx, o) })
		}
		require.NoError(t, sideBySide(rapid.Permutation(calls).Draw(t, "calls"), 6))
		requireNewest(t, s, prefix, sold, placed)
	})
}

// sideBySide makes the calls, n at a time, and returns their errors.
func sideBySide(calls []func(context.Context) error, n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	queue := make(chan func(context.Context) error)
	errs := make([]error, n)
	var workers sync.WaitGroup
	for i := range n {
		workers.Go(func() {
			for call := range queue {
				errs[i] = errors.Join(errs[i], call(ctx))
			}
		})
	}
	for _, call := range calls {
		queue <- call
	}
	close(queue)
	workers.Wait()
	return errors.Join(errs...)
}

func TestAllOfOrdersEventsAreHandled(t *testing.T) {
	t.Parallel()
	require.ElementsMatch(t, events.Names("orders"), slices.Collect(maps.Keys((&Service{}).handlers())))
}
