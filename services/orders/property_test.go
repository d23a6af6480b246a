package orders

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"onceshop/pkg/events"
)

// shopModel is a shop without a database: the aggregates, and the last version of each that an event told.
type shopModel struct {
	products map[string]*Product
	orders   map[string]*Order
	told     map[string]int64
	payment  int64
}

func (m *shopModel) tell(t *rapid.T, changes ...events.Event) {
	for _, change := range changes {
		id, version := change.Aggregate()
		require.Equal(t, m.told[id]+1, version, "%s of %s", change.Name(), id)
		m.told[id] = version
	}
}

// product returns a copy to work on: what an error leaves behind is thrown away, as by a rollback.
func (m *shopModel) product(sku string) *Product {
	if p, ok := m.products[sku]; ok {
		changed := *p
		return &changed
	}
	return &Product{sku: sku}
}

func (m *shopModel) changeProduct(t *rapid.T, do func(*Product) (events.Event, error)) {
	p := m.product(rapid.SampledFrom([]string{"mug", "tea", "pot"}).Draw(t, "sku"))
	if event, err := do(p); err == nil {
		m.products[p.sku] = p
		m.tell(t, event)
	}
}

func (m *shopModel) create(t *rapid.T) {
	price := events.Money{Amount: rapid.Int64Range(0, 9).Draw(t, "price"), Currency: rapid.SampledFrom([]string{"EUR", "EUR", "USD"}).Draw(t, "currency")}
	stock := rapid.Int64Range(0, 9).Draw(t, "stock")
	m.changeProduct(t, func(p *Product) (events.Event, error) { return p.Create("a "+p.sku, price, stock) })
}

func (m *shopModel) change(t *rapid.T) {
	m.changeProduct(t, func(p *Product) (events.Event, error) { return p.Change("another "+p.sku, euros(5)) })
}

func (m *shopModel) restock(t *rapid.T) {
	quantity := rapid.Int64Range(1, 9).Draw(t, "quantity")
	m.changeProduct(t, func(p *Product) (events.Event, error) { return p.Restock(quantity) })
}

func (m *shopModel) remove(t *rapid.T) { m.changeProduct(t, (*Product).Remove) }

func (m *shopModel) place(t *rapid.T) {
	known := map[string]*Product{}
	for sku := range m.products {
		known[sku] = m.product(sku)
	}
	line := rapid.Custom(func(t *rapid.T) Line {
		return Line{rapid.SampledFrom([]string{"mug", "tea", "pot"}).Draw(t, "sku"), rapid.Int64Range(1, 4).Draw(t, "quantity")}
	})
	id := fmt.Sprintf("order-%d", len(m.orders))
	o, changes, err := Place(id, "ada", visa, rapid.SliceOfN(line, 1, 3).Draw(t, "lines"), known, noon)
	if err == nil {
		m.orders[id], m.products = o, known
		m.tell(t, changes...)
	}
}

func (m *shopModel) order(t *rapid.T) *Order {
	if len(m.orders) == 0 {
		t.Skip("no order yet")
	}
	return m.orders[rapid.SampledFrom(slices.Sorted(maps.Keys(m.orders))).Draw(t, "order")]
}

// pay returns the next payment event, or now and then one that was there before.
func (m *shopModel) pay(t *rapid.T) events.Payment {
	m.payment++
	return events.Payment{Version: rapid.Int64Range(1, m.payment).Draw(t, "payment version")}
}

func (m *shopModel) confirm(t *rapid.T) {
	if event := m.order(t).Confirm(m.pay(t)); event != nil {
		m.tell(t, event)
	}
}

func (m *shopModel) reject(t *rapid.T) { m.tell(t, m.order(t).Reject(m.pay(t), m.products)...) }

func (m *shopModel) cancel(t *rapid.T) {
	changes, err := m.order(t).Cancel("why not", m.products)
	if err != nil {
		require.ErrorIs(t, err, ErrAlreadyEnded)
	}
	m.tell(t, changes...)
}

func (m *shopModel) check(t *rapid.T) {
	held := map[string]int64{}
	for id, o := range m.orders {
		require.Equal(t, m.told[id], o.version, "the last event has the last version")
		if o.status == Placed || o.status == Confirmed {
			for _, line := range o.lines {
				held[line.SKU] += line.Quantity
			}
		}
	}
	for sku, p := range m.products {
		require.Equal(t, m.told[sku], p.version, "the last event has the last version")
		require.Equal(t, p.received, p.stock+held[sku], "stock and held of %s are all that it received", sku)
		require.GreaterOrEqual(t, p.stock, int64(0))
	}
}

func TestNoSequenceLosesStockOrSkipsAVersion(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &shopModel{products: map[string]*Product{}, orders: map[string]*Order{}, told: map[string]int64{}}
		t.Repeat(map[string]func(*rapid.T){
			"create": m.create, "change": m.change, "restock": m.restock, "remove": m.remove,
			"place": m.place, "confirm": m.confirm, "reject": m.reject, "cancel": m.cancel, "": m.check,
		})
	})
}
