package story

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"onceshop/pkg/events"
)

// Config says how much happens. The zero value of each field but URL and Orders is its default.
type Config struct {
	URL     string // of the API of orders, required
	Orders  int    // how many are placed, required
	Clients int    // how many place them side by side; default 8
	// DeclineEvery and CancelEvery pick every nth order, for a card that is declined, and for a
	// cancellation at once or a moment later. Default 10 and 12.
	DeclineEvery, CancelEvery int
	// Patient clients try again while orders, or its database, is out of reach. They may then place an
	// order twice, as the answer to the first may be what was lost.
	Patient bool
}

func (c *Config) setDefaults() {
	if c.Clients == 0 {
		c.Clients = 8
	}
	if c.DeclineEvery == 0 {
		c.DeclineEvery = 10
	}
	if c.CancelEvery == 0 {
		c.CancelEvery = 12
	}
}

// Story is one run.
type Story struct {
	cfg    Config
	client *Client
	placed atomic.Int64
}

// New returns a story that has not begun.
func New(cfg Config) *Story {
	cfg.setDefaults()
	return &Story{cfg: cfg, client: NewClient(cfg.URL)}
}

// Placed returns how many orders were taken so far.
func (s *Story) Placed() int { return int(s.placed.Load()) }

type product struct {
	sku, name string
	price     int64
}

func products() []product {
	return []product{
		{"beans", "Coffee beans, 1 kg", 1990},
		{"cup", "Cup, blue", 850},
		{"filter", "Paper filters, 100", 420},
		{"grinder", "Hand grinder", 8900},
		{"kettle", "Kettle, 1 l", 5400},
	}
}

// PutUpProducts creates five products with enough stock for twice the orders, or adds to theirs.
func (s *Story) PutUpProducts(ctx context.Context) error {
	for _, p := range products() {
		price := events.Money{Amount: p.price, Currency: "EUR"}
		err := s.again(ctx, func() error { return s.client.PutUp(ctx, p.sku, p.name, price, int64(6*s.cfg.Orders)) })
		if err != nil {
			return fmt.Errorf("put up product %s: %w", p.sku, err)
		}
	}
	return nil
}

// Order places all orders and cancels some. It returns the first error of a client.
func (s *Story) Order(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	numbers := make(chan int)
	group.Go(func() error {
		defer close(numbers)
		for n := 1; n <= s.cfg.Orders; n++ {
			select {
			case numbers <- n:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range s.cfg.Clients {
		group.Go(func() error {
			for n := range numbers {
				if err := s.one(ctx, n); err != nil {
					return fmt.Errorf("order %d: %w", n, err)
				}
			}
			return nil
		})
	}
	return group.Wait()
}

func (s *Story) one(ctx context.Context, n int) error {
	order := Order{Customer: fmt.Sprintf("customer-%02d", n%20), PaymentMethod: "pm_card_visa"}
	if n%s.cfg.DeclineEvery == 0 {
		order.PaymentMethod = "pm_card_chargeDeclined"
	}
	offered := products()
	for _, i := range rand.Perm(len(offered))[:1+n%3] {
		order.Lines = append(order.Lines, Line{offered[i].sku, int64(1 + rand.N(3))})
	}
	var id string
	if err := s.again(ctx, func() error {
		placed, err := s.client.Place(ctx, order)
		id = placed.OrderID
		return err
	}); err != nil {
		return err
	}
	s.placed.Add(1)
	if n%s.cfg.CancelEvery != 0 {
		return nil
	}
	// Before, during or after the charge: whichever it turns out to be.
	select {
	case <-time.After(rand.N(60 * time.Millisecond)):
	case <-ctx.Done():
	}
	err := s.again(ctx, func() error { return s.client.Cancel(ctx, id) })
	if answer, ok := errors.AsType[*StatusError](err); ok && answer.Status == http.StatusConflict {
		return nil // it was declined before we could
	}
	return err
}

// again calls fn until it succeeds, if clients are patient and the failure may pass.
func (s *Story) again(ctx context.Context, fn func() error) error {
	for {
		err := fn()
		answer, answered := errors.AsType[*StatusError](err)
		if err == nil || !s.cfg.Patient || (answered && answer.Status < http.StatusInternalServerError) {
			return err
		}
		select {
		case <-time.After(100*time.Millisecond + rand.N(100*time.Millisecond)):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}
