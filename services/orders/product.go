package orders

import (
	"errors"
	"fmt"
	"math"

	"onceshop/pkg/events"
)

// Rules of products that a request can break.
var (
	ErrUnknownProduct = errors.New("no such product")
	ErrProductExists  = errors.New("the product exists")
	ErrNotEnoughStock = errors.New("not enough in stock")
	ErrTooMuchStock   = errors.New("more than can be counted")
)

// Product is something that can be ordered. Every change raises its version by one.
type Product struct {
	sku      string
	version  int64
	name     string
	price    events.Money
	stock    int64
	received int64 // all that was ever put into stock
	removed  bool
}

// Create makes the product known, or known again: one that was removed goes on from its version.
func (p *Product) Create(name string, price events.Money, stock int64) (events.Event, error) {
	if p.version > 0 && !p.removed {
		return nil, fmt.Errorf("%w: %s", ErrProductExists, p.sku)
	}
	p.name, p.price, p.removed = name, price, false
	if err := p.receive(stock); err != nil {
		return nil, err
	}
	return p.changed(), nil
}

// Change sets all of the product but its stock. Orders keep the price that they were placed at.
func (p *Product) Change(name string, price events.Money) (events.Event, error) {
	if err := p.sold(); err != nil {
		return nil, err
	}
	p.name, p.price = name, price
	return p.changed(), nil
}

// Restock adds to the stock.
func (p *Product) Restock(quantity int64) (events.Event, error) {
	if err := p.sold(); err != nil {
		return nil, err
	}
	if err := p.receive(quantity); err != nil {
		return nil, err
	}
	return p.changed(), nil
}

// Remove ends the sale of the product. Orders that hold some of it are not touched, and what they give back
// is in stock again should the SKU be created again.
func (p *Product) Remove() (events.Event, error) {
	if err := p.sold(); err != nil {
		return nil, err
	}
	p.removed = true
	p.version++
	return events.ProductRemoved{Product: p.state()}, nil
}

// take reserves stock for an order.
func (p *Product) take(quantity int64) (events.Event, error) {
	if err := p.sold(); err != nil {
		return nil, err
	}
	if quantity > p.stock {
		return nil, fmt.Errorf("%w: %d of %s", ErrNotEnoughStock, p.stock, p.sku)
	}
	p.stock -= quantity
	return p.changed(), nil
}

// giveBack returns what an order had taken. A removed product stays removed.
func (p *Product) giveBack(quantity int64) events.Event {
	p.stock += quantity
	if p.removed {
		p.version++
		return events.ProductRemoved{Product: p.state()}
	}
	return p.changed()
}

func (p *Product) receive(quantity int64) error {
	if quantity > math.MaxInt64-p.received {
		return fmt.Errorf("%w: %s", ErrTooMuchStock, p.sku)
	}
	p.stock += quantity
	p.received += quantity
	return nil
}

func (p *Product) sold() error {
	if p.version == 0 || p.removed {
		return fmt.Errorf("%w: %s", ErrUnknownProduct, p.sku)
	}
	return nil
}

func (p *Product) changed() events.Event {
	p.version++
	return events.ProductChanged{Product: p.state()}
}

// state is the product as others see it.
func (p *Product) state() events.Product {
	return events.Product{
		SKU: p.sku, Version: p.version, Name: p.name, Price: p.price, Stock: p.stock, Removed: p.removed,
	}
}
