package orders

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"onceshop/pkg/events"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// shelves returns products at version 1 with 10 in stock each.
func shelves(prices map[string]events.Money) map[string]*Product {
	products := map[string]*Product{}
	for sku, price := range prices {
		products[sku] = &Product{sku: sku, version: 1, name: "a " + sku, price: price, stock: 10, received: 10}
	}
	return products
}

func twoShelves() map[string]*Product {
	return shelves(map[string]events.Money{"mug": euros(100), "tea": euros(30)})
}

// placed returns an order for 2 mugs and 3 teas, and the products.
func placed(t *testing.T) (*Order, map[string]*Product) {
	t.Helper()
	products := twoShelves()
	o, _, err := Place("o", "ada", visa, []Line{{"mug", 2}, {"tea", 3}}, products, noon)
	require.NoError(t, err)
	return o, products
}

func TestPlaceTakesTheStockOnce(t *testing.T) {
	t.Parallel()
	products := twoShelves()
	o, changes, err := Place("o", "ada", visa, []Line{{"tea", 3}, {"mug", 2}}, products, noon)
	require.NoError(t, err)
	require.Equal(t, events.Order{
		OrderID: "o", Version: 1, Customer: "ada", Status: "placed", PaymentMethod: visa, PlacedAt: noon,
		Lines: []events.OrderLine{
			{SKU: "tea", Name: "a tea", Quantity: 3, UnitPrice: euros(30)}, {SKU: "mug", Name: "a mug", Quantity: 2, UnitPrice: euros(100)},
		},
		Total: euros(290),
	}, o.state())
	require.Equal(t, []int64{8, 7}, []int64{products["mug"].stock, products["tea"].stock})
	require.Equal(t, []events.Event{
		events.OrderPlaced{Order: o.state()},
		events.ProductChanged{Product: products["tea"].state()},
		events.ProductChanged{Product: products["mug"].state()},
	}, changes)
	require.EqualValues(t, 2, products["mug"].version)
}

func TestPlaceRefusesLinesThatBreakARule(t *testing.T) {
	t.Parallel()
	const most = math.MaxInt64
	for _, test := range []struct {
		name   string
		prices map[string]events.Money
		lines  []Line
		line   int
		err    error // nil: it is taken
	}{
		{"unknown product", nil, []Line{{"mug", 1}}, 0, ErrUnknownProduct},
		{"repeated product", map[string]events.Money{"a": euros(1)}, []Line{{"a", 1}, {"a", 1}}, 1, ErrRepeatedProduct},
		{"not enough", map[string]events.Money{"a": euros(1), "b": euros(1)}, []Line{{"a", 10}, {"b", 11}}, 1, ErrNotEnoughStock},
		{"mixed currencies", map[string]events.Money{"a": euros(1), "b": {Amount: 1, Currency: "USD"}}, []Line{{"a", 1}, {"b", 1}}, 1, ErrMixedCurrencies},
		{"one other currency", map[string]events.Money{"b": {Amount: 1, Currency: "USD"}}, []Line{{"b", 1}}, 0, nil},
		{"the largest total in one line", map[string]events.Money{"a": euros(most / 7)}, []Line{{"a", 7}}, 0, nil}, // 7 divides it
		{"one line over the edge", map[string]events.Money{"a": euros(most/7 + 1)}, []Line{{"a", 7}}, 0, ErrTotalTooLarge},
		{"the largest total in two lines", map[string]events.Money{"a": euros(most - 10), "b": euros(1)}, []Line{{"a", 1}, {"b", 10}}, 0, nil},
		{"two lines over the edge by one", map[string]events.Money{"a": euros(most - 9), "b": euros(1)}, []Line{{"a", 1}, {"b", 10}}, 1, ErrTotalTooLarge},
		{"a product that wraps around to a small number", map[string]events.Money{"a": euros(1 << 62)}, []Line{{"a", 4}}, 0, ErrTotalTooLarge},
		{"free of charge after the largest total", map[string]events.Money{"a": euros(most), "b": euros(0)}, []Line{{"a", 1}, {"b", 10}}, 0, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			o, changes, err := Place("o", "ada", visa, test.lines, shelves(test.prices), noon)
			if test.err == nil {
				require.NoError(t, err)
				var sum int64
				for _, line := range o.lines {
					sum += line.Quantity * line.UnitPrice.Amount
				}
				require.Equal(t, sum, o.total.Amount)
				require.GreaterOrEqual(t, sum, int64(0))
				return
			}
			require.ErrorIs(t, err, test.err)
			var lineError *LineError
			require.ErrorAs(t, err, &lineError)
			require.Equal(t, test.line, lineError.Line)
			require.Nil(t, o)
			require.Empty(t, changes)
		})
	}
}

