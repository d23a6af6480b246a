package orders

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"onceshop/pkg/events"
)

// shelf returns a product that is sold, at version 4, with 7 of 10 in stock.
func shelf() *Product {
	return &Product{sku: "mug", version: 4, name: "a mug", price: euros(100), stock: 7, received: 10}
}

func TestProductChangesByItsRules(t *testing.T) {
	t.Parallel()
	unknown := func() *Product { return &Product{sku: "mug"} }
	gone := func() *Product { p := shelf(); p.removed = true; return p }
	full := func() *Product { p := shelf(); p.received = math.MaxInt64 - 5; return p }
	create := func(stock int64) func(*Product) (events.Event, error) {
		return func(p *Product) (events.Event, error) { return p.Create("another", euros(200), stock) }
	}
	change := func(p *Product) (events.Event, error) { return p.Change("another", euros(200)) }
	restock := func(n int64) func(*Product) (events.Event, error) {
		return func(p *Product) (events.Event, error) { return p.Restock(n) }
	}
	take := func(n int64) func(*Product) (events.Event, error) {
		return func(p *Product) (events.Event, error) { return p.take(n) }
	}
	giveBack := func(p *Product) (events.Event, error) { return p.giveBack(3), nil }

	for _, test := range []struct {
		name            string
		product         func() *Product
		do              func(*Product) (events.Event, error)
		err             error // then nothing is said of the product
		stock, received int64
		removed         bool
	}{
		{"create", unknown, create(5), nil, 5, 5, false},
		{"create with nothing in stock", unknown, create(0), nil, 0, 0, false},
		{"create twice", shelf, create(5), ErrProductExists, 0, 0, false},
		{"create again: it goes on, with what was left", gone, create(5), nil, 12, 15, false},
		{"create again with too much", func() *Product { p := gone(); p.received = math.MaxInt64 - 5; return p }, create(6), ErrTooMuchStock, 0, 0, false},
		{"change", shelf, change, nil, 7, 10, false},
		{"change an unknown one", unknown, change, ErrUnknownProduct, 0, 0, false},
		{"change a removed one", gone, change, ErrUnknownProduct, 0, 0, false},
		{"restock", shelf, restock(3), nil, 10, 13, false},
		{"restock to the edge", full, restock(5), nil, 12, math.MaxInt64, false},
		{"restock over the edge", full, restock(6), ErrTooMuchStock, 0, 0, false},
		{"restock a removed one", gone, restock(3), ErrUnknownProduct, 0, 0, false},
		{"remove", shelf, (*Product).Remove, nil, 7, 10, true},
		{"remove twice", gone, (*Product).Remove, ErrUnknownProduct, 0, 0, false},
		{"remove an unknown one", unknown, (*Product).Remove, ErrUnknownProduct, 0, 0, false},
		{"take all", shelf, take(7), nil, 0, 10, false},
		{"take more than there is", shelf, take(8), ErrNotEnoughStock, 0, 0, false},
		{"take a removed one", gone, take(1), ErrUnknownProduct, 0, 0, false},
		{"give back", shelf, giveBack, nil, 10, 10, false},
		{"give back to a removed one: it stays removed", gone, giveBack, nil, 10, 10, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := test.product()
			before := p.version
			event, err := test.do(p)
			require.ErrorIs(t, err, test.err)
			if test.err != nil {
				require.Nil(t, event)
				require.Equal(t, before, p.version)
				return
			}
			require.Equal(t, before+1, p.version, "a change raises the version by one")
			require.Equal(t, []any{test.stock, test.received, test.removed}, []any{p.stock, p.received, p.removed})
			want := events.Event(events.ProductChanged{Product: p.state()})
			if test.removed {
				want = events.ProductRemoved{Product: p.state()}
			}
			require.Equal(t, want, event, "the event is the state after the change")
		})
	}
}

func TestProductCreatedAgainTakesTheNewNameAndPrice(t *testing.T) {
	t.Parallel()
	p := shelf()
	_, err := p.Remove()
	require.NoError(t, err)
	event, err := p.Create("a better mug", events.Money{Amount: 300, Currency: "USD"}, 1)
	require.NoError(t, err)
	require.Equal(t, events.ProductChanged{Product: events.Product{
		SKU: "mug", Version: 6, Name: "a better mug", Price: events.Money{Amount: 300, Currency: "USD"}, Stock: 8,
	}}, event)
}