func TestRemovedProductIsNotSold(t *testing.T) {
	t.Parallel()
	products := twoShelves()
	products["tea"].removed = true
	_, _, err := Place("o", "ada", visa, []Line{{"mug", 1}, {"tea", 1}}, products, noon)
	require.ErrorIs(t, err, ErrUnknownProduct)
}

func TestOrderActsByStatusAndPaymentVersion(t *testing.T) {
	t.Parallel()
	confirm := func(version int64) func(*Order, map[string]*Product) ([]events.Event, error) {
		return func(o *Order, _ map[string]*Product) ([]events.Event, error) {
			if event := o.Confirm(events.Payment{Version: version}); event != nil {
				return []events.Event{event}, nil
			}
			return nil, nil
		}
	}
	reject := func(version int64) func(*Order, map[string]*Product) ([]events.Event, error) {
		return func(o *Order, products map[string]*Product) ([]events.Event, error) {
			return o.Reject(events.Payment{Version: version, DeclineCode: "no"}, products), nil
		}
	}
	cancel := func(o *Order, products map[string]*Product) ([]events.Event, error) {
		return o.Cancel("why not", products)
	}

	for _, test := range []struct {
		name       string
		status     Status
		do         func(*Order, map[string]*Product) ([]events.Event, error)
		after      Status
		err        error
		acts       bool
		stockGiven bool
	}{
		{"confirm", Placed, confirm(6), Confirmed, nil, true, false},
		{"confirm by the payment version that it knows", Placed, confirm(5), Placed, nil, false, false},
		{"confirm by an older payment version", Placed, confirm(4), Placed, nil, false, false},
		{"confirm twice", Confirmed, confirm(6), Confirmed, nil, false, false},
		{"confirm a rejected one", Rejected, confirm(6), Rejected, nil, false, false},
		{"confirm a cancelled one", Cancelled, confirm(6), Cancelled, nil, false, false},
		{"reject", Placed, reject(6), Rejected, nil, true, true},
		{"reject by the payment version that it knows", Placed, reject(5), Placed, nil, false, false},
		{"reject a confirmed one", Confirmed, reject(6), Confirmed, nil, false, false},
		{"reject twice", Rejected, reject(6), Rejected, nil, false, false},
		{"reject a cancelled one", Cancelled, reject(6), Cancelled, nil, false, false},
		{"cancel", Placed, cancel, Cancelled, nil, true, true},
		{"cancel a confirmed one", Confirmed, cancel, Cancelled, nil, true, true},
		{"cancel a rejected one", Rejected, cancel, Rejected, ErrAlreadyEnded, false, false},
		{"cancel twice", Cancelled, cancel, Cancelled, nil, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			o, products := placed(t)
			o.status, o.version, o.paymentVersion = test.status, 3, 5
			inStock := func() []int64 { return []int64{products["mug"].stock, products["tea"].stock} }
			before, want := o.state(), inStock()
			changes, err := test.do(o, products)
			require.ErrorIs(t, err, test.err)
			require.Equal(t, test.after, o.status)
			if !test.acts {
				require.Empty(t, changes)
				require.Equal(t, before, o.state())
				require.EqualValues(t, 5, o.paymentVersion)
			} else {
				_, version := changes[0].Aggregate()
				require.EqualValues(t, 4, version)
				require.EqualValues(t, 4, o.version, "a change raises the version by one")
			}
			if test.stockGiven {
				want = []int64{10, 10}
				require.Equal(t, []events.Event{
					events.ProductChanged{Product: products["mug"].state()}, events.ProductChanged{Product: products["tea"].state()},
				}, changes[1:])
			}
			require.Equal(t, want, inStock())
		})
	}
}
